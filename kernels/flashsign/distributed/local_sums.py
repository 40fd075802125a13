"""What one process computes of a call whose genes are split: its keys' and queries' sums, its outputs, its gradients.

Letters: C cells, H query heads, K key heads, N queries and M keys of this rank, E head width; B = C K bags of one key
head, B' of them in a part. Equations: kernels/README.md, "Moments" and "Genes over devices".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign.eager.dense import zero_nonfinite_absent_keys
from flashsign.eager.moments import Moments, bags_with_rows

CHUNK = 1024
"""Rows of one product of a sum over rows: a GPU works on many in parallel, and on the rows of one in sequence."""

IllConditionedRows = list[tuple[int, Tensor]]
"""Bags with rows whose norms float32 moments lose (eager.moments.ILL_CONDITIONED), and where in the bag they are."""


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


def key_sums(part: Part) -> Tensor:
    """(A, G) of this rank's own keys, side by side: [B', E, 2E], float64."""
    # A product of two float32 is exact in float64: what ill-conditioned rows lose to a rounded m k is never lost here.
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
    """Outputs o [B', N, E], 1 / n [B', N, 1] and the ill-conditioned rows, of q [B', N, E], in q's dtype.

    total is float64. Ill-conditioned rows, whose norms float32 moments lose, take it as it is, as their keys are
    elsewhere. A float64 row with rho below 2e-13 has nothing better and keeps an error of 0.13 u / max(rho, eps).
    """
    o, inverse, ill_conditioned = Moments(total.a.to(q.dtype), total.g.to(q.dtype)).attend(q, eps)
    found = list(bags_with_rows(ill_conditioned))
    for bag, rows in found:
        wide = Moments(total.a[bag, None], total.g[bag, None]).attend(q[bag, rows][None].double(), eps)
        o[bag, rows], inverse[bag, rows] = (part[0].to(q.dtype) for part in wide[:2])
    return o, inverse, found


class Rows(NamedTuple):
    """What a query's gradient needs beside the totals: do, q, o [B', N, E] and 1 / n [B', N, 1], in one dtype."""

    grad: Tensor
    q: Tensor
    o: Tensor
    inverse: Tensor


def query_gradients(
    rows: Rows, ill_conditioned: IllConditionedRows, total: Moments, eps: float
) -> tuple[Tensor, Tensor]:
    """dq [B', N, E], and (dA, 2 dG) of this rank's own queries, side by side [B', E, 2E] in float64.

    Ill-conditioned rows are differentiated in float64, like total, the others in their own dtype.
    """
    dtype = rows.q.dtype
    inverse = rows.inverse.clone() if ill_conditioned else rows.inverse
    for bag, row in ill_conditioned:
        inverse[bag, row] = 0
    d_q, sums = _row_gradients(rows._replace(inverse=inverse), Moments(total.a.to(dtype), total.g.to(dtype)), eps)
    for bag, row in ill_conditioned:
        wide = Rows(*(x[bag, row][None].double() for x in rows))
        d_rows, more = _row_gradients(wide, Moments(total.a[bag, None], total.g[bag, None]), eps)
        d_q[bag, row] = d_rows[0].to(dtype)
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
    # Multiplicities are mostly data, and their gradient costs as much as another product.
    d_m = (unit * (d_scaled * part.k).sum(-1, keepdim=True)).to(part.m.dtype) if wants_m else None
    return (m * d_scaled).to(part.k.dtype), (scaled @ d_a).to(part.v.dtype), d_m
