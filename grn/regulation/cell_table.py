"""The fitted cells, and as tensors what the regulation layer reads and the two kinds of targets that members predict.

Members that predict ranks are not led by a few extreme counts, and those that predict multiplicities are not led by the
many zeros of a gene that is rarely seen. Their mean ranks edges better than either (docs/log.md).

No value counts as more than LIMIT sds from its mean: a doublet, or a count in a cell of a type that does not express
the gene, can be 50 sds away and would otherwise decide a slope by itself.

Letters: C cells, N genes, R regulators, K states, P members, B cells of a batch.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.cells.preprocessing.moments import mean_and_sd
from grn.model.signed.regulation_layer import RegulationLayer
from grn.regulation.linear import LARGE
from grn.regulation.ridge import Columns

LIMIT = 20.0  # sds from the mean, of regulators (within their state) and of targets
DENSE = 2**28  # numbers that the linear fit may read of its targets
# Up to so many numbers, the targets of all cells are kept as a dense table: in memory, or on a GPU, of whose free
# memory each of the two kinds may take a share.
KEPT, SHARE_OF_GPU = 2**25, 1 / 12
SORTED, SORTED_ON_GPU = 2**17, 2**26  # values whose ranks are computed at the same time; a GPU needs many


@dataclass(frozen=True)
class TrainingCells:
    """multiplicity: CSR float32 [C, N].   basal [C]: multiplicity of each cell's basal gene, its sequencing depth.
    rows: positions of the cells that are fitted; the others are never read.   regulators: vocabulary positions [R].
    mean, sd [N]: of every gene, the unit of the targets.   groups [C]: each cell's donor or batch, whose cells are held
    out together; None: each by itself.   states: see States.membership; None: all cells have one state."""

    multiplicity: sp.csr_matrix
    basal: np.ndarray
    rows: np.ndarray
    regulators: np.ndarray
    mean: Tensor
    sd: Tensor
    groups: np.ndarray | None = None
    states: np.ndarray | None = None

    @classmethod
    def of(
        cls, cells: Cells, rows: np.ndarray, mean: Tensor, sd: Tensor, states: np.ndarray | None = None
    ) -> TrainingCells:
        """The cells `rows` of a data set. Where it names no regulators, every gene may regulate."""
        genes = len(cells.vocabulary)
        regulators = np.arange(genes) if cells.regulators is None else cells.regulators
        return cls(cells.multiplicity, cells.basal, rows, regulators, mean, sd, cells.groups, states)

    def memberships(self) -> np.ndarray:
        return np.ones((len(self.basal), 1), np.float32) if self.states is None else self.states

    def only_fitted(self) -> TrainingCells:
        every = np.array_equal(self.rows, np.arange(len(self.basal)))
        return replace(
            self,
            multiplicity=self.multiplicity if every else self.multiplicity[self.rows],
            basal=self.basal[self.rows],
            rows=np.arange(len(self.rows)),
            groups=self.fitted_groups(),
            states=None if self.states is None else self.states[self.rows],
        )

    def fitted_groups(self) -> np.ndarray | None:
        """The group of each cell in `rows`; None where all are of one group, so that there is nothing to keep apart."""
        if self.groups is None:
            return None
        groups = self.groups[self.rows]
        return groups if (groups != groups[0]).any() else None


class CellTable:
    """inputs [C, R + 1] in units, states [C, K] and standardised targets of the fitted cells, all within LIMIT."""

    def __init__(self, layer: RegulationLayer, cells: TrainingCells, targets: BothTargets | None = None):
        device = layer.unit.device
        self.values, self.ranks = both_targets(cells, device) if targets is None else targets
        regulators = dense(self.values.table[:, layer.regulators.cpu().numpy()], device)
        basal, states = cells.basal[cells.rows], cells.memberships()[cells.rows]
        self.states = torch.as_tensor(states, device=device)
        inputs = layer.inputs(regulators, torch.as_tensor(basal, device=device))
        self.inputs = torch.minimum(inputs, self.states @ layer.centre + LIMIT)

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, rows: Tensor, predicts_ranks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """rows [P, B] -> inputs [P, B, R + 1], states [P, B, K], targets [P, B, N]; predicts_ranks [P]."""
        kinds = [self.ranks if of_ranks else self.values for of_ranks in predicts_ranks.tolist()]
        targets = torch.stack([kind(part) for kind, part in zip(kinds, rows, strict=True)])
        return self.inputs[rows], self.states[rows], targets


def set_units(layer: RegulationLayer, cells: TrainingCells) -> None:
    """Sets the layer's units, the sds of the genes within the states, and its centres, the means of each state."""
    basal, states = cells.basal[cells.rows], cells.memberships()[cells.rows]
    fitted = cells.multiplicity[cells.rows][:, layer.regulators.numpy()]
    share = states / np.maximum(states.sum(0), 1e-9)
    mean = np.column_stack([(fitted.T @ share).T, share.T @ basal])
    layer.unit.copy_(torch.as_tensor(sds_within(fitted, basal, states, mean)))
    layer.centre.copy_(torch.as_tensor(mean) / layer.unit)


def sds_within(fitted: sp.csr_matrix, basal: np.ndarray, states: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """[R + 1], float32: of the regulators [C, R] and, last, the basal gene [C] around their means [K, R + 1]; 1 where
    they do not vary. With differences between states in it, the penalty would weigh more on regulators that differ."""
    size = states.sum(0) / states.sum()
    square = np.append(np.asarray(fitted.multiply(fitted).mean(0)).ravel(), np.square(basal).mean())
    variance = square - size @ np.square(mean)
    varies = variance > 1e-6 * np.maximum(square, 1e-6)
    return np.sqrt(np.where(varies, variance, 1)).astype(np.float32)


def centred(layer: RegulationLayer, table: CellTable, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Regulators [C, R] and depth [C] of some cells, without the levels of their states, and the states [C, K]."""
    rows = rows.to(table.inputs.device)
    small = min(len(rows), layer.centre.shape[1] * (1 + layer.states)) <= LARGE
    kind = torch.float64 if small else torch.float32
    states = table.states[rows].to(kind)
    m = table.inputs[rows].to(kind) - states @ layer.centre.to(kind)
    return m[:, :-1], m[:, -1], states


def sampled(layer: RegulationLayer, table: CellTable, rows: Tensor, seed: int) -> Tensor:
    """At most so many of the rows that the linear fit has room for their targets, and time for its features."""
    most = max(DENSE // layer.genes, LARGE)
    features = layer.centre.shape[1] * (1 + layer.states)
    most = min(most, 4 * LARGE) if features > 2 * LARGE else most
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most]].sort()[0]


class Targets:
    """A sparse table [C, N], standardised where it is read: with rows [B], it returns [B, N]."""

    def __init__(self, table: sp.csr_matrix, mean: Tensor, sd: Tensor, device: torch.device):
        self.table, self.mean, self.sd = table, mean.to(device), sd.to(device)
        self.dense = None
        if table.shape[0] * table.shape[1] <= most_kept(device):
            self.dense = self._dense(table)

    def __call__(self, rows: Tensor) -> Tensor:
        return self._standardised(self.table[rows.cpu().numpy()]) if self.dense is None else self.dense[rows]

    def columns(self, rows: Tensor, like: Tensor) -> Columns:
        """The targets of some rows, in the dtype and on the device of `like`; some columns at a time are dense."""
        if self.dense is not None and self.dense.is_cuda:
            return Columns.of(self.dense[rows].to(like))
        every = len(rows) == self.table.shape[0] and bool((rows[1:] > rows[:-1]).all())
        table = (self.table if every else self.table[rows.cpu().numpy()]).tocsc()

        def read(some: Tensor | slice) -> Tensor:
            chosen = some if isinstance(some, slice) else some.cpu().numpy()
            return self._standardised(table[:, chosen], some).to(like)

        return Columns(table.shape, read)

    def _dense(self, table: sp.csr_matrix) -> Tensor:
        """All of it, some cells after the other, so that the processor's memory holds no dense table."""
        dense = self.mean.new_empty(table.shape)
        size = max(1, KEPT // table.shape[1])
        for first in range(0, len(dense), size):
            dense[first : first + size] = self._standardised(table[first : first + size])
        return dense

    def _standardised(self, table: sp.spmatrix, genes: Tensor | slice = slice(None)) -> Tensor:
        values = dense(table, self.mean.device)  # changed in place, as it may be large
        return values.sub_(self.mean[genes]).div_(self.sd[genes]).clamp_(max=LIMIT)


BothTargets = tuple[Targets, Targets]  # of multiplicities and of ranks


def both_targets(cells: TrainingCells, device: torch.device) -> BothTargets:
    fitted = cells.only_fitted().multiplicity
    ranks = cell_ranks(fitted, device)
    return Targets(fitted, cells.mean, cells.sd, device), Targets(ranks, *mean_and_sd(ranks), device)


def dense(table: sp.csr_matrix | sp.csc_matrix, device: torch.device) -> Tensor:
    """The table with its zeros. A GPU adds them itself, so that only the other values travel there."""
    if device.type != "cuda" or table.format != "csr":
        return torch.as_tensor(table.toarray(), device=device)
    starts, columns = (torch.as_tensor(each, device=device) for each in (table.indptr, table.indices))
    values = torch.as_tensor(table.data, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor|invariant)")  # to_dense alone is used
        return torch.sparse_csr_tensor(starts, columns, values, table.shape).to_dense()


def most_kept(device: torch.device) -> int:
    if device.type != "cuda":
        return KEPT
    return int(SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0] / 4)


def cell_ranks(multiplicity: sp.csr_matrix, device: torch.device | str = "cpu") -> sp.csr_matrix:
    """The rank of each cell among all cells, by each gene, as a share of the cells: CSR float32 [C, N].

    Equal multiplicities share their mean rank. The rank of multiplicity 0 is subtracted, so that zeros stay zeros.
    """
    together = SORTED_ON_GPU if torch.device(device).type == "cuda" else SORTED
    columns = multiplicity.tocsc(copy=True)
    columns.eliminate_zeros()
    cells, starts = columns.shape[0], columns.indptr.astype(np.int64)
    first = 0
    while first < columns.shape[1]:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + together, side="right")) - 1)
        sizes = torch.as_tensor(np.diff(starts[first : last + 1]), device=device)
        own = slice(starts[first], starts[last])
        # All values are positive, so that the zeros come first.
        ranks = ranks_in_rows(torch.as_tensor(columns.data[own], device=device), sizes)
        zeros = (cells - sizes).repeat_interleave(sizes)
        columns.data[own] = ((zeros + ranks - (zeros + 1) / 2) / cells).cpu().numpy()
        first = last
    return sp.csr_matrix(columns, dtype=np.float32)


def ranks_in_rows(values: Tensor, sizes: Tensor) -> Tensor:
    """Rank in its row, from 1, of each value, float64 [T]. values: positive, float32 [T], by row.   sizes: of rows."""
    row = torch.arange(len(sizes), device=values.device).repeat_interleave(sizes)
    # The bits of positive floats are ordered as the floats are.
    order = (row << 32 | values.view(torch.int32)).sort()
    _, group, counts = order.values.unique_consecutive(return_inverse=True, return_counts=True)
    mean_place = counts.cumsum(0) - (counts - 1) / 2  # of each group in the order, from 1
    before = (sizes.cumsum(0) - sizes)[row]  # values of earlier rows
    ranks = torch.empty(len(values), dtype=torch.float64, device=values.device)
    return ranks.scatter_(0, order.indices, mean_place[group].double()) - before
