"""Which cells a network is read from, and which regulators are masked in each.

The prediction of a gene means something only where the model cannot read the gene itself. In every bag one group of
regulators is therefore masked, as in training; the groups rotate until each regulator has been a target several times.
Letters: C cells, R regulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch

from grn.bags import Bags
from grn.model.transformer import Model

ROUNDS = 2  # partitions of the regulators into groups: of ten, two regulators share both groups in 1 of 100 cases


@dataclass(frozen=True)
class Sample:
    """Cells of one cell type with the regulators masked in each: rows [B], masked [B, R] bool."""

    cell_type: int
    rows: np.ndarray
    masked: np.ndarray


def even_rows(labels: np.ndarray, cells: int, seed: int) -> np.ndarray:
    """About `cells` rows, spread as evenly over the cell types as they allow, at least one of each; sorted. All rows
    where there are no more than `cells`."""
    if cells >= len(labels):
        return np.arange(len(labels))
    generator = np.random.default_rng(seed)
    types = np.unique(labels)
    each = -(-cells // len(types))
    chosen = [generator.permutation(np.flatnonzero(labels == cell_type))[:each] for cell_type in types]
    return np.sort(np.concatenate(chosen))


def sample_cells(
    labels: np.ndarray, regulators: int, *, cells: int, fraction: float, batch: int, seed: int
) -> Iterator[Sample]:
    """About `cells` bags, an equal number for every cell type (-1: unlabelled), in batches of one type.

    A type with fewer cells than bags has each read several times, under different masks.
    """
    generator = np.random.default_rng(seed)
    # At least two groups, one of them empty where there is one regulator: some bag has to show it.
    groups = max(2, min(regulators, int(np.ceil(1 / fraction))))
    types = np.unique(labels)
    bags = max(int(np.ceil(cells / len(types))), ROUNDS * groups)
    for cell_type in types:
        members = generator.permutation(np.flatnonzero(labels == cell_type))
        rows = np.resize(members, bags)
        partitions = [generator.permutation(regulators) % groups for _ in range(-(-bags // groups))]
        masked = np.concatenate([part[None] == np.arange(groups)[:, None] for part in partitions])[:bags]
        for start in range(0, bags, batch):
            part = slice(start, start + batch)
            yield Sample(int(cell_type), rows[part], masked[part])


def masked_bags(
    model: Model, multiplicity: sp.csr_matrix, basal: np.ndarray | None, sample: Sample, regulators: np.ndarray
) -> Bags:
    """The sample's cells as dense bags on the model's device, with its masked regulators at multiplicity 0.

    The regulation layer reads the masked ones too, as it never predicts a gene from itself.
    multiplicity: CSR [C, N].   basal [C]: multiplicity of the basal gene, None: 1.   regulators: positions [R].
    """
    dense = torch.as_tensor(multiplicity[sample.rows].toarray()).to(model.sd)  # its device and its dtype
    chosen = torch.as_tensor(regulators, device=dense.device)
    measured = dense[:, chosen]
    dense[:, chosen] = dense[:, chosen].masked_fill(torch.as_tensor(sample.masked, device=dense.device), 0)
    genes = torch.arange(dense.shape[1], device=dense.device)
    basal_of_rows = None if basal is None else torch.as_tensor(basal[sample.rows]).to(dense)
    return Bags(genes, dense, None, basal_of_rows, measured)


def present_bags(model: Model, multiplicity: sp.csr_matrix, basal: np.ndarray | None, rows: np.ndarray) -> Bags:
    """The cells `rows` as packed bags of the genes that they have, on the model's device; see `masked_bags`."""
    some = multiplicity[rows]
    genes, offsets = (
        torch.as_tensor(x, dtype=torch.int64, device=model.sd.device) for x in (some.indices, some.indptr)
    )
    basal_of_rows = None if basal is None else torch.as_tensor(basal[rows]).to(model.sd)
    return Bags(genes, torch.as_tensor(some.data).to(model.sd), offsets, basal_of_rows)
