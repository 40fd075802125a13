"""The blocks' attention: the mean size |w_ij| of the normalised weight w_ij = s_ij / n_i, over heads and cells, layer
by layer.

The sign of w means nothing: changing the signs of W_k and W_v (or of W_q and W_o) of a head changes no prediction and
the sign of every weight of the head, so a mean of signed weights over heads depends on the signs that training ended
with. The mean is over the cells whose bags list the target; the weight of an absent regulator is 0.

Memory: `attention_layers` holds 2 L x N x R numbers on the model's device and L x N x R as arrays, 1.6 GB a table of
20 000 genes and regulators. `strongest_attention` holds TABLE numbers and L x N x top_k edges, and reads the cells
once for every range of targets.
Letters: L blocks, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from flashsign import EdgeSums
from flashsign.edges.written_out import WrittenOutSums
from grn.bags import Bags
from grn.model.layout import Layout
from grn.model.transformer import EPS, Model
from grn.networks.weights import strongest, without_self

TABLE = 2**29  # most numbers of all blocks' tables at once: 2 GiB in float32


def attention_layers(model: Model, bags: Iterable[Bags], regulators: np.ndarray) -> list[np.ndarray]:
    """[N, R] for each block: the mean of |w| over heads and over the cells of the bags, dense or packed."""
    sums = layer_sums(model, bags, regulators, range(len(model.is_regulator)), absolute=True)
    return [without_self(_means(sums.pop(0)), regulators) for _ in model.blocks]


def strongest_attention(
    model: Model, replay: Callable[[], Iterable[Bags]], regulators: np.ndarray, top_k: int
) -> list[sp.csr_matrix]:
    """[N, R] for each block, and last for their mean: the top_k weights of each row of `attention_layers`.

    replay: gives the same bags at every call; it is called once for each range of targets.
    """
    genes, tables = len(model.is_regulator), len(model.blocks) + 1
    rows = max(1, TABLE // (2 * tables * len(regulators)))  # of each block, w and |w|
    found: list[list[sp.csr_matrix]] = [[] for _ in range(tables)]
    for start in range(0, genes, rows):
        targets = range(start, min(start + rows, genes))
        means = [_means(sums) for sums in layer_sums(model, replay(), regulators, targets, absolute=True)]
        own = np.flatnonzero((regulators >= targets.start) & (regulators < targets.stop))
        for weight in means:
            weight[regulators[own] - start, own] = 0
        for kept, weight in zip(found, [*means, np.mean(means, axis=0)], strict=True):
            target, column = strongest(weight, top_k).nonzero()
            kept.append(sp.csr_matrix((weight[target, column], (target, column)), shape=weight.shape))
    return [sp.vstack(kept, format="csr") for kept in found]


def layer_sums(
    model: Model,
    bags: Iterable[Bags],
    regulators: np.ndarray,
    targets: range,
    *,
    layer: int | None = None,
    head: int | None = None,
    absolute: bool = False,
) -> list[EdgeSums]:
    """The sum of the signed weights of each block over the bags, for some of the targets.

    layer: of this block alone.   head: of this head alone; None: the mean over heads.   absolute: also of their sizes.
    """
    device, genes = model.sd.device, len(model.is_regulator)
    layers = range(len(model.blocks)) if layer is None else [layer]
    normaliser = model.config.attention
    kind = EdgeSums if normaliser == "spherical" else partial(WrittenOutSums, normaliser=normaliser)
    sums = [kind(targets, len(regulators), absolute=absolute, pairs=False, device=device) for _ in layers]
    heads = None
    if head is not None:
        heads = torch.zeros(model.config.query_heads, device=device)
        heads[head] = 1
    column = torch.full((genes + 1,), -1, device=device)  # the basal gene is the last, and no column
    column[torch.as_tensor(regulators, device=device)] = torch.arange(len(regulators), device=device)

    with torch.no_grad():
        for batch in bags:
            layout = Layout.of(batch, model.is_regulator)
            queries = layout.embedding_rows
            keys = column[queries if layout.keys is None else queries[layout.keys]]
            packing = {"offsets": layout.key_offsets, "query_offsets": layout.offsets, "targets": queries}

            def observe(number: int, q: Tensor, k: Tensor, _: Tensor, m: Tensor, keys=keys, packing=packing) -> None:
                if number in layers:
                    of_layer = sums[layers.index(number)]
                    of_layer.add(q, k, m, regulators=keys, heads=heads, eps=EPS, **packing)

            model(batch, observe=observe)
    return sums


def _means(sums: EdgeSums) -> np.ndarray:
    """The means of |w|, [N, R]; 0 for a target that no cell lists."""
    absolute = sums.mean(over="targets").absolute
    assert absolute is not None
    return np.nan_to_num(absolute.cpu().numpy(), copy=False)
