"""The networks of the paper: what genes read of genes in each layer, the mean over cells.

    w_ij = m_j q_i . k_j / n_i

m_j: the size of the multiplicity, so that the sign is that of q_i . k_j.

A positive weight is what the paper calls up-regulation. Nothing fixes that sign: a flip of queries
and outputs, or of keys and values, leaves every output of the model as it is and turns all weights
of a head. So these networks are read as they are, and no edge of them is called certain. Of the
last layer, the identity token alone asks: its weights say how much each gene counts for the type.

Letters: C cells, N genes, P members, H heads, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from torch import Tensor

from flashsign import EdgeSums
from grn.bags import Tokens
from grn.cells.cells import Cells
from grn.cells.genes.programmes import with_programme
from grn.edges.weights import strongest
from grn.model.transformer import Transformer
from grn.networks.run_files import square_matrix

CELLS = 64  # that are read at a time
MOST = 512  # cells of a type that are read: a mean weight settles soon
SIGN = "of q . k, which nothing fixes: a head may have all its signs turned; no edge is certain"
CERTAIN = (
    "No edge is certain. These are attention weights of a transformer that has learned cell types "
    "alone: they say which genes it read together, not what regulates what. On cells with a "
    "planted network they rank edges at chance."
)
DEFINITION = (
    "The attention weight of the target's token on the regulator's, m q . k over the norm of its "
    "row: the mean over the cells that have both, over heads, over members of the ensemble (sd: "
    "over these) and over layers."
)


@dataclass(frozen=True)
class Attention:
    """Mean weights over cells with which genes and the identity token read genes.

    layers: of each layer but the last, the mean weights [N, N] over cells, heads and members:
        row = target, column = regulator.
    sd: over members, of their mean over layers.
    cells: how many of those that were read have both genes.
    identity [N]: mean weights of the identity token on the genes, in the last layer.
    """

    layers: tuple[np.ndarray, ...]
    sd: np.ndarray
    cells: np.ndarray
    identity: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Over the layers."""
        return np.mean(self.layers, 0) if self.layers else np.zeros_like(self.cells, np.float32)


@torch.no_grad()
def read_attention(reader: Transformer, cells: Cells, rows: np.ndarray) -> Attention:
    """Of the cells `rows`."""
    device, genes, members = reader.mean.device, reader.genes, reader.shape.members
    reader = reader.eval()
    last, width = len(reader.layers) - 1, reader.layers[0].head
    tables = [
        [EdgeSums(genes, genes, absolute=False, device=device) for _ in range(members)]
        for _ in range(last)
    ]
    of_identity = EdgeSums(1, genes, absolute=False, device=device)
    for some in np.array_split(rows, max(1, -(-len(rows) // CELLS))):
        multiplicity = torch.as_tensor(cells.multiplicity[some].toarray(), device=device)
        tokens = Tokens.of(reader.strength(multiplicity, reader.standardised(multiplicity)))
        asked: list[tuple[Tensor, Tensor]] = []

        def watch(
            number: int, q: Tensor, k: Tensor, asked: list[tuple[Tensor, Tensor]] = asked
        ) -> None:
            asked.append((q, k))

        reader.read(tokens, watch)
        known = torch.where(tokens.gene < genes, tokens.gene, -1)  # the others count in norms alone
        first = torch.arange(len(tokens.offsets), device=device)
        for number, (q, k) in enumerate(asked):
            targets, offsets = (
                (known, tokens.offsets) if number < last else (torch.zeros_like(first[1:]), first)
            )
            for member in range(members):
                sums = tables[number][member] if number < last else of_identity
                sums.add(
                    q[member].unflatten(-1, (-1, width)),
                    k[member].unflatten(-1, (-1, width)),
                    tokens.multiplicity,
                    offsets=tokens.offsets,
                    query_offsets=offsets,
                    targets=targets,
                    regulators=known,
                )
    identity = of_identity.mean().signed[0].nan_to_num().cpu().numpy()
    if not last:
        nothing = np.zeros((genes, genes), np.float32)
        return Attention((), nothing, nothing, identity)
    means = torch.stack(
        [torch.stack([sums.mean().signed.nan_to_num() for sums in of]) for of in tables]
    )
    means.diagonal(dim1=-2, dim2=-1).zero_()
    spread = means.mean(0).std(0) if members > 1 else torch.zeros_like(means[0, 0])
    together = tables[0][0].pairs
    assert together is not None, "these sums count pairs"
    return Attention(
        tuple(means.mean(1).cpu().numpy()), spread.cpu().numpy(), together.cpu().numpy(), identity
    )


def some_of(rows: np.ndarray, seed: int) -> np.ndarray:
    """At most MOST of the rows, sorted."""
    return np.sort(np.random.default_rng(seed).permutation(rows)[:MOST])


def edges_of_attention(
    found: Attention, genes: tuple[str, ...], top_k: int | None, least_cells: int
) -> pd.DataFrame:
    """Return the edges of the strongest top_k regulators of each target by |weight|.

    The columns are source, target, weight (the mean over layers), sd, q_value, programme and cells,
    of pairs that so many cells have. Every q-value is 1: nothing tells these edges from chance.
    """
    weight = np.where(found.cells >= least_cells, found.mean, 0)
    target, source = (strongest(weight, top_k) & (weight != 0)).nonzero()
    order = np.argsort(-np.abs(weight[target, source]), kind="stable")
    target, source = target[order], source[order]
    names = np.asarray(genes, dtype=object)
    table = {"source": names[source], "target": names[target], "weight": weight[target, source]}
    table |= {
        "sd": found.sd[target, source],
        "q_value": np.float32(1.0),
        "cells": found.cells[target, source],
    }
    return with_programme(pd.DataFrame(table))


def layer_matrices(
    found: Attention, top_k: int | None, least_cells: int
) -> dict[str, sp.csr_matrix]:
    """`grn`, the mean over layers, and `grn_layer<i>` of each."""
    every, seen = np.arange(len(found.cells)), found.cells >= least_cells
    named = {"grn": found.mean} | {
        f"grn_layer{number}": table for number, table in enumerate(found.layers)
    }
    return {
        name: square_matrix(
            np.where(strongest(np.where(seen, table, 0), top_k) & seen, table, 0), every
        )
        for name, table in named.items()
    }
