"""Cross entropies behind a linear layer, a tile of logits at a time: totals, and gradients.

    class_totals             log sum_j e^x_ij of every row, and its target's logit: tiles of logits
                             in registers alone
    class_gradients          of a slice of classes, in 16 bits, for the two products with matrices
                             that follow:

                                 d x_ij = a_i e^(x_ij - p_i) - c_i - [j = t_i] b_i

    distribution_totals, distribution_gradients
                             the same of a student's and a teacher's logits together, and the mean
                             of the student's under the teacher

Logits are x_ij = h_i . C_j + bias_j. Exponentials are powers of two of logits times log2(e).

Letters: N rows, V classes, D and D' widths.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def tile_and_part(group):
    """The tile of rows and the part of the classes of this program, in an order in which programs
    that run at one time have `group` tiles of rows: these are read again for every tile of classes,
    and then from the second-level cache.
    """
    tiles, parts = tl.num_programs(0), tl.num_programs(1)
    number = tl.program_id(1) * tiles + tl.program_id(0)
    first = number // (group * parts) * group
    some = tl.minimum(tiles - first, group)
    inside = number - first * parts
    return first + inside % some, inside // some


@triton.jit
def logits_tile(
    h,
    c,
    row,
    column,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """h_i . C_j [ROWS, CLASSES] of the rows from `row` and the classes from `column`; h, c:
    descriptors.
    """
    x = tl.zeros([ROWS, CLASSES], tl.float32)
    for d in tl.range(0, D, WIDTH, num_stages=STAGES):
        x = tl.dot(h.load([row, d]), c.load([column, d]).T, x, input_precision=PRECISION)
    return x


@triton.jit
def with_bias(x, bias, column, classes):
    """x [ROWS, CLASSES] plus the classes' bias, and -inf beyond the last class; column
    [CLASSES].
    """
    there = column < classes
    if bias is not None:
        x += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    return tl.where(there[None, :], x, float("-inf"))


@triton.jit
def grown(x, top, total):
    """A row's largest x so far, its sum of 2^(x - top), what older sums are multiplied with, and
    x's weights.
    """
    new = tl.maximum(top, tl.max(x, 1))
    # All classes of a tile may have a logit of -inf.
    shift = tl.where(new == float("-inf"), 0.0, new)
    rescaled = tl.exp2(top - shift)
    weight = tl.exp2(x - shift[:, None])
    return new, total * rescaled + tl.sum(weight, 1), rescaled, weight


@triton.jit
def log_total(top, total):
    """The log-sum-exp, in natural units, of `top` and the sum of 2^(x - top)."""
    return tl.where(total > 0, (top + tl.log2(total)) * LN_2, float("-inf"))


@triton.jit
def class_totals(
    h,
    c,
    bias,
    target,
    p,
    picked,
    rows,
    classes,
    tiles,
    group,
    on_target,
    on_all,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    SMOOTHED: tl.constexpr,
):
    """Program (tile of rows, part of the classes): p and picked [parts, N] float32. h, c:
    descriptors.

    bias [V] or None; target [N] or None: then nothing is picked. picked is on_target times the
    target's logit plus, if SMOOTHED, on_all times the sum of all.
    """
    tile, part = tile_and_part(group)
    row, first = tile * ROWS, part * tiles * CLASSES
    index = row + tl.arange(0, ROWS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS], tl.float32)
    if target is not None:
        wanted = tl.load(target + index, mask=index < rows, other=-1)
    for begin in tl.range(
        first, tl.minimum(first + tiles * CLASSES, classes), CLASSES, num_stages=1
    ):
        column = begin + tl.arange(0, CLASSES)
        x = logits_tile(h, c, row, begin, D, ROWS, CLASSES, WIDTH, STAGES, PRECISION)
        x = with_bias(x, bias, column, classes)
        if target is not None:
            found += on_target * tl.sum(tl.where(column[None, :] == wanted[:, None], x, 0.0), 1)
            if SMOOTHED:
                found += on_all * tl.sum(tl.where((column < classes)[None, :], x, 0.0), 1)
        top, total, _, _ = grown(x * LOG2_E, top, total)
    at = part.to(tl.int64) * rows + index
    tl.store(p + at, log_total(top, total), mask=index < rows)
    if target is not None:
        tl.store(picked + at, found, mask=index < rows)


@triton.jit
def class_gradients(
    h,
    c,
    bias,
    target,
    p,
    a,
    b,
    on_all,
    out,
    rows,
    classes,
    first,
    out_row,
    group,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of rows, tile of classes) of a slice of classes that begins at `first`: writes
    out [N, slice].

    p, a [N]; b [N] and target [N], or None; on_all [N] or None, all float32 but target.
    """
    tile, part = tile_and_part(group)
    row, begin = tile * ROWS, part * CLASSES
    index = row + tl.arange(0, ROWS)
    column = first + begin + tl.arange(0, CLASSES)
    there = index < rows
    x = logits_tile(h, c, row, first + begin, D, ROWS, CLASSES, WIDTH, STAGES, PRECISION)
    x = with_bias(x, bias, column, classes)
    log_sum = tl.load(p + index, mask=there, other=0.0) * LOG2_E
    d = tl.exp2(x * LOG2_E - log_sum[:, None]) * tl.load(a + index, mask=there, other=0.0)[:, None]
    if on_all is not None:
        d -= tl.load(on_all + index, mask=there, other=0.0)[:, None]
    if target is not None:
        wanted = tl.load(target + index, mask=there, other=-1)
        less = tl.load(b + index, mask=there, other=0.0)
        d -= tl.where(column[None, :] == wanted[:, None], less[:, None], 0.0)
    at = out + index.to(tl.int64)[:, None] * out_row + begin + tl.arange(0, CLASSES)[None, :]
    tl.store(at, d.to(out.dtype.element_ty), mask=there[:, None] & (column < classes)[None, :])


@triton.jit
def distribution_totals(
    s,
    s_layer,
    t,
    t_layer,
    p,
    q,
    mean,
    rows,
    classes,
    tiles,
    group,
    D: tl.constexpr,
    T_D: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of rows, part of the classes): q, p (student, teacher) and mean [parts, N]
    float32.
    """
    tile, part = tile_and_part(group)
    row, first = tile * ROWS, part * tiles * CLASSES
    index = row + tl.arange(0, ROWS)
    q_top = tl.full([ROWS], float("-inf"), tl.float32)
    p_top = q_top
    q_total = tl.zeros([ROWS], tl.float32)
    p_total = q_total
    n = q_total
    for begin in tl.range(
        first, tl.minimum(first + tiles * CLASSES, classes), CLASSES, num_stages=1
    ):
        column = begin + tl.arange(0, CLASSES)
        there = (column < classes)[None, :]
        y = logits_tile(t, t_layer, row, begin, T_D, ROWS, CLASSES, WIDTH, STAGES, PRECISION)
        y = tl.where(there, y * LOG2_E, float("-inf"))
        p_top, p_total, rescaled, weight = grown(y, p_top, p_total)
        x = logits_tile(s, s_layer, row, begin, D, ROWS, CLASSES, WIDTH, STAGES, PRECISION)
        n = n * rescaled + tl.sum(weight * x, 1)
        q_top, q_total, _, _ = grown(tl.where(there, x * LOG2_E, float("-inf")), q_top, q_total)
    at = part.to(tl.int64) * rows + index
    tl.store(q + at, log_total(q_top, q_total), mask=index < rows)
    tl.store(p + at, log_total(p_top, p_total), mask=index < rows)
    tl.store(mean + at, n / tl.where(p_total > 0, p_total, 1.0), mask=index < rows)


@triton.jit
def distribution_gradients(
    s,
    s_layer,
    t,
    t_layer,
    p,
    q,
    mean,
    g,
    d_s,
    d_t,
    rows,
    classes,
    first,
    out_row,
    group,
    D: tl.constexpr,
    T_D: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of rows, tile of classes) of a slice: writes d_s and d_t [N, slice]; d_t may be
    None.

    d x = g (softmax x - softmax y), d y = -g softmax y (x - mean); g [N] is that of the loss.
    """
    tile, part = tile_and_part(group)
    row, begin = tile * ROWS, part * CLASSES
    index = row + tl.arange(0, ROWS)
    column = begin + tl.arange(0, CLASSES)
    there = index < rows
    y = logits_tile(t, t_layer, row, first + begin, T_D, ROWS, CLASSES, WIDTH, STAGES, PRECISION)
    x = logits_tile(s, s_layer, row, first + begin, D, ROWS, CLASSES, WIDTH, STAGES, PRECISION)
    slope = tl.load(g + index, mask=there, other=0.0)[:, None]
    teacher = tl.exp2(y * LOG2_E - (tl.load(p + index, mask=there, other=0.0) * LOG2_E)[:, None])
    student = tl.exp2(x * LOG2_E - (tl.load(q + index, mask=there, other=0.0) * LOG2_E)[:, None])
    at = index.to(tl.int64)[:, None] * out_row + column[None, :]
    here = there[:, None] & (first + column < classes)[None, :]
    tl.store(d_s + at, (slope * (student - teacher)).to(d_s.dtype.element_ty), mask=here)
    if d_t is not None:
        n = tl.load(mean + index, mask=there, other=0.0)[:, None]
        tl.store(d_t + at, (slope * teacher * (n - x)).to(d_t.dtype.element_ty), mask=here)


@triton.jit
def listed_logits(
    h,
    c,
    bias,
    listed,
    out,
    classes,
    length,
    h_row,
    c_row,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    LISTED: tl.constexpr,
):
    """Program (row, tile of its list): h_i . C_j + bias_j of the listed classes j, 0 for those that
    are none.

    listed [N, L], out [N, L] float32.
    """
    row = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * LISTED + tl.arange(0, LISTED)
    j = tl.load(listed + row * length + position, mask=position < length, other=-1)
    there = (j >= 0) & (j < classes)
    x = tl.zeros([LISTED], tl.float32)
    for d in tl.range(0, D, WIDTH, num_stages=1):
        feature = d + tl.arange(0, WIDTH)
        inside = feature < D
        rows = tl.load(h + row * h_row + feature, mask=inside, other=0.0).to(tl.float32)
        layer = tl.load(
            c + j.to(tl.int64)[:, None] * c_row + feature[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        x += tl.sum(layer.to(tl.float32) * rows[None, :], 1)
    if bias is not None:
        x += tl.load(bias + j, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * length + position, tl.where(there, x, 0.0), mask=position < length)
