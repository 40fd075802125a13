"""Signed and absolute weights of a tile of targets and regulators, summed over bags and heads.

    S_ij += sum over bags and heads of w_ij      A_ij += sum of |w_ij|      w_ij = (q_i.k'_j) / n_i

A program has one tile: both sums stay in registers while it loops over bags and heads, and are
added to memory once. There are no atomics, so the same call gives the same bits. In torch
operations: flashsign.edges.edge_sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from flashsign.attention.call import precision
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import aligned, cdiv, descriptor
from flashsign.tuning.block_sizes import ROW_STEP, BlockSizes, padded_width
from flashsign.tuning.choose import choose_block_sizes


@triton.jit
def edge_sums(
    q,
    k,
    inverse,
    signed,
    absolute,
    inverse_bag,
    inverse_head,
    signed_row,
    absolute_row,
    bags,
    heads,
    key_heads,
    targets,
    regulators,
    E_PAD: tl.constexpr,
    TARGETS: tl.constexpr,
    REGULATORS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    ABSOLUTE: tl.constexpr,
):
    """A program does one tile of targets and regulators. q, k (scaled): descriptors; inverse [C, H,
    N]: 1 / n, 0 for targets that a bag does not list. Adds to signed and absolute [N, R].
    """
    target, regulator = tl.program_id(0) * TARGETS, tl.program_id(1) * REGULATORS
    row = target + tl.arange(0, TARGETS)
    column = regulator + tl.arange(0, REGULATORS)
    signed_sum = tl.zeros([TARGETS, REGULATORS], tl.float32)
    absolute_sum = tl.zeros([TARGETS, REGULATORS], tl.float32)
    for step in tl.range(0, bags * heads, num_stages=STAGES):
        bag, head = step // heads, step % heads
        rows = q.load([bag, head, target, 0]).reshape(TARGETS, E_PAD)
        keys = k.load([bag, head // (heads // key_heads), regulator, 0]).reshape(REGULATORS, E_PAD)
        at = bag.to(tl.int64) * inverse_bag + head * inverse_head
        inverse_n = tl.load(inverse + at + row, mask=row < targets, other=0.0)[:, None]
        s = tl.dot(rows, keys.T, input_precision=PRECISION)
        signed_sum += s * inverse_n
        if ABSOLUTE:
            absolute_sum += tl.abs(s) * inverse_n
    inside = (row < targets)[:, None] & (column < regulators)[None, :]
    out = signed + row.to(tl.int64)[:, None] * signed_row + column[None, :]
    tl.store(out, tl.load(out, mask=inside, other=0.0) + signed_sum, mask=inside)
    if ABSOLUTE:
        out = absolute + row.to(tl.int64)[:, None] * absolute_row + column[None, :]
        tl.store(out, tl.load(out, mask=inside, other=0.0) + absolute_sum, mask=inside)


def add_weights(
    q: Tensor,
    k: Tensor,
    inverse: Tensor,
    signed: Tensor,
    absolute: Tensor | None,
    sizes: BlockSizes | None = None,
) -> None:
    """Add the weights of all bags and heads to signed and absolute [N, R] (float32, numbers of a
    row adjacent).

    q [C, H, N, E], k (scaled) [C, K, R, E], one dtype; inverse [C, H, N] float32: 1 / n times the
    weight of the head; sizes: block sizes (default: tuning.choose).
    """
    targets, regulators = signed.shape
    if not (targets and regulators and len(q)):
        return
    padding = -q.shape[-1] % ROW_STEP
    q, k = (aligned(F.pad(x, (0, padding)) if padding else x) for x in (q, k))
    inverse = inverse.contiguous()
    width = padded_width(q.shape[-1])
    sizes = sizes or choose_block_sizes("edge_sums", q, width)
    magnitudes = signed if absolute is None else absolute
    with torch.cuda.device_of(q):  # kernels start on the current device
        start(
            edge_sums,
            (cdiv(targets, sizes.own), cdiv(regulators, sizes.other)),
            {
                "q": descriptor(q, sizes.own),
                "k": descriptor(k, sizes.other),
                "inverse": inverse,
                "inverse_bag": inverse.stride(0),
                "inverse_head": inverse.stride(1),
                "signed": signed,
                "signed_row": signed.stride(0),
                "absolute": magnitudes,
                "absolute_row": magnitudes.stride(0),
                "bags": q.shape[0],
                "heads": q.shape[1],
                "key_heads": k.shape[1],
                "targets": targets,
                "regulators": regulators,
                "E_PAD": width,
                "TARGETS": sizes.own,
                "REGULATORS": sizes.other,
                "STAGES": sizes.stages,
                "PRECISION": precision(q.dtype),
                "ABSOLUTE": absolute is not None,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )
