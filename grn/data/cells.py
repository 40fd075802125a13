"""The data set that everything downstream reads: cells as rows of multiplicities, with what is known of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.config.schema import DataConfig
from grn.data.preprocessing.counts import Expression, read_expression
from grn.data.preprocessing.depth import (
    DepthScale,
    basal_multiplicity,
    cell_weights,
    depth_scale,
    depth_share,
    measures_depth,
    presence,
    totals,
    totals_behind,
    zeros_tell_depth,
)
from grn.data.preprocessing.genes import choose_genes, choose_regulators, column_of, gene_names, merge_duplicates
from grn.data.preprocessing.multiplicity import median_total, to_multiplicity
from grn.data.preprocessing.split import Split, split_cells
from grn.data.readers.memory import MEMORY
from grn.data.readers.registry import open_source
from grn.data.readers.tenx import LEFT_OUT
from grn.data.simulated import read_truth
from grn.errors import ConfigError, DataError, VocabularyMismatch

MISSING = -1


@dataclass(frozen=True)
class Cells:
    """C cells over the N genes of a vocabulary.

    multiplicity: CSR float32 [C, N], no stored zeros.   vocabulary [N].
    regulators: positions in the vocabulary, int64, or None where every gene may regulate.
    labels [C]: position in classes, -1 where missing.   property [C]: float32, NaN where missing.
    basal [C]: multiplicity of the basal gene, from the cell's depth by `depth` (its scale; None: all 1).
    weight [C]: how much a cell counts where genes are compared: more where it is deeper, 1 on average.
    groups [C]: a number per donor or batch (data.group_key); None where nothing has to stay together.
    measures_depth [N]: bool, the genes that make up a cell's depth.   depth_share [N]: what part of the training
    cells' depth each of them holds.
    target_total: what log1p_normalised scaled each cell to; None for the other transforms.
    counts_from: a sentence that says where the counts were.   notes: more sentences for the user.
    truth: source, target, sign of the planted network, where the cells were simulated.
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
    weight: np.ndarray
    measures_depth: np.ndarray
    depth_share: np.ndarray
    target_total: float | None
    counts_from: str
    notes: tuple[str, ...] = ()
    truth: pd.DataFrame | None = None
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return self.multiplicity.shape[0]


def load_cells(
    config: DataConfig, property_key: str | None = None, seed: int = 0, adata: AnnData | None = None
) -> tuple[Cells, Split]:
    """The cells of `data.path` and their split. What is chosen from data is chosen on the training cells alone.

    adata: the cells themselves where they are in memory, in the place of those of `data.path`; it is not changed.
    """
    source = adata
    adata = open_source(config) if source is None else source
    labels, classes = read_labels(adata.obs, config.label_key)
    groups = _read_groups(adata.obs, config.group_key)
    split = split_cells(labels, groups, config.validation_fraction, config.test_fraction, seed)
    expression = read_expression(adata, config)
    values, names = _named_genes(expression, config)
    named, found = choose_regulators(names, config.regulators)
    chosen = choose_genes(values[split.train], names, config.genes, named, config.values)
    if len(chosen) < len(names):
        values = values[:, chosen]
    if source is None and adata.isbacked:
        adata.file.close()
    regulators = None if named is None else _positions_within(chosen, named)
    counted = config.values == "counts"
    tells_depth = values if counted else presence(values)
    measures = measures_depth(tells_depth[split.train], regulators)
    total = totals(tells_depth, measures)
    transform = _transform(config)
    target = median_total(total[split.train]) if transform == "log1p_normalised" else None
    used = "" if regulators is None else f", {regulators.size} of them as regulators"
    told = config.depth == "auto" and (counted or zeros_tell_depth(tells_depth[split.train], measures))
    depth = depth_scale(total[split.train]) if told else None
    if not told:
        weight = np.ones(len(total), np.float32)
    else:
        weight = cell_weights(total if counted else totals_behind(total, int(measures.sum())))
    cells = Cells(
        multiplicity=to_multiplicity(values, transform, total, target),
        vocabulary=tuple(names[position] for position in chosen),
        regulators=regulators,
        labels=labels,
        classes=classes,
        property=_read_property(adata.obs, property_key),
        obs_names=adata.obs_names.to_numpy(str),
        basal=basal_multiplicity(total, depth),
        depth=depth,
        weight=weight,
        measures_depth=measures,
        depth_share=depth_share(tells_depth[split.train], measures),
        target_total=target,
        counts_from=expression.origin,
        notes=(*_left_out(adata), f"{chosen.size} of {len(names)} genes are used{used}.", found),
        truth=read_truth(adata),
        groups=groups,
    )
    return cells, split


def cells_for_vocabulary(
    adata: AnnData,
    config: DataConfig,
    vocabulary: Sequence[str],
    *,
    regulators: np.ndarray | None = None,
    classes: Sequence[str] = (),
    target_total: float | None = None,
    depth: DepthScale | None = None,
    measures_depth: np.ndarray | None = None,
    depth_held: np.ndarray | None = None,
) -> Cells:
    """Cells of another AnnData for a model that is already trained: its genes, its transform, its classes.

    Genes that the data lack are absent (multiplicity 0), and a cell's depth is what it would be with the part of the
    training cells' depth that they held (depth_held: Cells.depth_share of these); labels that the model does not know
    are missing.
    Raises VocabularyMismatch where the data have fewer than half of the genes.
    """
    expression = read_expression(adata, config)
    values, names = _named_genes(expression, config)
    column = {name: position for position, name in enumerate(names)}
    shared = np.array([gene in column for gene in vocabulary])
    if 2 * shared.sum() < len(vocabulary):
        where = "The AnnData" if config.path == MEMORY else config.path
        raise VocabularyMismatch(_mismatch(where, expression.var, names, vocabulary, int(shared.sum())))
    place = sparse.csr_matrix(
        (
            np.ones(shared.sum(), np.float32),
            ([column[gene] for gene in np.asarray(vocabulary, object)[shared]], np.flatnonzero(shared)),
        ),
        shape=(len(names), len(vocabulary)),
    )
    values = (values @ place).tocsr()
    values.sort_indices()
    measures = np.ones(len(vocabulary), dtype=bool) if measures_depth is None else measures_depth
    total = totals(values if config.values == "counts" else presence(values), measures)
    note = f"{shared.sum()} of the model's {len(vocabulary)} genes are in the data; the others count as absent."
    share = np.zeros(len(vocabulary)) if depth_held is None else depth_held
    lost = float(share[~shared].sum())
    if 0 < lost < 1:
        total = total / (1 - lost)
        note += f" They held {lost:.0%} of the training cells' depth, which is allowed for."
    found, known = read_labels(adata.obs, config.label_key)
    place_of = {label: position for position, label in enumerate(classes)}
    translate = np.array([place_of.get(label, MISSING) for label in known] + [MISSING], np.int64)
    return Cells(
        multiplicity=to_multiplicity(values, _transform(config), total, target_total),
        vocabulary=tuple(vocabulary),
        regulators=regulators,
        labels=translate[found],  # -1 reads the last entry: missing
        classes=tuple(classes),
        property=_read_property(adata.obs, None),
        obs_names=adata.obs_names.to_numpy(str),
        basal=basal_multiplicity(total, depth),
        depth=depth,
        weight=np.ones(len(total), np.float32),
        measures_depth=measures,
        depth_share=share,
        target_total=target_total,
        counts_from=expression.origin,
        notes=(*_left_out(adata), note),
    )


def read_labels(obs: pd.DataFrame, key: str | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Position of each cell's label among the sorted classes; -1 where it is NaN, None or empty."""
    if key is None:
        return np.full(len(obs), MISSING, np.int64), ()
    column = column_of(obs, key, "data.label_key", "obs")
    text = column.astype(object).map(str)
    missing = (column.isna() | (text.str.strip() == "")).to_numpy()
    classes, positions = np.unique(text.to_numpy(str)[~missing], return_inverse=True)
    if classes.size == 0:
        raise DataError(f"obs column {key!r} holds no labels; set data.label_key to another column, or to null.")
    labels = np.full(len(obs), MISSING, np.int64)
    labels[~missing] = positions
    return labels, tuple(map(str, classes))


def _left_out(adata: AnnData) -> tuple[str, ...]:
    """What 10x files hold besides genes, in a sentence, where there is something."""
    return (adata.uns[LEFT_OUT],) if LEFT_OUT in adata.uns else ()


def _read_groups(obs: pd.DataFrame, key: str | None) -> np.ndarray | None:
    """A number per group; cells without one are a group of their own."""
    if key is None:
        return None
    return pd.factorize(column_of(obs, key, "data.group_key", "obs"), use_na_sentinel=True)[0]


def _read_property(obs: pd.DataFrame, key: str | None) -> np.ndarray:
    if key is None:
        return np.full(len(obs), np.nan, np.float32)
    column = column_of(obs, key, "objectives.property.key", "obs")
    try:
        values = pd.to_numeric(column.astype(object)).to_numpy(np.float32)
    except (ValueError, TypeError):
        raise DataError(f"obs column {key!r} is not numeric; objectives.property.key needs numbers.") from None
    return np.where(np.isfinite(values), values, np.float32(np.nan))


def _named_genes(expression: Expression, config: DataConfig) -> tuple[sparse.csr_matrix, list[str]]:
    if config.values == "expression" and config.duplicates == "sum":
        raise ConfigError("data.duplicates: sum adds counts, but data.values is expression; set it to refuse.")
    names = gene_names(expression.var, config.gene_key)
    return merge_duplicates(expression.values, names, config.duplicates)


def _transform(config: DataConfig) -> str:
    return "counts" if config.values == "expression" else config.multiplicity  # expression is taken as it is


def _positions_within(chosen: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where the wanted genes are among the chosen ones (both sorted positions in the data)."""
    positions = np.flatnonzero(np.isin(chosen, wanted)).astype(np.int64)
    if positions.size == 0:
        raise DataError("None of data.regulators is among the chosen genes; choose more genes (data.genes).")
    return positions


def _mismatch(path: str, var: pd.DataFrame, names: Sequence[str], vocabulary: Sequence[str], shared: int) -> str:
    """What is shared, what the names look like, and the column of var that fits better, where there is one."""
    columns = {"null": var.index, **{str(key): var[key] for key in var}}
    overlap = {key: int(column.astype(str).isin(set(vocabulary)).sum()) for key, column in columns.items()}
    best = max(overlap, key=lambda key: overlap[key])
    looks = f"like {names[0]!r}"
    if re.fullmatch(r"ENS[A-Z]*G\d{6,}(\.\d+)?", names[0]):
        looks = f"like Ensembl ids ({names[0]!r})"
    if overlap[best] > shared:
        way_out = f"Its names look {looks}; set data.gene_key: {best}."
    elif shared == 0:
        way_out = (
            f"Its names look {looks}; the model's are like {vocabulary[0]!r}: "
            "set data.gene_key to a column of var with such names."
        )
    else:
        way_out = "At least half of them are needed: give data that were not cut to fewer genes."
    return f"{path} shares {shared} of {len(vocabulary)} genes with the model. {way_out}"
