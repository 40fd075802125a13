"""Spherical attention of bags whose genes are split over devices: the moments of the keys travel, never the keys.

Letters: C cells, H query heads, K key heads, N queries and M keys of this rank, E head width; packed: T queries and S
keys of this rank. B = C K bags of one key head, B' of them in a part.
Equations: kernels/README.md, "Moments" and "Genes over devices". Source: spherical attention, arXiv 2505.09326.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from flashsign.eager.dense import zero_nonfinite_absent_keys
from flashsign.eager.moments import Moments, bags_with_rows
from flashsign.eager.packing import groups_of_bags, unpad_in_order
from flashsign.eager.transforms import in_batches, transformed

CHUNK = 1024
"""Rows of one product of a sum over rows: a GPU works on many side by side, and goes down a long one row by row."""

IllConditionedRows = list[tuple[int, Tensor]]
"""Bags with rows whose norm float32 moments cannot tell (eager.moments.WEAK), and where in the bag these rows are."""

ONE_DERIVATIVE = (
    "Attention over genes split by a group can be differentiated once, in reverse, as every further derivative would "
    "need collectives of its own: leave forward mode, torch.func, batched and second derivatives to calls without one."
)


class Part(NamedTuple):
    """This rank's rows of some bags, padded to one length.

    bags [B'] (numbers below B), q [B', N, E], k and v [B', M, E] (as they came), m [B', M, 1], 0 where nothing is.
    """

    bags: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor

    @classmethod
    def of(cls, cells: Tensor, q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor) -> Part:
        """The dense tensors of the cells [C'] (forms: spherical_attention); a group's query heads are more queries."""
        heads, key_heads, keys, width = q.shape[1], *k.shape[1:]
        m = (multiplicity if multiplicity.ndim == 3 else multiplicity[:, None])[..., None]
        k, v = zero_nonfinite_absent_keys(k, v, m)
        bags = (cells[:, None] * key_heads + torch.arange(key_heads, device=cells.device)).flatten()
        return cls(
            bags,
            q.reshape(len(bags), heads // key_heads * q.shape[2], width),
            k.reshape(len(bags), keys, width),
            v.reshape(len(bags), keys, width),
            m.expand(-1, key_heads, -1, -1).reshape(len(bags), keys, 1),
        )


def gene_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
    group: distributed.ProcessGroup,
) -> Tensor:
    """Spherical attention of this rank's queries to the keys of all ranks of `group`; packed where it has offsets.

    q [C, H, N, E], k, v [C, K, M, E], multiplicity [C, M] or [C, K, M] -> [C, H, N, E], or packed as below, in one
    dtype, float32 or float64. N and M (T and S) are this rank's own; C, H, K, E and eps are the same on all ranks,
    which nothing checks: it would cost another collective. Rules and errors: gene_parallel_moments.
    """
    if offsets is not None and query_offsets is not None:
        return gene_parallel_packed_attention(q, k, v, multiplicity, offsets, query_offsets, eps, group)
    part = Part.of(torch.arange(len(q), device=q.device), q, k, v, multiplicity)
    return gene_parallel_moments([part], len(part.bags), eps, group)[0].reshape(q.shape)


def gene_parallel_packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    offsets: Tensor,
    query_offsets: Tensor,
    eps: float,
    group: distributed.ProcessGroup,
) -> Tensor:
    """Packed bags, of which every rank has all C, each with this rank's rows.

    q [T, H, E], k, v [S, K, E], multiplicity [S] or [S, K]; offsets, query_offsets [C + 1] cut this rank's rows
    -> [T, H, E]. Raises ShapeMismatch when they do not cut them exactly; otherwise as gene_parallel_moments.
    """
    similar = list(groups_of_bags(offsets, query_offsets, len(k), len(q)))
    parts = [Part.of(some.bags, *some.dense(q, k, v, multiplicity)) for some in similar]
    # Ranks make different parts of the same bags, so all parts share one collective.
    found = gene_parallel_moments(parts, (len(offsets) - 1) * k.shape[1], eps, group)
    forms = [(len(some.bags), q.shape[1], some.queries.row.shape[1], q.shape[2]) for some in similar]
    outputs = (output.reshape(form) for output, form in zip(found, forms, strict=True))
    return unpad_in_order(zip(similar, outputs, strict=True), q)


def gene_parallel_moments(
    parts: Sequence[Part], bags: int, eps: float, group: distributed.ProcessGroup
) -> tuple[Tensor, ...]:
    """Outputs [B', N, E] of every part's queries, from the moments of the keys of all ranks.

    One all-reduce (sum) of [B, E, 2E] in float64 forward, (A, G), and one backward, (dA, 2 dG): nothing else travels.
    float64 moments need neither a common unit of multiplicity beforehand (a float32's fourth power fits, so the unit is
    read off the total trace afterwards) nor the keys of other ranks for weak rows, which read them directly.

    Gradients are those of the sum of all ranks' losses with respect to this rank's tensors. Those of a parameter that
    several ranks use are each rank's share: the caller sums them over the group (sums: an average is too small).

    Every rank of the group makes the same calls in the same order, and the same backward passes through them:
    `backward()`, or `autograd.grad` with respect to at least one of its q, k, v, multiplicity. So does a rank without
    genes, or whose tensors need no gradient: its queries and its turn in the collective belong to the others'
    gradients, which is why, with gradients enabled, the output always requires one. A rank that stays away or raises
    leaves the others waiting until the group's timeout.

    Raises ValueError outside of the group, NotImplementedError for anything but one derivative in reverse.
    """
    check_member(group)
    refuse_transforms()
    if not parts:
        return ()
    # What wants no gradient would otherwise leave this rank without a node in the graph, hence out of the collective.
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
    tensors = [tensor for part in parts for tensor in part[1:]]
    outputs: tuple[Tensor, ...] = _GeneParallelMoments.apply(  # type: ignore[no-untyped-call]
        anchor, [part.bags for part in parts], bags, eps, group, *tensors
    )
    return outputs


def check_member(group: distributed.ProcessGroup) -> None:
    if distributed.get_rank(group) < 0:
        raise ValueError("This process is not in the group: only a group's own ranks may call attention with it.")


def refuse_transforms() -> None:
    if transformed():
        raise NotImplementedError(ONE_DERIVATIVE)


class _GeneParallelMoments(torch.autograd.Function):
    """One node for all parts of a call and all of its tensors, so that whichever is differentiated, it runs once."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        places: list[Tensor],
        bags: int,
        eps: float,
        group: distributed.ProcessGroup,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        parts = [Part(place, *four) for place, four in zip(places, _fours(tensors), strict=True)]
        width = tensors[0].shape[-1]
        sums = tensors[0].new_zeros(bags, width, 2 * width, dtype=torch.float64)
        for part in parts:
            sums[part.bags] = key_sums(part)
        _sum_over_ranks(sums, group)
        unit, total = in_a_unit(sums)
        found = [attend(part.q, _pick(total, part.bags), eps) for part in parts]
        outputs, inverses, ctx.weaks = zip(*found, strict=True)
        ctx.save_for_backward(*tensors, *places, *outputs, *inverses, unit, *total)
        ctx.eps, ctx.group, ctx.count = eps, group, len(parts)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or transformed() or any(map(in_batches, grads)):
            raise NotImplementedError(ONE_DERIVATIVE)
        count, saved = ctx.count, ctx.saved_tensors  # looked at once: checkpointing allows no more
        tensors, rest = saved[: 4 * count], saved[4 * count :]
        places, outputs, inverses = (rest[i * count : (i + 1) * count] for i in range(3))
        unit, total = rest[-3], Moments(*rest[-2:])
        parts = [Part(place, *four) for place, four in zip(places, _fours(tensors), strict=True)]
        with torch.autocast(unit.device.type, enabled=False):
            sums, d_queries = torch.zeros_like(torch.cat(total, -1)), []
            for part, grad, o, inverse, weak in zip(parts, grads, outputs, inverses, ctx.weaks, strict=True):
                rows, own = Rows(grad, part.q, o, inverse), _pick(total, part.bags)
                d_q, sums[part.bags] = query_gradients(rows, weak, own, ctx.eps)
                d_queries.append(d_q)
            _sum_over_ranks(sums, ctx.group)
            wanted = ctx.needs_input_grad[-4 * count :][3::4]
            d_keys = [
                key_gradients(part, sums[part.bags], unit[part.bags], wants_m)
                for part, wants_m in zip(parts, wanted, strict=True)
            ]
        found = (d for d_q, d_k in zip(d_queries, d_keys, strict=True) for d in (d_q, *d_k))
        return None, None, None, None, None, *found


def key_sums(part: Part) -> Tensor:
    """(A, G) of this rank's own keys, side by side: [B', E, 2E], float64."""
    # A product of two float32 is exact in float64: what weak rows lose to a rounded m k is never lost here.
    scaled = part.m.double() * part.k
    rows = in_chunks(torch.cat((part.v, scaled), -1))
    return (rows[..., part.v.shape[-1] :].mT @ rows).sum(1, dtype=torch.float64)


def in_chunks(rows: Tensor) -> Tensor:
    """rows [B, M, F] -> [B, chunks, L, F] with L at most CHUNK; what M leaves open is zero."""
    bags, count, width = rows.shape
    chunks = max(1, -(-count // CHUNK))
    length = -(-count // chunks)
    if chunks * length > count:
        rows = F.pad(rows, (0, 0, 0, chunks * length - count))
    return rows.reshape(bags, chunks, length, width)


def in_a_unit(sums: Tensor) -> tuple[Tensor, Moments]:
    """The factor [B, 1, 1] on multiplicities that takes t into [1/4, 1), and the moments in it; sums [B, E, 2E].

    A power of two, so that no output bit knows whether the multiplicities came in thousands or thousandths; then the
    moments fit float32, and tiny, the one term of the norm that does not scale, is small beside all others. It comes
    from the total, hence is the same on all ranks.
    """
    a, g = sums.chunk(2, -1)
    root = Moments(a, g).trace.sqrt()[:, None, None]
    mantissa, _ = torch.frexp(root)
    unit = torch.where(root > 0, mantissa / root, 1)
    return unit, Moments(a * unit, g * unit * unit)


def attend(q: Tensor, total: Moments, eps: float) -> tuple[Tensor, Tensor, IllConditionedRows]:
    """Outputs o [B', N, E], 1 / n [B', N, 1] and the weak rows; q [B', N, E], in q's dtype; total is float64.

    Weak rows, whose norm float32 moments cannot tell, are attended in float64: their keys are elsewhere. A float64 row
    with rho below 2e-13 has nothing better and keeps an error of 0.13 u / max(rho, eps).
    """
    o, inverse, weak = Moments(total.a.to(q.dtype), total.g.to(q.dtype)).attend(q, eps)
    weak_rows = list(bags_with_rows(weak))
    for bag, rows in weak_rows:
        wide = Moments(total.a[bag, None], total.g[bag, None]).attend(q[bag, rows][None].double(), eps)
        o[bag, rows], inverse[bag, rows] = (part[0].to(q.dtype) for part in wide[:2])
    return o, inverse, weak_rows


class Rows(NamedTuple):
    """What a query's gradient needs beside the totals: do, q, o [B', N, E] and 1 / n [B', N, 1], in one dtype."""

    grad: Tensor
    q: Tensor
    o: Tensor
    inverse: Tensor


def query_gradients(rows: Rows, weak: IllConditionedRows, total: Moments, eps: float) -> tuple[Tensor, Tensor]:
    """dq [B', N, E], and (dA, 2 dG) of this rank's own queries, side by side [B', E, 2E] in float64.

    Weak rows are differentiated in float64, like total, the others in their own dtype.
    """
    dtype = rows.q.dtype
    inverse = rows.inverse.clone() if weak else rows.inverse
    for bag, place in weak:
        inverse[bag, place] = 0
    d_q, sums = _row_gradients(rows._replace(inverse=inverse), Moments(total.a.to(dtype), total.g.to(dtype)), eps)
    for bag, place in weak:
        wide = Rows(*(row[bag, place][None].double() for row in rows))
        d_rows, more = _row_gradients(wide, Moments(total.a[bag, None], total.g[bag, None]), eps)
        d_q[bag, place] = d_rows[0].to(dtype)
        sums[bag] += more[0]
    return d_q, sums


def _row_gradients(rows: Rows, total: Moments, eps: float) -> tuple[Tensor, Tensor]:
    """dq, in the dtype of rows and total, and (dA, 2 dG) in float64, with c = delta / n^2.

    dq_i = g_i A^T - c_i q_i (G + eps t I),  dA = sum_i q_i^T g_i,  2 dG = -sum_i c_i (q_i^T q_i + eps |q_i|^2 I).
    """
    grad, q, o, inverse = rows
    g = grad * inverse
    curve = (g * o).sum(-1, keepdim=True) * inverse
    width = q.shape[-1]
    both = torch.cat((g, -curve * q), -1)
    sums = (in_chunks(q).mT @ in_chunks(both)).sum(1, dtype=torch.float64)
    # A view of the diagonal of 2 dG; sum_i c_i |q_i|^2 is its sum.
    diagonal = sums[..., width:].diagonal(dim1=-2, dim2=-1)
    diagonal += eps * diagonal.sum(-1, keepdim=True)
    floor = torch.diag_embed((eps * total.trace)[:, None].expand(-1, width))
    return both @ torch.cat((total.a.mT, total.g + floor), -2), sums


def key_gradients(part: Part, sums: Tensor, unit: Tensor, wants_m: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """dk, dv [B', M, E] and dm [B', M, 1], like part's own, from (dA, 2 dG) of all ranks, [B', E, 2E] in float64.

    dk' = v dA^T + 2 k' dG,  dv = k' dA,  dk = m dk',  dm = <dk', k>, with multiplicities in the unit [B', 1, 1].
    """
    d_a, twice_d_g = sums.chunk(2, -1)
    m = part.m.double() * unit
    scaled = m * part.k
    d_scaled = torch.baddbmm(part.v.double() @ d_a.mT, scaled, twice_d_g)
    # Nobody trains multiplicities, and their gradient costs as much as another product.
    d_m = (unit * (d_scaled * part.k).sum(-1, keepdim=True)).to(part.m.dtype) if wants_m else None
    return (m * d_scaled).to(part.k.dtype), (scaled @ d_a).to(part.v.dtype), d_m


def _sum_over_ranks(sums: Tensor, group: distributed.ProcessGroup) -> None:
    """Every rank's sums become the total of all. Nothing travels for calls without bags, which are so on all ranks."""
    if sums.numel():
        distributed.all_reduce(sums, group=group)


def _pick(total: Moments, bags: Tensor) -> Moments:
    return Moments(total.a[bags], total.g[bags])


def _fours(tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """q, k, v, m of every part."""
    return [tensors[i : i + 4] for i in range(0, len(tensors), 4)]
