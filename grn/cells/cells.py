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
    """Columns of obs for A cells: labels [A] and the names of these, groups [A] and conditions [A],
    as the readers of grn/cells/obs.py return them.
    """

    labels: np.ndarray
    names: tuple[str, ...]
    groups: np.ndarray | None
    condition: np.ndarray | None


class Sample(NamedTuple):
    """Some cells of a source of A.

    rows: theirs, sorted.
    mark [A]: see counts.Kept.
    known: of all cells.
    """

    rows: np.ndarray
    mark: np.ndarray
    known: Known


@dataclass(frozen=True)
class Cells:
    """C cells over the N genes of a vocabulary.

    multiplicity: CSR float32 [C, N], no stored zeros. vocabulary [N].
    regulators: positions in the vocabulary, int64, or None where every gene may regulate.
    labels [C]: position in classes, -1 where missing.
    basal [C]: float32, multiplicity of the basal gene, computed from the cell's sequencing depth.
    depth: the scale of that computation (see depth_scale); None where every cell's basal
        multiplicity is 1.
    groups [C]: number of the cell's donor or batch (data.group_key), or of its exact copies; None
        without either, and -1 of a cell without a donor.
    only_copies: whether groups are those of copies, as no donors are named.
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
    digest: of everything that training reads from the cells and their split; empty for cells of
        another source.
    truth: the planted edges of simulated cells: source, target, sign, and cell_type where edges
        differ by it (see grn.cells.simulated.network); None for other cells.
    sample: which cells of the source these are; None where they are all.
    donors: names of the donors or batches (data.group_key).
    hint: see Source.
    programmes: float32 [C, G], scores of the programmes of `data.regress_out`; None without.
    interventions: what was done to the cells; their guides' keys are the last entries of the
        vocabulary. guides: the table of `guides.with_weights`. None without interventions, and
        without guides.
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
        """The number of guides' keys, which stand after the genes at the end of the vocabulary."""
        return 0 if self.interventions is None else len(self.interventions.names)


@dataclass(frozen=True)
class CellsInPieces:
    """Cells of which a piece at a time is in memory.

    pieces: makes them, each time anew, one after the other.
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
    """A source of C cells and M genes as it was read, before anything is chosen.

    obs_names [C], labels, classes, groups, state, conditions: as in Cells.
    values: CSR float32 [C, M], each gene once.
    names [M]: of the genes.
    columns: row of var -> position in names.
    expression: its genes, where it is from, and the scale of its counts.
    truth, interventions: see Cells.
    read: sentences about how the file was read, and what of it was left out.
    hint: a sentence about a column that seems to hold conditions and is not used.
    sample: see Cells.
    donors: of data.group_key, and how many cells each has.
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
    """32 hex digits over everything that training reads from the cells, by which a later command
    knows them again.

    values: CSR float32 [C, N], as read, over the chosen genes, and not multiplicities: logarithms
        differ in the last bit between processors.
    config: of its fields, those that say how values become multiplicities.
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
