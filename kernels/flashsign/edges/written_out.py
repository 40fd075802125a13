"""Edge sums of attention by other normalisers: the weights of one bag at a time are written out and added.

Softmax and squared ReLU are not linear in the keys, so that no norm known beforehand makes a weight of a product, as
EdgeSums has it for spherical attention. Letters as there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashsign.edges.edge_sums import EdgeSums
from flashsign.edges.parts import EdgeCall
from flashsign.reference import Normaliser, normalised_weights


class WrittenOutSums(EdgeSums):
    """EdgeSums of the weights of `normalised_attention`: the same tables and means. In memory: H n m weights of a bag.

    Example:
        >>> import torch
        >>> from flashsign.edges.written_out import WrittenOutSums
        >>> q, k = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8)  # cells, heads, genes, width
        >>> sums = WrittenOutSums(3, 5, normaliser="softmax").add(q, k)
        >>> torch.allclose(sums.mean().absolute.sum(1), torch.ones(3))
        True
    """

    def __init__(self, targets: int | range, regulators: int, *, normaliser: Normaliser, **options: Any):
        super().__init__(targets, regulators, **options)
        self.normaliser = normaliser

    def add(
        self,
        q: Tensor,
        k: Tensor,
        multiplicity: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
        query_offsets: Tensor | None = None,
        targets: Tensor | None = None,
        regulators: Tensor | None = None,
        heads: Tensor | None = None,
        eps: float = 1e-6,
        **_: object,
    ) -> WrittenOutSums:
        """Adds the weights of some bags; arguments as for EdgeSums.add. Raises ShapeMismatch."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        call = EdgeCall.of(q, k, multiplicity, offsets, query_offsets, targets, regulators, None, heads, eps, dtype)
        # Packed calls have both: EdgeCall.of refuses them otherwise.
        rows = torch.arange(q.shape[-2], device=q.device) if call.targets is None else call.targets
        columns = torch.arange(k.shape[-2], device=q.device) if call.regulators is None else call.regulators
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            if call.offsets is None or call.query_offsets is None:
                for q_k_m in zip(call.q, call.k, call.multiplicity, strict=True):
                    self._add_bag(*q_k_m, rows, columns, call)
                return self
            keys: list[int] = call.offsets.tolist()
            queries: list[int] = call.query_offsets.tolist()
            for bag in range(len(keys) - 1):
                of_keys, own = slice(keys[bag], keys[bag + 1]), slice(queries[bag], queries[bag + 1])
                m = call.multiplicity[of_keys]
                m = m if m.ndim == 1 else m.mT
                q_k = call.q[own].transpose(0, 1), call.k[of_keys].transpose(0, 1)
                self._add_bag(*q_k, m, rows[own], columns[of_keys], call)
        return self

    def _add_bag(self, q: Tensor, k: Tensor, m: Tensor, rows: Tensor, columns: Tensor, call: EdgeCall) -> None:
        """q [H, n, E], k [K, m, E], m [m] or [K, m]; rows [n] and columns [m]: numbers in the sums, or others."""
        q, k, m = (x.to(call.dtype)[None] for x in (q, k, m))
        weights = normalised_weights(q, k, m, self.normaliser, call.eps)[0]
        weights = weights * call.head_weights.to(weights)[:, None, None]
        rows = rows - self.targets.start
        queries = ((rows >= 0) & (rows < len(self.targets))).nonzero()[:, 0]
        keys = ((columns >= 0) & (columns < self.signed.shape[1])).nonzero()[:, 0]
        rows, columns = rows[queries], columns[keys]
        weights = weights[:, queries][:, :, keys]
        place = rows[:, None], columns
        self.signed[place] += weights.sum(0).to(self.signed)
        if self.absolute is not None:
            self.absolute[place] += weights.abs().sum(0).to(self.signed)
        self.listed[rows] += 1
        if self.pairs is not None:
            self.pairs[place] += (m[0] > 0).reshape(-1, k.shape[2]).any(0)[keys].int()
