"""Cells: the checked data set that training, read-outs and predictions use.

Letters: C cells, N genes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from grn.cells.interventions import Interventions
from grn.cells.preprocessing.counts import Expression
from grn.cells.preprocessing.multiplicity import Counting, DepthScale
from grn.cells.preprocessing.split import Split
from grn.config.schema import DataConfig


class Known(NamedTuple):
    """Columns of obs for all A cells of a source, as the functions of grn/cells/obs.py read them.

    labels [A]: position in `names`, -1 where missing.
    names: the labels that occur, sorted.
    groups [A]: number of the donor or batch, -1 without one. None: not asked for.
    condition [A]: see Cells.state. None: not asked for.
    """

    labels: np.ndarray
    names: tuple[str, ...]
    groups: np.ndarray | None
    condition: np.ndarray | None


class Sample(NamedTuple):
    """Which cells of a source of A cells are in memory, and what is known of all of them.

    rows: positions of the cells in memory, sorted.
    mark [A]: a number of each cell that its copies share (see counts.Kept).
    known: columns of obs.
    """

    rows: np.ndarray
    mark: np.ndarray
    known: Known


@dataclass(frozen=True)
class Cells:
    """C cells over the N genes of a vocabulary.

    multiplicity: CSR float32 [C, N], no stored zeros.
    vocabulary [N]: names of the genes, then of the guides' keys.
    regulators: positions in the vocabulary, int64, or None where every gene may regulate.
    labels [C]: int64, position in classes, -1 where missing.
    basal [C]: float32, multiplicity of the basal gene, computed from the cell's sequencing depth.
    depth: mean and sd of the log depth, which that computation uses (see depth_scale); None where
        every cell's basal multiplicity is 1.
    groups [C]: int64, number of the cell's donor or batch (data.group_key), or of its exact copies;
        -1 for a cell without a donor. None: no donors are named, and no cells are copies.
    only_copies: whether groups are of copies, as no donors are named.
    measures_depth [N]: bool, the genes over which a cell's depth is measured.
    depth_share [N]: the share of the training cells' depth that each gene holds.
    target_total: the total to which log1p_normalised scaled each cell; None for the other
        transforms.
    counts_from: a sentence about which matrix the values were read from.
    notes: more sentences for the user.
    state [C]: float32, a number along which regulation may change (data.state_key), or the position
        of the cell's condition among conditions; NaN where missing; None without.
    counting: how counts became multiplicities; None where the values are not counts.
    var_names: [N], what the index of var calls the genes where their names are from a column of it
        (data.gene_key), else None.
    digest: see digest_of_cells; empty for cells that are not trained on.
    truth: the planted edges of simulated cells: source, target, sign, and cell_type where edges
        differ by it (see grn.cells.simulated.network); None for other cells.
    sample: which cells of the source these are; None where they are all.
    donors: names of the donors or batches (data.group_key).
    hint: see Source.
    programmes: float32 [C, G], scores of the programmes of `data.regress_out`; None without.
    interventions: which genes were intervened on in which cells; their guides' keys are the last
        entries of the vocabulary. None without data.intervention_key.
    guides: how often each guide worked (see guides.with_weights). None without data.guide_key.
    """

    multiplicity: sparse.csr_matrix
    vocabulary: tuple[str, ...]
    regulators: np.ndarray | None
    labels: np.ndarray
    classes: tuple[str, ...]
    obs_names: np.ndarray
    basal: np.ndarray
    depth: DepthScale | None
    measures_depth: np.ndarray
    depth_share: np.ndarray
    target_total: float | None
    counts_from: str
    notes: tuple[str, ...] = ()
    truth: pd.DataFrame | None = None
    groups: np.ndarray | None = None
    only_copies: bool = False
    state: np.ndarray | None = None
    state_name: str = ""
    conditions: tuple[str, ...] = ()
    digest: str = ""
    counting: Counting | None = None
    var_names: tuple[str, ...] | None = None
    interventions: Interventions | None = None
    guides: pd.DataFrame | None = None
    sample: Sample | None = None
    donors: tuple[str, ...] = ()
    hint: str = ""
    programmes: np.ndarray | None = None

    def __len__(self) -> int:
        return self.multiplicity.shape[0]

    @property
    def keys(self) -> int:
        """How many keys of guides follow the genes in the vocabulary."""
        return 0 if self.interventions is None else len(self.interventions.names)


@dataclass(frozen=True)
class CellsInPieces:
    """Cells that are read piece by piece, with one piece in memory at a time.

    number: of all cells.
    pieces: reads the pieces one after another, from the first one each time it is called.
    counts_from, notes: see Cells.
    """

    number: int
    pieces: Callable[[], Iterator[Cells]]
    counts_from: str
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return self.number


@dataclass(frozen=True)
class Source:
    """C cells and M genes as they were read, before genes are chosen.

    obs_names [C], labels, classes, groups, state, conditions: as in Cells.
    values: CSR float32 [C, M], counts or expression, each gene once.
    names [M]: names of the genes.
    columns: position in `names` of each row of var, int64.
    expression: the table var, where the values are from, and the scale of counts.
    truth, interventions, sample: see Cells.
    read: sentences about how the file was read, and which parts of it were left out.
    hint: a sentence about a column that seems to hold conditions and is not used; "" for none.
    donors: how many cells each donor or batch (data.group_key) has.
    """

    obs_names: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    groups: np.ndarray | None
    state: np.ndarray | None
    conditions: tuple[str, ...]
    values: sparse.csr_matrix
    names: list[str]
    columns: np.ndarray
    expression: Expression
    truth: pd.DataFrame | None
    read: tuple[str, ...]
    hint: str
    interventions: Interventions | None = None
    sample: Sample | None = None
    donors: Mapping[str, int] = field(default_factory=dict)


def digest_of_cells(
    cells: Cells, values: sparse.csr_matrix, config: DataConfig, split: Split
) -> str:
    """Return 32 hex digits over everything that training reads from the cells and their split, by
    which a later command recognises them.

    values: CSR float32 [C, N], counts or expression of the chosen genes. Multiplicities would not
        do: logarithms differ in the last bit between processors.
    config: how values become multiplicities.
    """
    found = hashlib.blake2b(digest_size=16)
    # Positions always have the same width, whatever width a reader has chosen for them.
    arrays = [
        values.indptr.astype(np.int64),
        values.indices.astype(np.int32, copy=False),
        values.data,
    ]
    arrays += [split.train, split.test]
    if (done := cells.interventions) is not None:
        arrays += [
            done.given.indptr.astype(np.int64),
            done.given.indices.astype(np.int32),
            done.control,
            done.guide,
        ]
    if cells.programmes is not None:
        arrays.append(np.asarray(config.regress_out, dtype=np.bytes_))
    for array in [*arrays, cells.labels, cells.groups, cells.state, cells.regulators]:
        found.update(b"none" if array is None else f"{array.dtype}{array.shape}".encode())
        if array is not None:
            found.update(np.ascontiguousarray(array).data)
    for texts in (
        cells.vocabulary,
        cells.classes,
        (config.values, config.multiplicity, config.depth),
    ):
        found.update(repr(list(texts)).encode())
    return found.hexdigest()
