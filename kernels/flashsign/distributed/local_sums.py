"""What one rank computes of a gene-parallel call: the sums of its keys and queries, its outputs and its gradients.

Letters: C cells, H query heads, K key heads, N queries and M keys of this rank, E head width, V width of values;
B = C K bags of one key head, B' of them in a part. Equations: kernels/README.md, "Moments" and "Gene parallelism".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign.eager.dense import zero_nonfinite_absent_keys
from flashsign.eager.moments import Moments, bags_with_rows

CHUNK = 1024
"""Rows of one matrix product: a sum over more rows is made of several products, which a GPU computes in parallel."""

IllConditionedRows = list[tuple[int, Tensor]]
"""Bags with ill-conditioned rows (eager.moments.ILL_CONDITIONED), and which rows of the bag these are."""


class Part(NamedTuple):
    """This rank's rows of some bags, padded to one length.

    bags [B']: their numbers, below B; q [B', N, E]; k [B', M, E] and v [B', M, V], not scaled; m [B', M, 1], 0 for
    padding.
    """

    bags: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor

    @classmethod
    def of(cls, cells: Tensor, q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor) -> Part:
        """The dense tensors of the cells numbered cells [C']; all query heads of a key head become queries of one bag.

        q [C', H, N, E], k [C', K, M, E], v [C', K, M, V], multiplicity [C', M] or [C', K, M].
        """
        heads, key_heads, keys, width = q.shape[1], *k.shape[1:]
        m = (multiplicity if multiplicity.ndim == 3 else multiplicity[:, None])[..., None]
        k, v = zero_nonfinite_absent_keys(k, v, m)
        bags = (cells[:, None] * key_heads + torch.arange(key_heads, device=cells.device)).flatten()
        return cls(
            bags,
            q.reshape(len(bags), heads // key_heads * q.shape[2], width),
            k.reshape(len(bags), keys, width),
            v.reshape(len(bags), keys, v.shape[-1]),
            m.expand(-1, key_heads, -1, -1).reshape(len(bags), keys, 1),
        )


def key_sums(part: Part) -> Tensor:
    """(A, G) of this rank's own keys, side by side: [B', E, V + E], float64."""
    # The product of two float32 numbers is exact in float64, so m k is not rounded: ill-conditioned rows need it exact.
    scaled = part.m.double() * part.k
    rows = in_chunks(torch.cat((part.v, scaled), -1))
    return (rows[..., part.v.shape[-1] :].mT @ rows).sum(1, dtype=torch.float64)


def in_chunks(rows: Tensor) -> Tensor:
    """rows [B, M, F] -> [B, chunks, L, F] with L at most CHUNK, padded with zeros."""
    bags, count, width = rows.shape
    chunks = max(1, -(-count // CHUNK))
    length = -(-count // chunks)
    if chunks * length > count:
        rows = F.pad(rows, (0, 0, 0, chunks * length - count))
    return rows.reshape(bags, chunks, length, width)


def in_a_unit(sums: Tensor) -> tuple[Tensor, Moments]:
    """The unit [B, 1, 1], a factor on multiplicities that brings t into [1/4, 1), and the moments in this unit.

    sums [B, E, V + E] float64: (A, G) of all ranks. The unit is a power of two, so the outputs have the same bits
    whatever power of two multiplies all multiplicities. In it the moments fit float32, and tiny, the one term of the
    norm that does not scale, is negligible. It depends on the total only, so it is the same on all ranks.
    """
    a, g = sums.tensor_split((sums.shape[-1] - sums.shape[-2],), -1)
    root = Moments(a, g).trace.sqrt()[:, None, None]
    mantissa, _ = torch.frexp(root)
    unit = torch.where(root > 0, mantissa / root, 1)
    return unit, Moments(a * unit, g * unit * unit)


def attend(q: Tensor, total: Moments, eps: float) -> tuple[Tensor, Tensor, IllConditionedRows]:
    """Outputs o [B', N, V] and 1 / n [B', N, 1] of q [B', N, E], in q's dtype, and the ill-conditioned rows.

    total: float64 moments of all ranks' keys. Ill-conditioned rows are computed from them in float64, because streaming
    would need the keys of other ranks. Float64 rows with rho below 2e-13 keep an error of 0.13 u / max(rho, eps).
    """
    o, inverse, ill_conditioned = Moments(total.a.to(q.dtype), total.g.to(q.dtype)).attend(q, eps)
    found = list(bags_with_rows(ill_conditioned))
    for bag, rows in found:
        wide = Moments(total.a[bag, None], total.g[bag, None]).attend(q[bag, rows][None].double(), eps)
        o[bag, rows], inverse[bag, rows] = (part[0].to(q.dtype) for part in wide[:2])
    return o, inverse, found


class Rows(NamedTuple):
    """What gradients of queries need beside the moments, in one dtype: grad (do) and o [B', N, V], q [B', N, E], and
    1 / n [B', N, 1]."""

    grad: Tensor
    q: Tensor
    o: Tensor
    inverse: Tensor


def query_gradients(
    rows: Rows, ill_conditioned: IllConditionedRows, total: Moments, eps: float
) -> tuple[Tensor, Tensor]:
    """dq [B', N, E], and (dA, 2 dG) of this rank's own queries, side by side, [B', E, V + E] float64.

    total: float64 moments of all ranks' keys. Ill-conditioned rows are differentiated in float64, the others in their
    own dtype.
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
    c = (g * o).sum(-1, keepdim=True) * inverse
    width = q.shape[-1]
    both = torch.cat((g, -c * q), -1)
    sums = (in_chunks(q).mT @ in_chunks(both)).sum(1, dtype=torch.float64)
    # A view of the diagonal of 2 dG, whose sum is -sum_i c_i |q_i|^2.
    diagonal = sums[..., -width:].diagonal(dim1=-2, dim2=-1)
    diagonal += eps * diagonal.sum(-1, keepdim=True)
    floor = torch.diag_embed((eps * total.trace)[:, None].expand(-1, width))
    return both @ torch.cat((total.a.mT, total.g + floor), -2), sums


def key_gradients(part: Part, sums: Tensor, unit: Tensor, wants_m: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """dk [B', M, E], dv [B', M, V] and dm [B', M, 1], in the dtypes of the part's tensors; dm is None unless wants_m.

    sums [B', E, V + E] float64: (dA, 2 dG) of all ranks; unit [B', 1, 1]: of multiplicities (in_a_unit).
    dk' = v dA^T + 2 k' dG,  dv = k' dA,  dk = m dk',  dm = <dk', k>.
    """
    d_a, twice_d_g = sums.tensor_split((part.v.shape[-1],), -1)
    m = part.m.double() * unit
    scaled = m * part.k
    d_scaled = torch.baddbmm(part.v.double() @ d_a.mT, scaled, twice_d_g)
    # Multiplicities are mostly data, which needs no gradient, and theirs costs as much as another product.
    d_m = (unit * (d_scaled * part.k).sum(-1, keepdim=True)).to(part.m.dtype) if wants_m else None
    return (m * d_scaled).to(part.k.dtype), (scaled @ d_a).to(part.v.dtype), d_m
