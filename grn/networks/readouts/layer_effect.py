"""What the messages of one layer do to the predictions directly, with a sign that no flip changes.

A head sends w_ij v_j from key j to query i; its output matrix O turns that into a part of the vector of gene i, which
the later layers pass on beside what they add, and the read-out r_i makes a prediction of it:

    effect_ij = w_ij <O v_j, r_i diag(norm) / rms_i>         in sds of the target

The norm of the last vector is held constant, as that of the weights is in the effect of the regulation layers. Signs of
(q, o), of (k, v) and of (v, o) may flip in training, and each flip changes two of the factors: the effect stays. What
later layers read of the vector and do with it is left out.

Letters: N genes, R regulators, V genes of the vocabulary, H query heads, E head width, T tokens and S keys of a bag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from flashsign.reference import normalised_weights
from grn.bags import Bags
from grn.model.layout import Layout
from grn.model.transformer import Attention, Model


@torch.no_grad()
def layer_effects(
    model: Model, bags: Iterable[Bags], regulators: np.ndarray, layer: int, head: int | None = None
) -> np.ndarray:
    """[N, R], float32: the mean effect over the cells whose bags list the target; 0 where none does.

    regulators [R]: positions among the genes.   layer: number of a block.   head: of this query head; None: the sum of
    all of them, which is the effect of the layer. An absent regulator has none. Memory: H x T x S numbers.
    """
    device, genes = model.sd.device, len(model.is_regulator)
    column = torch.full((genes + 1,), -1, device=device)  # the basal gene is the last, and no column
    column[torch.as_tensor(regulators, device=device)] = torch.arange(len(regulators), device=device)
    total = torch.zeros(genes, len(regulators), device=device)
    cells = torch.zeros(genes + 1, device=device)
    for batch in bags:
        for targets, keys, effect in _effects_of_cells(model, batch, layer, head):
            cells[targets] += 1
            of_genes, read = (targets < genes).nonzero()[:, 0], (column[keys] >= 0).nonzero()[:, 0]
            found = effect[of_genes[:, None], read]
            total.index_put_((targets[of_genes, None], column[keys[read]]), found.float(), accumulate=True)
    return (total / cells[:-1, None].clamp(min=1)).cpu().numpy()


def _effects_of_cells(
    model: Model, bags: Bags, layer: int, head: int | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each cell: the genes of its queries [T] and of its keys [S] (V: the basal gene), and effects [T, S]."""
    bags = bags.pack()
    layout = Layout.of(bags, model.is_regulator)
    assert layout.offsets is not None and layout.key_offsets is not None
    seen: dict[int, tuple[Tensor, ...]] = {}
    tokens, _ = model.encode(bags, layout, lambda number, *inputs: seen.update({number: inputs}))
    q, k, v, multiplicity = seen[layer]  # [T, H, E], [S, key heads, E] twice, [S]
    attention: Attention = model.blocks[layer].attention  # type: ignore[assignment, union-attr]

    rows = layout.embedding_rows
    of_keys = rows if layout.keys is None else rows[layout.keys]
    inverse_norm = (tokens.square().mean(-1, keepdim=True) + torch.finfo(tokens.dtype).eps).rsqrt()
    read_out = model.multiplicity[rows.clamp(max=len(model.multiplicity) - 1)] * model.norm.weight * inverse_norm
    by_output = (read_out @ attention.output.weight).unflatten(-1, (attention.query_heads, -1))
    k, v = (x.repeat_interleave(attention.query_heads // attention.key_heads, 1) for x in (k, v))
    chosen = slice(None) if head is None else slice(head, head + 1)
    q, by_output, k, v = (x[:, chosen].transpose(0, 1) for x in (q, by_output, k, v))  # [H, T or S, E]
    starts, key_starts = layout.offsets.tolist(), layout.key_offsets.tolist()
    for own, read in zip(map(slice, starts, starts[1:]), map(slice, key_starts, key_starts[1:]), strict=True):
        of_cell = (q[None, :, own], k[None, :, read], multiplicity[None, read])
        weights = normalised_weights(*of_cell, attention.normaliser, attention.eps)[0]
        yield rows[own], of_keys[read], (weights * (by_output[:, own] @ v[:, read].mT)).sum(0)
