"""Cells: the checked data set that training, read-outs and predictions use, made from the AnnData behind data.path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.digest import digest_of_cells
from grn.cells.doubts import doubtful_cells, doubtful_counts
from grn.cells.preprocessing.counting import Counting
from grn.cells.preprocessing.counts import Expression, expression_in_pieces, read_expression, refuse_empty
from grn.cells.preprocessing.depth import (
    DepthScale,
    basal_multiplicity,
    depth_scale,
    depth_share,
    detected,
    measures_depth,
    totals,
    zeros_reflect_depth,
)
from grn.cells.preprocessing.genes import (
    CONTROL,
    ENSEMBL_ID,
    choose_genes,
    choose_regulators,
    column_of,
    gene_names,
    genes_note,
    merge_duplicates,
    near_miss,
    plain,
    refuse_cells_as_genes,
    refuse_column_of_var,
    unnamed_note,
)
from grn.cells.preprocessing.multiplicity import counting_of, median_total, to_multiplicity
from grn.cells.preprocessing.scale import varying
from grn.cells.preprocessing.split import MANY, Split, split_cells
from grn.cells.readers.memory import MEMORY
from grn.cells.readers.registry import open_source
from grn.cells.readers.tenx import LEFT_OUT
from grn.cells.simulated import read_truth
from grn.config.schema import DataConfig
from grn.errors import ConfigError, DataError, VocabularyMismatch

MISSING = -1
OF_MISSING = ("nan", "none", "na", "n/a", "<na>", "null", "?", "-", "unknown", "unassigned", "unlabeled", "unlabelled")
"""What other programs write for a label that is not known, in lower case."""


@dataclass(frozen=True)
class Cells:
    """C cells over the N genes of a vocabulary.

    multiplicity: CSR float32 [C, N], no stored zeros.   vocabulary [N].
    regulators: positions in the vocabulary, int64, or None where every gene may regulate.
    labels [C]: position in classes, -1 where missing.   property [C]: float32, NaN where missing.
    basal [C]: float32, multiplicity of the basal gene, computed from the cell's sequencing depth.
    depth: the scale of that computation (see depth_scale); None where every cell's basal multiplicity is 1.
    groups [C]: number of the cell's donor or batch (data.group_key); None without groups.
    measures_depth [N]: bool, the genes over which a cell's depth is measured.   depth_share [N]: the share of the
    training cells' depth that each gene holds.
    target_total: the total to which log1p_normalised scaled each cell; None for the other transforms.
    counts_from: a sentence about which matrix the values were read from.   notes: more sentences for the user.
    state [C]: float32, a number along which regulation may change (data.state_key), NaN where missing; None without.
    counting: how counts became multiplicities; None where the values are not counts.
    var_names: [N], what the index of var calls the genes where their names are from a column of it
    (data.gene_key), else None.
    digest: of everything that training reads from the cells and their split; empty for cells of another source.
    truth: the planted edges of simulated cells: source, target, sign, and cell_type and along_state where edges differ
    by these (see grn.cells.simulated_network); None for other cells.
    """

    multiplicity: sparse.csr_matrix
    vocabulary: tuple[str, ...]
    regulators: np.ndarray | None
    labels: np.ndarray
    classes: tuple[str, ...]
    property: np.ndarray
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
    state: np.ndarray | None = None
    state_name: str = ""
    digest: str = ""
    counting: Counting | None = None
    var_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return self.multiplicity.shape[0]


def load_cells(
    config: DataConfig, property_key: str | None = None, seed: int = 0, adata: AnnData | None = None
) -> tuple[Cells, Split]:
    """The cells of `data.path` and their split. Everything that is estimated from data uses the training cells alone.

    property_key: the numeric column of obs that becomes Cells.property.   seed: of the split.
    adata: cells in memory, which are used instead of `data.path`; it is not changed.
    Raises DataError, ConfigError.
    """
    source = adata
    adata = open_source(config) if source is None else source
    refuse_empty(adata, config.path)
    keys = {"label_key": config.label_key, "group_key": config.group_key, "state_key": config.state_key}
    refuse_column_of_var(adata, {f"data.{name}": key for name, key in keys.items()})
    labels, classes = read_labels(adata.obs, config.label_key)
    groups = _read_groups(adata.obs, config.group_key)
    split = split_cells(labels, groups, config.validation_fraction, config.test_fraction, seed)
    expression = read_expression(adata, config)
    values, names = _named_genes(expression, config)
    refuse_cells_as_genes(names, list(map(str, adata.obs_names)), config.path if source is None else "the AnnData")
    named, regulators_note = choose_regulators(names, config.regulators, list(map(str, adata.obs_names)))
    chosen = choose_genes(values[split.train], names, config.genes, named, config.values)
    doubts = doubtful_counts(values) if config.values == "counts" else []
    if len(chosen) < len(names):
        values = values[:, chosen]
    if source is None and adata.isbacked:
        adata.file.close()
    regulators = None if named is None else _positions_within(chosen, named)
    counted = config.values == "counts"
    counts = values if counted else detected(values)  # depth is measured in counts, or in detected genes
    measures = measures_depth(counts[split.train], regulators)
    total = totals(counts, measures)
    transform = _transform(config)
    target = median_total(total[split.train]) if transform == "log1p_normalised" else None
    used = "" if regulators is None else f", {regulators.size} of them as regulators"
    measured = config.depth == "auto" and (counted or zeros_reflect_depth(counts[split.train], measures))
    depth = depth_scale(total[split.train]) if measured else None
    vocabulary = tuple(names[position] for position in chosen)
    predicted, state = _read_property(adata.obs, property_key), _read_state(adata.obs, config.state_key)
    multiplicity = to_multiplicity(values, transform, total, target)
    cells = Cells(
        multiplicity=multiplicity,
        vocabulary=vocabulary,
        regulators=regulators,
        labels=labels,
        classes=classes,
        property=predicted,
        obs_names=adata.obs_names.to_numpy(str),
        basal=basal_multiplicity(total, depth),
        depth=depth,
        measures_depth=measures,
        depth_share=depth_share(counts[split.train], measures),
        target_total=target,
        counts_from=expression.origin,
        notes=(
            *_left_out(adata),
            *unnamed_note(expression.var, config.gene_key),
            *_empty_cells(values),
            *doubts,
            *doubtful_cells(adata.obs_names.astype(str)),
            *_without_group(groups, config.group_key),
            *_labels_of_text(classes),
            *_labels_alike(classes),
            *_without_number(state, config.state_key, "data.state_key"),
            *_without_number(predicted, property_key, "objectives.property.key"),
            *_types_not_trained(labels, classes, split, config.group_key),
            f"{chosen.size} of {len(names)} genes are used ({listed(vocabulary, most=3)}){used}.",
            *genes_note(names, config.genes),
            regulators_note,
            *_dropped_regulators(names, named, chosen, config.genes),
            *_constant_regulators(vocabulary, regulators, multiplicity[split.train]),
        ),
        truth=read_truth(adata),
        groups=groups,
        state=state,
        state_name=config.state_key or "",
        counting=counting_of(transform, total, target) if counted else None,
        var_names=_var_names(expression, config, vocabulary),
        digest=digest_of_cells(
            values, config, split, (vocabulary, classes), (labels, predicted, groups, state, regulators)
        ),
    )
    return cells, split


@dataclass(frozen=True)
class CellsInPieces:
    """Cells of which a piece at a time is in memory.

    pieces: makes them, each time anew, one after the other.   counts_from, notes: see Cells.
    """

    number: int
    pieces: Callable[[], Iterator[Cells]]
    counts_from: str
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return self.number


def cells_for_vocabulary(adata: AnnData, config: DataConfig, vocabulary: Sequence[str], **model: Any) -> Cells:
    """The same as `cells_in_pieces`, with all cells in one piece."""
    (cells,) = cells_in_pieces(adata, config, vocabulary, rows=None, **model).pieces()
    return cells


def cells_in_pieces(
    adata: AnnData,
    config: DataConfig,
    vocabulary: Sequence[str],
    *,
    rows: int | None,
    regulators: np.ndarray | None = None,
    classes: Sequence[str] = (),
    target_total: float | None = None,
    depth: DepthScale | None = None,
    measures_depth: np.ndarray | None = None,
    share_of_depth: np.ndarray | None = None,
) -> CellsInPieces:
    """Cells of another AnnData for a trained model: with its genes, its transform and its classes.

    Genes that the data lack are absent (multiplicity 0); a cell's depth is then divided by the share of the training
    cells' depth in the other genes (share_of_depth: Cells.depth_share of the training cells). Labels that are not among
    the model's classes are missing.
    rows: cells of a piece; None: all. All values are checked before the first piece is made.
    Raises VocabularyMismatch where the data have fewer than half of the genes, DataError, ConfigError.
    """
    expression = expression_in_pieces(adata, config, rows)
    to_vocabulary, shared = _to_vocabulary(expression.var, adata.obs_names, config, vocabulary)
    measures = np.ones(len(vocabulary), dtype=bool) if measures_depth is None else measures_depth
    share = np.zeros(len(vocabulary)) if share_of_depth is None else share_of_depth
    note = f"{shared.sum()} of the model's {len(vocabulary)} genes are in the data; the others count as absent."
    lost = float(share[~shared].sum())
    if 0 < lost < 1:
        note += f" They held {lost:.0%} of the training cells' depth; the depth of each cell is corrected for that."
    labels, label_names = read_labels(adata.obs, config.label_key)
    position_of = {label: position for position, label in enumerate(classes)}
    translate = np.array([position_of.get(label, MISSING) for label in label_names] + [MISSING], np.int64)
    obs_names, no_property = adata.obs_names.to_numpy(str), _read_property(adata.obs, None)
    transform, counted = _transform(config), config.values == "counts"
    notes = (*_left_out(adata), *unnamed_note(expression.var, config.gene_key), note)

    def pieces() -> Iterator[Cells]:
        first = 0
        for piece in expression.pieces():
            here = slice(first, first := first + piece.shape[0])
            values = (piece @ to_vocabulary).tocsr()
            values.sort_indices()
            total = totals(values if counted else detected(values), measures)
            if 0 < lost < 1:
                total = total / (1 - lost)
            yield Cells(
                multiplicity=to_multiplicity(values, transform, total, target_total),
                vocabulary=tuple(vocabulary),
                regulators=regulators,
                labels=translate[labels[here]],  # -1 reads the last entry: missing
                classes=tuple(classes),
                property=no_property[here],
                obs_names=obs_names[here],
                basal=basal_multiplicity(total, depth),
                depth=depth,
                measures_depth=measures,
                depth_share=share,
                target_total=target_total,
                counts_from=expression.origin,
                counting=counting_of(transform, total, target_total) if counted else None,
                notes=notes,
            )

    return CellsInPieces(adata.n_obs, pieces, expression.origin, notes)


def _to_vocabulary(
    var: pd.DataFrame, obs_names: pd.Index, config: DataConfig, vocabulary: Sequence[str]
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """What takes values with the genes of `var` to those of the vocabulary, CSR float32 [genes, N], and which of the
    latter are there, bool [N]. Raises VocabularyMismatch, DataError, ConfigError.
    """
    names, column = _columns(var, config)
    position = {name: place for place, name in enumerate(names)}
    shared = np.array([gene in position for gene in vocabulary])
    if 2 * shared.sum() < len(vocabulary):
        where = "The AnnData" if config.path == MEMORY else config.path
        raise VocabularyMismatch(_mismatch(where, var, obs_names, names, vocabulary, int(shared.sum())))
    place = np.full(len(names), MISSING)
    place[[position[gene] for gene in np.asarray(vocabulary, object)[shared]]] = np.flatnonzero(shared)
    place = place[column]
    known = place != MISSING
    entries = (np.ones(known.sum(), np.float32), (np.flatnonzero(known), place[known]))
    return sparse.csr_matrix(entries, shape=(len(place), len(vocabulary))), shared


def read_labels(
    obs: pd.DataFrame, key: str | None, instead: str = "set data.label_key to another column, or to null"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Position of each cell's label among the sorted classes, int64 [C], and the classes; -1: NaN, None or empty.

    key: `data.label_key`, or another column.   instead: what to do where it holds no label. Raises DataError where obs
    has no such column or the column no label.
    """
    if key is None:
        return np.full(len(obs), MISSING, np.int64), ()
    column = column_of(obs, key, "data.label_key", "obs")
    text = column.astype(object).map(str)
    missing = (column.isna() | (text.str.strip() == "")).to_numpy()
    classes, positions = np.unique(text.to_numpy(str)[~missing], return_inverse=True)
    if classes.size == 0:
        raise DataError(f"Column {key!r} of obs holds no labels; {instead}.")
    if odd := [name for name in text[~missing].unique() if CONTROL.search(name)]:
        raise DataError(
            f"The label {odd[0]!a} in the column {key!r} of obs has a line feed, a null character or another character "
            "that files cannot hold; rename it first."
        )
    labels = np.full(len(obs), MISSING, np.int64)
    labels[~missing] = positions
    return labels, tuple(map(str, classes))


def read_columns(
    config: DataConfig, cells: Cells, columns: dict[str, str], adata: AnnData | None = None
) -> dict[str, pd.Series]:
    """Further columns of obs for the same cells, by name: what `load_cells` has read does not keep obs.

    columns: name of a column -> the option that names it, for messages.   adata: the cells in memory, if they were.
    Raises DataError where obs has no such column, or the data are no longer those of the cells.
    """
    source = open_source(config) if adata is None else adata
    if not np.array_equal(source.obs_names.to_numpy(str), cells.obs_names):
        raise DataError(f"{config.path} changed while it was read: its cells are others now; try again.")
    refuse_column_of_var(source, {option: name for name, option in columns.items()})
    found = {name: column_of(source.obs, name, option, "obs") for name, option in columns.items()}
    if adata is None and source.isbacked:
        source.file.close()
    return found


def _left_out(adata: AnnData) -> tuple[str, ...]:
    """A sentence about the features of a 10x file that are not genes, where there are any."""
    return (adata.uns[LEFT_OUT],) if LEFT_OUT in adata.uns else ()


def _empty_cells(values: sparse.csr_matrix) -> tuple[str, ...]:
    """A sentence about cells that hold none of the genes, where there are any."""
    empty = int((np.diff(values.indptr) == 0).sum())
    return (f"{empty} of {values.shape[0]} cells hold none of the genes; nothing is learned from them.",) * bool(empty)


def _without_group(groups: np.ndarray | None, key: str | None) -> tuple[str, ...]:
    """A sentence about cells that belong to no group, where there are any."""
    alone = 0 if groups is None else int((groups == MISSING).sum())
    return (f"{alone} cells have nothing in the column {key!r} of obs; they stay together as one group.",) * bool(alone)


def _labels_of_text(classes: Sequence[str]) -> tuple[str, ...]:
    """A sentence about cell types that other programs write for missing labels, where there are any."""
    odd = [name for name in classes if name.strip().casefold() in OF_MISSING]
    if not odd:
        return ()
    what = f"label {odd[0]!r} is a text and so a cell type"
    if len(odd) > 1:
        what = f"labels {listed(list(map(repr, odd)))} are texts and so cell types"
    return (f"The {what}; leave it empty where it means that none is known.",)


def _labels_alike(classes: Sequence[str]) -> tuple[str, ...]:
    """A sentence about two cell types whose names differ in spaces or in upper and lower case alone."""
    own: dict[str, str] = {}
    for name in classes:
        if (other := own.setdefault(plain(name).casefold(), name)) != name:
            return (
                f"The labels {other!a} and {name!a} differ only in spaces, dashes or upper and lower case, and count "
                "as two cell types; give them one name if they are one.",
            )
    return ()


def _without_number(values: np.ndarray | None, key: str | None, field: str) -> tuple[str, ...]:
    """A sentence about cells without a finite number in the column that `field` names, where there are any."""
    absent = 0 if values is None or key is None else int(np.isnan(values).sum())
    return (f"{absent} cells have no finite number in the column {key!r} of obs ({field}).",) * bool(absent)


def _types_not_trained(
    labels: np.ndarray, classes: Sequence[str], split: Split, group_key: str | None
) -> tuple[str, ...]:
    """A sentence about cell types that no training cell has, as groups stay together, where there are any."""
    absent = [repr(name) for place, name in enumerate(classes) if not (labels[split.train] == place).any()]
    if group_key is None or not absent:
        return ()
    return (
        f"No training cell has the type {listed(absent)}, as the groups of data.group_key ({group_key!r}) stay "
        "together in the split, and no cell will be called so; give more groups with such cells, or set "
        "data.group_key: null.",
    )


def _read_groups(obs: pd.DataFrame, key: str | None) -> np.ndarray | None:
    """The number of each cell's group, [C]; cells without a group form one group together (-1)."""
    if key is None:
        return None
    column = column_of(obs, key, "data.group_key", "obs").astype(object)
    column = column.where(column.astype(str).str.strip() != "", None)  # an empty text names no group
    groups = pd.factorize(column, use_na_sentinel=True)[0]
    if len(groups) and (groups < 0).all():
        raise DataError(
            f"The column {key!r} of obs (data.group_key) has no value for any cell; choose another, or set "
            "data.group_key: null."
        )
    if len(groups) >= MANY and np.unique(groups).size == len(groups):
        raise DataError(
            f"The column {key!r} of obs (data.group_key) has another value for each of the {len(groups)} cells, so "
            "that it groups none; set data.group_key to the column of the donor or batch, or to null."
        )
    return groups


def _read_property(obs: pd.DataFrame, key: str | None) -> np.ndarray:
    values = _read_number(obs, key, "objectives.property.key")
    return np.full(len(obs), np.nan, np.float32) if values is None else values


def _read_state(obs: pd.DataFrame, key: str | None) -> np.ndarray | None:
    values = _read_number(obs, key, "data.state_key")
    if values is None:
        return None
    known = values[~np.isnan(values)]
    if not known.size:
        raise DataError(f"Column {key!r} of obs holds no numbers; set data.state_key to another column, or to null.")
    if (known == known[0]).all():
        raise DataError(
            f"Column {key!r} of obs is {known[0]:g} in every cell that has a number (in single precision), so no cell "
            "is further along than another; set data.state_key to another column, or to null."
        )
    return values


def _read_number(obs: pd.DataFrame, key: str | None, option: str) -> np.ndarray | None:
    """A numeric column of obs, float32 [C], NaN where missing; None without a key. option: the field with the key."""
    if key is None:
        return None
    column = column_of(obs, key, option, "obs")
    try:
        numbers = pd.to_numeric(column.astype(object))
        if numbers.dtype.kind == "c":
            raise TypeError("complex numbers have no order")
        values = numbers.to_numpy(np.float32)
    except (ValueError, TypeError):
        raise DataError(f"Column {key!r} of obs is not numeric; set {option} to a numeric column.") from None
    return np.where(np.isfinite(values), values, np.float32(np.nan))


def _named_genes(expression: Expression, config: DataConfig) -> tuple[sparse.csr_matrix, list[str]]:
    _refuse_sums(config)
    return merge_duplicates(expression.values, gene_names(expression.var, config.gene_key), config.duplicates)


def _columns(var: pd.DataFrame, config: DataConfig) -> tuple[list[str], np.ndarray]:
    """The names of the genes, each once, and to which of them each row of var belongs (see merge_duplicates)."""
    _refuse_sums(config)
    own = gene_names(var, config.gene_key)
    _, names = merge_duplicates(sparse.csr_matrix((0, len(own)), dtype=np.float32), own, config.duplicates)
    position = {name: place for place, name in enumerate(names)}
    return names, np.array([position[name] for name in own], np.int64)


def _refuse_sums(config: DataConfig) -> None:
    if config.values == "expression" and config.duplicates == "sum":
        raise ConfigError(
            "data.duplicates: sum adds counts, but data.values is expression; set data.duplicates: refuse."
        )


def _var_names(expression: Expression, config: DataConfig, vocabulary: Sequence[str]) -> tuple[str, ...] | None:
    """What the index of var calls the genes of the vocabulary; of a gene with several columns, that of the first."""
    if config.gene_key is None:
        return None
    own: dict[str, str] = {}
    for name, index in zip(gene_names(expression.var, config.gene_key), expression.var.index, strict=True):
        own.setdefault(name, str(index))
    return tuple(own[name] for name in vocabulary)


def _transform(config: DataConfig) -> str:
    return "counts" if config.values == "expression" else config.multiplicity  # expression is used as it is


def _positions_within(chosen: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where the wanted genes are among the chosen ones (both sorted positions in the data)."""
    positions = np.flatnonzero(np.isin(chosen, wanted)).astype(np.int64)
    if positions.size == 0:
        raise DataError(
            "None of the regulators (data.regulators) is among the chosen genes; choose more genes (data.genes)."
        )
    return positions


def _dropped_regulators(
    names: Sequence[str], named: np.ndarray | None, chosen: np.ndarray, choice: int | str
) -> tuple[str, ...]:
    """A sentence about the regulators that are in the data and not among the chosen genes, where there are any."""
    dropped = [] if named is None else [names[position] for position in np.setdiff1d(named, chosen)]
    if not dropped:
        return ()
    reason = "no training cell expresses them" if isinstance(choice, int) else f"data.genes ({choice}) leaves them out"
    return (f"{len(dropped)} regulators are in the data but not used, as {reason}: {listed(dropped)}.",)


def _constant_regulators(
    vocabulary: Sequence[str], regulators: np.ndarray | None, training: sparse.csr_matrix
) -> tuple[str, ...]:
    """A sentence about regulators that are the same in all training cells and so can have no edge."""
    constant = [] if regulators is None else [vocabulary[j] for j in regulators[~varying(training[:, regulators])]]
    if not constant:
        return ()
    return (
        f"{len(constant)} regulators do not vary between the training cells and have no edges: {listed(constant)}.",
    )


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names in a sentence; of many, the first."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _mismatch(
    path: str, var: pd.DataFrame, obs_names: pd.Index, names: Sequence[str], vocabulary: Sequence[str], shared: int
) -> str:
    """How many genes are shared, what the names look like, and the column of var that would fit better, if any."""
    columns = {"null": var.index, **{str(key): var[key] for key in var}}
    overlap = {key: int(column.astype(str).isin(set(vocabulary)).sum()) for key, column in columns.items()}
    best = max(overlap, key=lambda key: overlap[key])
    looks = f"like {names[0]!r}"
    if ENSEMBL_ID.fullmatch(names[0]):
        looks = f"like Ensembl ids ({names[0]!r})"
    if overlap[best] > shared:
        advice = f"Its names look {looks}; set data.gene_key: {best}."
    elif (turned := obs_names.astype(str).isin(vocabulary)).sum() > shared:
        advice = (
            f"Its cells have names of the model's genes ({str(obs_names[int(turned.argmax())])!r}): exchange its rows "
            "and columns, as adata.T does, or data.orientation for a text file."
        )
    elif near := near_miss(names, vocabulary) if shared == 0 else None:
        advice = f"Of its names and the model's, {near}."
    elif shared == 0:
        advice = (
            f"Its names look {looks}; the model's are like {vocabulary[0]!r}: "
            "set data.gene_key to a column of var with such names."
        )
    else:
        advice = "At least half of them are needed; give data with more of these genes."
    return f"{path} shares {shared} of {len(vocabulary)} genes with the model. {advice}"
