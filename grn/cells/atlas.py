"""Cells that stay in their file: training reads all of them, and a sample that is in memory says everything else.

Units, penalties, the network and all scores are of `data.sample` cells, as many as a mean over cells needs. What more
cells give is experience: every step reads others of them from the file, as `order.py` shuffles them.

Letters: A cells of the file, C cells of the sample, N genes, S states.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from anndata.abc import CSCDataset, CSRDataset
from scipy import sparse

from grn.cells.cells import Cells
from grn.cells.load import in_vocabulary, to_vocabulary_of, transformed
from grn.cells.loading.tables import Table
from grn.cells.obs import MISSING, read_groups, read_labels, read_state
from grn.cells.preprocessing.counts import genes_of, stored_matrix
from grn.cells.preprocessing.split import Split
from grn.cells.readers.matrix import check_pointers, rows_of
from grn.cells.readers.registry import source_in_file
from grn.config.schema import DataConfig
from grn.threads import most_threads

PART, WORKERS = 4096, 4  # cells that a thread prepares at a time, and the most threads
KNOWN = ("labels", "conditions", "one", "together")  # origins of states that labels and conditions tell


def only_the_sample(config: DataConfig, cells: Cells, origin: str) -> str:
    """Why training reads the sample alone; empty where it reads all cells. origin: see States."""
    with source_in_file(config, everything=False) as source:
        by_columns = isinstance(stored_matrix(source, config.counts), CSCDataset)
    reasons = {
        "the file stores its matrix by columns (write it as CSR)": by_columns,
        "its counts are recovered": config.counts == "recover",
        "it is a screen": cells.interventions is not None,
        "genes are predicted as data.targets": cells.targets is not None,
        "the states of the other cells are not known without labels": origin not in KNOWN,
    }
    return next((reason for reason, true in reasons.items() if true), "")


class Atlas:
    """All cells of a file, of which `cells` are a sample. membership [C, S], fold [C]: of the sample.

    rows: those that are trained on, all but the test cells and their donors.   labels [A]: see Cells.   states [A, S]:
    see States; those of a cell with the same label and condition.   fold [A]: see Batch; that of its donor, -1 for
    cells outside of the sample without one.
    """

    interventions = None

    def __init__(self, config: DataConfig, cells: Cells, split: Split, membership: np.ndarray, fold: np.ndarray):
        assert cells.sample is not None, "the cells are a sample"
        self.config, self.cells = config, cells
        sample, count = cells.sample
        obs = self.source.obs
        labels, names = read_labels(obs, config.label_key)
        position = pd.Index(cells.classes).get_indexer(pd.Index([*names]))
        self.labels = np.append(position, MISSING)[labels]  # -1 reads the last entry: missing
        condition = read_state(obs, config.state_key)[0]
        known = np.full(count, MISSING) if condition is None else np.nan_to_num(condition, nan=MISSING)
        kinds, kind = np.unique(np.stack([self.labels, known]), axis=1, return_inverse=True)
        of_kinds = np.tile(membership.mean(0), (kinds.shape[1], 1)).astype(np.float32)
        of_kinds[kind.reshape(-1)[sample]] = membership
        self.states = of_kinds[kind.reshape(-1)]

        trained, self.fold = np.ones(count, bool), np.full(count, -1)
        self.fold[sample], trained[sample[split.test]] = fold, False
        groups = read_groups(obs, config.group_key)
        if groups is not None:
            trained &= ~np.isin(groups, groups[sample[split.test]])
            of_groups = dict(zip(groups[sample].tolist(), fold.tolist(), strict=True))
            self.fold = np.array([of_groups.get(group, -1) for group in groups.tolist()])
        self.rows = np.flatnonzero(trained)
        var = genes_of(self.source, config.counts)
        self.to_vocabulary = to_vocabulary_of(var, self.source.obs_names, config, cells.vocabulary)[0]
        self.stored = stored_matrix(self.source, config.counts)
        self.ends = check_pointers(self.stored) if isinstance(self.stored, CSRDataset) else None
        self.reader = ThreadPoolExecutor(1)
        # HDF5 reads for one thread at a time; to make multiplicities of what it reads takes longer, and is shared out.
        self.workers = ThreadPoolExecutor(min(WORKERS, most_threads()))
        self.held: dict[bytes, Future[Table]] = {}  # by their rows

    @cached_property
    def source(self) -> Any:
        """The AnnData, whose file stays open."""
        self.open = ExitStack()
        return self.open.enter_context(source_in_file(self.config, everything=False))

    def table(self, buffer: np.ndarray, following: np.ndarray | None, device: torch.device | str) -> Table:
        """The cells `buffer`, sorted rows, which are read once, however often they are asked for. following: those that
        are read next."""
        wanted = {rows.tobytes(): rows for rows in (buffer, following) if rows is not None}
        self.held = {
            name: self.held.get(name) or self.reader.submit(self._load, rows, device) for name, rows in wanted.items()
        }
        return self.held[buffer.tobytes()].result()

    def _load(self, rows: np.ndarray, device: torch.device | str) -> Table:
        """The cells `rows`, sorted."""
        parts = self.workers.map(self._part, (rows[start : start + PART] for start in range(0, len(rows), PART)))
        multiplicity, basal, unit = zip(*parts, strict=True)
        whole = sparse.vstack(multiplicity, format="csr")
        return Table.of(whole, np.concatenate(basal), None if unit[0] is None else np.concatenate(unit), device)

    def _part(self, rows: np.ndarray) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray | None]:
        """Multiplicity, basal and unit of some cells: see Table."""
        cells = self.cells
        values = in_vocabulary(rows_of(self.stored, self.config.path, rows, self.ends), self.to_vocabulary)
        multiplicity, basal, counting = transformed(
            values, self.config, cells.measures_depth, cells.target_total, cells.depth
        )
        return multiplicity, basal, None if counting is None else counting.unit
