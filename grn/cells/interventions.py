"""Interventions: which genes were intervened on in which cells, read from columns of obs, and the
keys by which a bag holds them.

The counts of an intervened gene say little of whether the intervention worked: most cells lack a
rare messenger whether its gene is cut or not, and a cut gene may still be transcribed. So each
intervened gene has a second key, its guides, which only the cells with these guides have. A gene
that was not measured has this key alone. In a knock-out, the gene's first key has multiplicity 0,
whatever was counted. In intervened cells, the loss leaves the gene itself out, as its regulators no
longer decide its level.

Letters: C cells, T genes that were intervened on, N genes of a vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import sparse

from grn.cells.obs import column_of
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError

CONTROLS = (
    "control",
    "ctrl",
    "nt",
    "neg",
    "none",
    "unperturbed",
    "negctrl",
    "safetargeting",
    "nontargeting",
)
"""Values that name controls where data.control does not, in lower case and without punctuation."""
BETWEEN = re.compile(r"\s*[+,;|]\s*")  # genes of one cell: STAT1+JAK2
# cells of an intervention, or controls, of which something can be said: bulk samples are pairs
FEWEST = 2


@dataclass(frozen=True)
class Interventions:
    """The genes that were intervened on, and the cells of each.

    names [T]: the genes that were intervened on, sorted.
    given: CSR float32 [C, T], the probability that the cell's guides worked, 1 where it is not
        known; no entry where the cell has no guide for this gene.
    control [C]: bool, cells that are known to have no intervention.
    guides: names of the guides, or of combinations of guides.
    guide [C]: int64, position in guides, -1 without one.
    kind: knock-out | knock-down | overexpression.
    key [T]: int64, vocabulary position of the guides' key.
    place [T]: int64, vocabulary position of the gene itself, -1 where it was not measured.

    `key` and `place` are empty until the vocabulary is known.
    """

    names: tuple[str, ...]
    given: sparse.csr_matrix
    control: np.ndarray
    guides: tuple[str, ...]
    guide: np.ndarray
    kind: str
    key: np.ndarray
    place: np.ndarray

    @property
    def sign(self) -> float:
        """The sign of a guide's effect on its gene: 1 raises it, -1 lowers it."""
        return 1.0 if self.kind == "overexpression" else -1.0

    def some(self, rows: np.ndarray) -> Interventions:
        """Return the interventions on some of the cells."""
        return replace(
            self, given=self.given[rows], control=self.control[rows], guide=self.guide[rows]
        )

    def alone(self, gene: int) -> np.ndarray:
        """Return the rows of the cells with guides for this gene and no other.

        gene: position in names.
        """
        several = np.diff(self.given.indptr) != 1
        return np.setdiff1d(self.given[:, [gene]].nonzero()[0], np.flatnonzero(several))


def read_interventions(obs: pd.DataFrame, config: DataConfig) -> Interventions | None:
    """Return the interventions that data.intervention_key names; None without it.

    Raises DataError where there are no controls.
    """
    if config.intervention_key is None:
        return None
    column = column_of(obs, config.intervention_key, "data.intervention_key", "obs").astype(object)
    given = [config.control] if isinstance(config.control, str) else config.control
    text = column.map(str)
    # An empty text means that nothing is known, unless data.control says that it means nothing was
    # done.
    known = (~column.isna() & ((text.str.strip() != "") | ("" in (given or ())))).to_numpy()
    values, code = np.unique(text.to_numpy(str), return_inverse=True)
    controls = CONTROLS if given is None else given

    def is_control(name: str) -> bool:
        return (
            name in controls
            if given is not None
            else re.sub(r"[^a-z]", "", name.lower()) in controls
        )

    parts = [
        sorted({part for part in BETWEEN.split(value) if part and not is_control(part)})
        for value in values
    ]
    control = known & np.array([not part for part in parts])[code]
    present = np.unique(code[known])
    names = sorted({name for value in present for name in parts[value]})
    if control.sum() < FEWEST or not names:
        found = ", ".join(map(repr, values[present][:8].tolist()))
        raise DataError(
            f"Column {config.intervention_key!r} of obs names {len(names)} genes and "
            f"{control.sum()} control cells; it has {found}",
            field="data.control",
            advice="set {field} to the values that control cells have",
        )
    number = {name: position for position, name in enumerate(names)}
    of_value = [
        [number[name] for name in parts[value]] if value in present else []
        for value in range(len(values))
    ]
    columns = [
        of_value[each] if is_known else [] for each, is_known in zip(code, known, strict=True)
    ]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in columns])])
    flat = np.array([gene for each in columns for gene in each], np.int32)
    matrix = sparse.csr_matrix(
        (np.ones(len(flat), np.float32), flat, starts), shape=(len(obs), len(names))
    )
    guide, guides = np.full(len(obs), -1), np.zeros(0, object)
    if config.guide_key is not None:
        guide, guides = pd.factorize(
            column_of(obs, config.guide_key, "data.guide_key", "obs").astype(object).map(str)
        )
    not_yet = np.zeros(0, np.int64)
    return Interventions(
        names=tuple(names),
        given=matrix,
        control=control,
        guides=tuple(map(str, guides)),
        guide=guide,
        kind=config.intervention,
        key=not_yet,
        place=not_yet,
    )


def key_names(
    names: Sequence[str], vocabulary: Sequence[str]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the guides' keys, and the position in `names` of the gene of each.

    Genes that were not measured come first, and give their keys their own names.

    names [T]: the genes that were intervened on.
    vocabulary: the genes that were measured.
    """
    measured = np.isin(np.array(names, object), np.array(vocabulary, object))
    order = np.argsort(measured, kind="stable")
    return tuple(f"do({names[gene]})" if measured[gene] else names[gene] for gene in order), order


def with_keys(
    multiplicity: sparse.csr_matrix, vocabulary: tuple[str, ...], interventions: Interventions
) -> tuple[sparse.csr_matrix, tuple[str, ...], Interventions]:
    """Return multiplicities, vocabulary and interventions with the keys of guides, which come last.

    The new multiplicities are CSR float32 [C, N + T]; `key` and `place` of the interventions are
    set.

    multiplicity: CSR float32 [C, N].
    vocabulary [N]: names of the genes.
    """
    added, order = key_names(interventions.names, vocabulary)
    position = {name: number for number, name in enumerate(vocabulary)}
    place = np.array([position.get(name, -1) for name in interventions.names], np.int64)
    key = np.empty(len(place), np.int64)
    key[order] = len(vocabulary) + np.arange(len(place))
    given = interventions.given
    if interventions.kind == "knock-out" and (place >= 0).any():
        measured = np.flatnonzero(place >= 0)
        cut = given[:, measured].tocoo()
        here = sparse.csr_matrix(
            (cut.data, (cut.row, place[measured][cut.col])), shape=multiplicity.shape
        )
        multiplicity = (multiplicity - multiplicity.multiply(here)).tocsr().astype(np.float32)
        multiplicity.eliminate_zeros()
    whole = sparse.hstack([multiplicity, given[:, order]], format="csr").astype(np.float32)
    whole.sort_indices()
    return whole, (*vocabulary, *added), replace(interventions, key=key, place=place)


def cut_rows(interventions: Interventions, rows: np.ndarray, genes: int) -> np.ndarray:
    """Return which genes are no targets in the cells `rows`, bool [c, N]: the genes that were
    intervened on, and every key of guides.

    genes: N, the length of the vocabulary.
    """
    cut = np.zeros((len(rows), genes), dtype=bool)
    cell, gene = interventions.given[rows].nonzero()
    place = interventions.place[gene]
    cut[cell[place >= 0], place[place >= 0]] = True
    cut[:, interventions.key] = True
    return cut
