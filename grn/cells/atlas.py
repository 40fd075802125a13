"""All cells of a file that is too large for memory. Training reads them from the file; everything
else uses a sample of them.

Units, penalties, q-values, scores and the network come from the `data.sample` cells in memory. The
other cells are for training alone: every step reads some of them from the file, in the order of
`loading/order.py`.

Letters: A cells and M columns of the file, C cells of the sample, N genes, S states.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from anndata.abc import CSCDataset, CSRDataset
from torch.nn import functional as F

from grn.cells.cells import Cells
from grn.cells.genes.feature_types import are_genes
from grn.cells.load import to_vocabulary_of
from grn.cells.loading.tables import Table, beside_steps, empty_for, fitting, give_back_on, on
from grn.cells.obs import MISSING
from grn.cells.preprocessing.multiplicity import basal_multiplicity, counting_of
from grn.cells.preprocessing.split import Split
from grn.cells.readers.matrix import StoredRows, check_pointers, rows_of
from grn.cells.readers.registry import counts_in_file
from grn.config.schema import DataConfig
from grn.runtime.threads import ahead

# numbers that are read from the file, and made multiplicities of, at a time
AT_ONCE = {"cpu": 2**18, "cuda": 2**22}
# origins of states that follow from a cell's label and condition
KNOWN = ("labels", "conditions", "one", "together")


def only_the_sample(config: DataConfig, cells: Cells, origin: str) -> str:
    """Return why training reads the sample alone; "" where it reads all cells of the file.

    origin: where the states of the cells come from (see States).
    """
    by_columns, recovered = False, config.counts == "recover"
    if not recovered:
        with counts_in_file(config) as (stored, _):
            by_columns = isinstance(stored, CSCDataset)
    reasons = {
        "the file stores its matrix by columns (write it as CSR)": by_columns,
        "its counts are recovered": recovered,
        "it is a screen": cells.interventions is not None,
        "the states of the other cells are not known (labels and conditions tell them)": origin
        not in KNOWN,
    }
    return next((reason for reason, true in reasons.items() if true), "")


@dataclass(frozen=True)
class StatesByKind:
    """The states [A, S] of all cells of a file, of which `states[rows]` gives some rows.

    A kind is a label with a condition; its cells have the same states.

    kind [A]: the kind of each cell, int32.
    of_kinds [K, S]: the states of each kind, float32.
    """

    kind: np.ndarray
    of_kinds: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return self.of_kinds[self.kind[rows]]


class Atlas:
    """All cells of a file, of which `cells` are a sample in memory.

    rows: the cells that are trained on: all but the test cells, their copies and their donors.
    labels [A]: int32, position in the classes of the sample, -1 where missing.
    states [A, S]: states of each cell. A cell has the states of the sample's cells with its label
        and condition.
    fold [A]: int16, which ensemble members do not learn from the cell (see Batch). A copy has the
        fold of its original, other cells have the fold of their donor, and -1 without one.
    gene_of [M]: int32, vocabulary position of the gene of each column, N where it is not used.
    absent: labels that no cell of the sample has.
    """

    interventions = None

    def __init__(
        self,
        config: DataConfig,
        cells: Cells,
        split: Split,
        membership: np.ndarray,
        fold: np.ndarray,
    ):
        """Open the file.

        membership [C, S], fold [C]: states and folds of the sample.
        """
        assert cells.sample is not None, "the cells are a sample"
        self.config, self.cells = config, cells
        sample, mark, (labels, names, groups, condition) = cells.sample
        position = pd.Index(cells.classes).get_indexer(pd.Index([*names]))
        # -1 reads the last entry: missing
        self.labels = np.append(position, MISSING)[labels].astype(np.int32)
        self.absent = [
            name for name, place in zip(names, position, strict=True) if place == MISSING
        ]
        kind = self.labels.astype(np.int64)
        if condition is not None:
            kind = kind * (len(mark) + 1) + pd.factorize(condition)[0]
        kind = pd.factorize(kind)[0].astype(np.int32)
        of_kinds = np.tile(membership.mean(0), (kind.max() + 1, 1)).astype(np.float32)
        of_kinds[kind[sample]] = membership
        self.states = StatesByKind(kind, of_kinds)

        trained, self.fold = np.ones(len(mark), bool), np.full(len(mark), -1, np.int16)
        self.fold[sample], trained[sample[split.test]] = fold, False
        if groups is not None:  # of which the last entry, which -1 reads, are the cells without
            tests = np.zeros(groups.max() + 2, bool)
            fold_of = np.full(groups.max() + 2, -1, np.int16)
            tests[groups[sample[split.test]]] = True
            trained &= ~tests[groups]
            of_groups = np.unique([groups[sample[split.train]], fold[split.train]], axis=1)
            # else folds divide the cells of a donor
            if len(np.unique(of_groups[0])) == of_groups.shape[1]:
                fold_of[of_groups[0]] = of_groups[1]
                self.fold = fold_of[groups]
        of_sample, first = np.unique(mark[sample], return_index=True)
        known = ~np.isnan(of_sample)
        # of the cell that each is a copy of, or is; -1: none
        place = pd.Index(of_sample[known]).get_indexer(mark)
        equal = np.flatnonzero(place >= 0)
        first = first[known][place[equal]]
        trained[equal[np.isin(mark[equal], mark[sample[split.test]])]] = False
        copy = ~np.isin(equal, sample)
        self.fold[equal[copy]] = fold[first[copy]]
        self.rows = np.flatnonzero(trained)
        self.open = ExitStack()
        self.stored, var = self.open.enter_context(counts_in_file(config))
        genes = np.flatnonzero(are_genes(var))
        columns = to_vocabulary_of(
            var.iloc[genes], pd.Index([]), config, cells.vocabulary
        ).matrix.tocoo()
        self.gene_of = np.full(len(var), len(cells.vocabulary), np.int32)
        self.gene_of[genes[columns.row]] = columns.col
        self.ends = check_pointers(self.stored) if isinstance(self.stored, CSRDataset) else None
        self.reader = ThreadPoolExecutor(1)
        self.held: dict[bytes, Future[Table]] = {}  # by their rows

    def table(
        self, buffer: np.ndarray, following: np.ndarray | None, device: torch.device | str
    ) -> Table:
        """Return the cells of a buffer, which is read once, however often it is asked for.

        buffer: their rows, sorted.
        following: rows of the next buffer, which is read in the meantime; None: nothing is.
        """
        wanted = {rows.tobytes(): rows for rows in (buffer, following) if rows is not None}
        # before the next is read
        self.held = {name: table for name, table in self.held.items() if name in wanted}
        for name, rows in wanted.items():
            if name not in self.held:
                self.held[name] = self.reader.submit(self._load, rows, device)
        return self.held[buffer.tobytes()].result()

    def _load(self, rows: np.ndarray, device: torch.device | str) -> Table:
        """Read the cells `rows`, which are sorted."""
        # the table before, which the allocator keeps for steps (keeping_pieces)
        give_back_on(device)
        most = len(rows) * len(self.cells.vocabulary)
        stored = most if self.ends is None else int((self.ends[rows + 1] - self.ends[rows]).sum())
        device = fitting(device, stored)
        pieces = stored // AT_ONCE[torch.device(device).type] + 1
        parts = [part for part in np.array_split(rows, pieces) if len(part)]
        empty = empty_for(device)
        read = ahead(
            rows_of(self.stored, self.config.path, part, self.ends, empty) for part in parts
        )

        def make() -> Table:
            return Table.joined(
                [
                    self._part(len(part), each, device)
                    for part, each in zip(parts, read, strict=True)
                ]
            )

        table = beside_steps(make, device)
        give_back_on(device)  # pieces of what was read
        return table

    def _part(self, count: int, read: StoredRows, device: torch.device | str) -> Table:
        """Return the table of `count` cells from the numbers that were read for them.

        The device computes their multiplicities: NumPy would take longer than a GPU's steps.
        """
        cells, config, here = self.cells, self.config, partial(on, device)
        genes = len(cells.vocabulary)
        value, gene = here(read.value), here(self.gene_of)[here(read.column)]
        cell = here(read.place).repeat_interleave(here(read.size), output_size=len(value))
        used = ((gene < genes) & (cell < count) & (value != 0)).nonzero()[:, 0]
        value, gene, cell = value[used], gene[used], cell[used]
        # several columns of a gene add up
        if ((cell[1:] == cell[:-1]) & (gene[1:] <= gene[:-1])).any():
            flat, entry = (cell.long() * genes + gene).unique(return_inverse=True)
            value = torch.zeros(len(flat), device=device).index_add_(0, entry, value)
            cell, gene = (flat // genes).int(), (flat % genes).int()

        counted = config.values == "counts"
        first = torch.searchsorted(cell, torch.arange(count + 1, dtype=cell.dtype, device=device))
        weight = here(cells.measures_depth.astype(np.float64))[gene]
        # exact: of whole numbers
        sums = F.pad((weight * value if counted else weight).cumsum(0), (1, 0))
        total = sums[first].diff().cpu().numpy()
        units = (
            counting_of(config.multiplicity, total, cells.target_total).unit if counted else None
        )
        unit = None if units is None else here(units.astype(np.float32))
        value = value if unit is None else torch.log1p(value * unit[cell])
        return Table(
            first.cpu().numpy(),
            value,
            gene,
            here(basal_multiplicity(total, cells.depth)),
            unit,
            genes,
        )
