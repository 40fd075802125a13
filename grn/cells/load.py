"""Make Cells of the AnnData behind data.path: for training (load_cells), or for a trained model
(cells_in_pieces).

Letters: C cells, N genes of the vocabulary, M genes of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.cells import Cells, CellsInPieces, Known, Sample, Source, digest_of_cells
from grn.cells.genes.names import (
    ENSEMBL_ID,
    ToVocabulary,
    choose,
    column_with,
    examples,
    first_of_most,
    gene_names,
    merge_duplicates,
    near_miss,
    once_each,
    refuse_cells_as_genes,
)
from grn.cells.genes.programmes import parts_of, score
from grn.cells.guides import with_weights
from grn.cells.interventions import Interventions, read_interventions, with_keys
from grn.cells.notes import notes_on_cells, notes_on_interventions, notes_on_new_cells
from grn.cells.obs import (
    MISSING,
    column_of,
    condition_column,
    donors_of,
    named_as_conditions,
    read_groups,
    read_labels,
    read_state,
)
from grn.cells.preprocessing.counts import genes_of, in_file, read_expression
from grn.cells.preprocessing.multiplicity import (
    Counting,
    DepthScale,
    basal_multiplicity,
    counting_of,
    depth_scale,
    depth_share,
    detected,
    measures_depth,
    median_total,
    to_multiplicity,
    totals,
    zeros_reflect_depth,
)
from grn.cells.preprocessing.split import Split, copies_of, joined, split_cells
from grn.cells.readers import take_notes
from grn.cells.readers.anndata_files import names_of
from grn.cells.readers.registry import name_of, source_in_file
from grn.cells.simulated.cells import read_truth
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError, VocabularyMismatch
from grn.runtime.process_memory import give_back
from grn.runtime.processes import ALONE, Processes

FULL = 10_000  # genes that a transcriptome has at least
PIECE = 4096  # cells of a file that are checked at a time


def load_cells(
    config: DataConfig, seed: int = 0, adata: AnnData | None = None, processes: Processes = ALONE
) -> tuple[Cells, Split]:
    """Return the cells of `data.path` and their split.

    Genes are chosen, and the scale of depth is estimated, from the training cells alone.

    seed: of the split, and of the sample where the file has more than `data.sample` cells.
    adata: cells in memory, which are used instead of `data.path`; it is not changed.
    processes: the processes that load these cells together (see `read_expression`).
    Raises UserError.
    """
    source = _read(config, adata, seed, processes)
    copies = copies_of(source.values, config.values)
    split = split_cells(source.labels, source.groups, config.test_fraction, seed, copies)
    values, training = source.values, source.values[split.train]
    listed = listed_values(source, config)
    chosen = choose(training, source.names, config, source.expression.var)
    if len(chosen.positions) < len(source.names):
        values, training = (each[:, chosen.positions] for each in (values, training))
    counted = config.values == "counts"
    transform = config.multiplicity if counted else "counts"  # expression is used as it is
    # Depth is measured in counts, or in detected genes.
    counts, training = (values, training) if counted else (detected(values), detected(training))
    measures = measures_depth(training, chosen.regulators)
    total, share = totals(counts, measures), depth_share(training, measures)
    target = median_total(total[split.train]) if transform == "log1p_normalised" else None
    measured = config.depth == "auto" and (counted or zeros_reflect_depth(training, measures))
    depth = depth_scale(total[split.train]) if measured else None
    del training  # as large as all cells
    vocabulary = tuple(source.names[position] for position in chosen.positions)
    # Of a gene with several columns, the first one's name in the index of var.
    first = np.unique(source.columns, return_index=True)[1][chosen.positions]
    groups = joined(source.groups, copies)
    if groups is not None and source.groups is not None:
        # A group with cells that have no donor is none of the donors.
        groups = np.where(np.isin(groups, groups[source.groups == MISSING]), MISSING, groups)
    cells = Cells(
        multiplicity=to_multiplicity(values, transform, total, target),
        vocabulary=vocabulary,
        regulators=chosen.regulators,
        labels=source.labels,
        classes=source.classes,
        obs_names=source.obs_names,
        basal=basal_multiplicity(total, depth),
        depth=depth,
        measures_depth=measures,
        depth_share=share,
        target_total=target,
        counts_from=source.expression.origin,
        truth=source.truth,
        groups=groups,
        only_copies=source.groups is None and copies is not None,
        state=source.state,
        state_name=config.state_key or "",
        conditions=source.conditions,
        counting=counting_of(transform, total, target) if counted else None,
        var_names=None
        if config.gene_key is None
        else tuple(map(str, source.expression.var.index[first])),
        sample=source.sample,
        donors=tuple(source.donors),
        hint=source.hint,
        programmes=None
        if listed is None
        else np.stack(
            [score(to_multiplicity(part, transform, total, target).toarray()) for part in listed],
            axis=1,
        ),
    )
    notes = notes_on_cells(cells, source, chosen, split, copies, config)
    if source.interventions is not None:
        cells = intervened(
            cells, source.interventions, source.groups, weighed=config.guide_key is not None
        )
        notes = (*notes, *notes_on_interventions(cells))
    return replace(cells, notes=notes, digest=digest_of_cells(cells, values, config, split)), split


def listed_values(source: Source, config: DataConfig) -> list[sparse.csr_matrix] | None:
    """Return the values, CSR [C, n], of the genes of each programme in `data.regress_out`; None
    without programmes.

    The cell cycle has two parts, its phases, each with values of its own. Genes count whether they
    are among the chosen ones or not.
    Raises DataError where the cells have none of a programme's genes.
    """
    parts = []
    for programme in config.regress_out:
        found = parts_of(programme, source.names)
        if not found:
            raise DataError(
                f"{name_of(config)} has no gene of the programme {programme}, whose score would be "
                "regressed out",
                field="data.regress_out",
                advice="leave it out of {field}, or set data.gene_key to the column of var with "
                "gene symbols",
            )
        parts += [source.values[:, part] for part in found]
    return parts or None


def intervened(
    cells: Cells, done: Interventions, groups: np.ndarray | None, *, weighed: bool
) -> Cells:
    """Return the cells with the keys of their guides.

    groups [C]: number of the donor or batch (see Source); None: none are named.
    weighed: whether the cells tell how surely each guide worked, so that its key counts less where
        it may have failed.
    """
    guides = None
    if weighed:
        done, guides = with_weights(cells.multiplicity, done, groups)
    multiplicity, vocabulary, done = with_keys(cells.multiplicity, cells.vocabulary, done)
    more, none = vocabulary[len(cells.vocabulary) :], np.zeros(len(done.names))
    regulators = np.arange(len(cells.vocabulary)) if cells.regulators is None else cells.regulators
    return replace(
        cells,
        multiplicity=multiplicity,
        vocabulary=vocabulary,
        regulators=np.concatenate([regulators, np.sort(done.key)]),
        measures_depth=np.concatenate([cells.measures_depth, none.astype(bool)]),
        depth_share=np.concatenate([cells.depth_share, none]),
        var_names=None if cells.var_names is None else (*cells.var_names, *more),
        interventions=done,
        guides=guides,
    )


def read_columns(
    config: DataConfig, cells: Cells, columns: dict[str, str], adata: AnnData | None = None
) -> dict[str, pd.Series]:
    """Return further columns of obs for cells that `load_cells` has read, by name.

    columns: name of a column -> the option that asked for it, for messages.
    adata: the cells in memory, if they were read from there.
    Raises DataError where obs has no such column, or has other cells than before.
    """
    stored = source_in_file(config, everything=False, columns=columns.__contains__)
    with stored if adata is None else nullcontext(adata) as source:
        obs = _obs_of(source, None if cells.sample is None else cells.sample.rows)
        if not np.array_equal(obs.index.to_numpy(str), cells.obs_names):
            raise DataError(
                f"{config.path} changed while it was read: its cells are others now",
                advice="try again",
            )
        return {name: column_of(obs, name, option, "obs") for name, option in columns.items()}


def _obs_of(adata: AnnData, rows: np.ndarray | None) -> pd.DataFrame:
    """Return obs with the names of the cells as its index.

    rows: of some cells; None: all cells.
    """
    some = slice(None) if rows is None else rows
    obs = adata.obs.iloc[some]
    obs.index = names_of(adata, some).rename(obs.index.name)
    return obs


def cells_in_pieces(
    adata: AnnData,
    config: DataConfig,
    vocabulary: Sequence[str],
    *,
    rows: int | None = None,
    regulators: np.ndarray | None = None,
    classes: Sequence[str] = (),
    target_total: float | None = None,
    depth: DepthScale | None = None,
    measures_depth: np.ndarray | None = None,
    share_of_depth: np.ndarray | None = None,
    keys: int = 0,
) -> CellsInPieces:
    """Return the cells of an AnnData as a trained model reads them: with its genes, its transform
    and its classes.

    Genes that the data lack are absent (multiplicity 0); a cell's depth is then divided by the
    share of the training cells' depth that the other genes held. Labels that are not among the
    model's classes are missing. As in training, all values are checked before the first piece is
    made.

    vocabulary [N], regulators, classes, target_total, depth, measures_depth: of the training cells
        (see Cells). None: as in Cells; for measures_depth, all genes.
    rows: cells of a piece; None: all cells are one piece.
    share_of_depth [N]: Cells.depth_share of the training cells.
    keys: how many entries at the end of the vocabulary are keys of guides, which new cells lack.
    Raises VocabularyMismatch where the data have fewer than half of the genes, and DataError.
    """
    var = genes_of(adata, config.counts)
    raw = None if adata.raw is None else adata.raw.var_names
    genes = vocabulary[: len(vocabulary) - keys]
    found = to_vocabulary_of(var, adata.obs_names, config, genes, raw)
    to_vocabulary = found.matrix
    to_vocabulary.resize(to_vocabulary.shape[0], len(vocabulary))
    shared = np.concatenate([found.shared, np.zeros(keys, bool)])
    measures = np.ones(len(vocabulary), dtype=bool) if measures_depth is None else measures_depth
    share = np.zeros(len(vocabulary)) if share_of_depth is None else share_of_depth
    lost = float(share[~shared].sum())
    there = 1 - lost if 0 < lost < 1 else 1.0
    expression = read_expression(
        adata, config, rows, weights=to_vocabulary @ measures.astype(np.float64) / there
    )
    labels, label_names = read_labels(adata.obs, config.label_key)
    position_of = {label: position for position, label in enumerate(classes)}
    translate = np.array(
        [position_of.get(label, MISSING) for label in label_names] + [MISSING], np.int64
    )
    obs_names = adata.obs_names.to_numpy(str)
    usual = target_total
    if usual is None and depth is not None:
        usual = float(np.expm1(depth[0]))
    notes = notes_on_new_cells(
        found, var, config.gene_key, vocabulary, 1 - there, expression.scale, usual
    )
    notes = (*take_notes(adata), *filter(None, [expression.left_out]), *notes)

    def pieces() -> Iterator[Cells]:
        first = 0
        for piece in expression.pieces():
            here = slice(first, first := first + piece.shape[0])
            values = in_vocabulary(piece, to_vocabulary)
            multiplicity, basal, counting = transformed(
                values, config, measures, target_total, depth, there
            )
            yield Cells(
                multiplicity=multiplicity,
                vocabulary=tuple(vocabulary),
                regulators=regulators,
                labels=translate[labels[here]],  # -1 reads the last entry: missing
                classes=tuple(classes),
                obs_names=obs_names[here],
                basal=basal,
                depth=depth,
                measures_depth=measures,
                depth_share=share,
                target_total=target_total,
                counts_from=expression.origin,
                counting=counting,
                notes=notes,
            )

    return CellsInPieces(adata.n_obs, pieces, expression.origin, notes)


def transformed(
    values: sparse.csr_matrix,
    config: DataConfig,
    measures: np.ndarray,
    target_total: float | None,
    depth: DepthScale | None,
    there: float = 1.0,
) -> tuple[sparse.csr_matrix, np.ndarray, Counting | None]:
    """Return the multiplicities [C, N], the basal multiplicities [C], and how counts became
    multiplicities (None for expression).

    values: CSR [C, N], counts or expression over the vocabulary; its indices get sorted.
    measures, target_total, depth: of the training cells (see Cells).
    there: the share of the training cells' depth in the genes that the data have.
    """
    counted = config.values == "counts"
    transform = config.multiplicity if counted else "counts"
    values.sort_indices()
    total = totals(values if counted else detected(values), measures) / there
    counting = counting_of(transform, total, target_total) if counted else None
    return (
        to_multiplicity(values, transform, total, target_total),
        basal_multiplicity(total, depth),
        counting,
    )


def _read(config: DataConfig, adata: AnnData | None, seed: int, processes: Processes) -> Source:
    """Read the cells for a training and check them; each gene is then there once."""
    used = (
        config.label_key,
        config.group_key,
        config.state_key,
        config.intervention_key,
        config.guide_key,
    )
    stored = source_in_file(
        config, everything=False, columns=lambda key: key in used or named_as_conditions(key)
    )
    with stored if adata is None else nullcontext(adata) as opened:
        rows, known, obs = None, None, opened.obs
        if adata is None and opened.n_obs > config.sample and in_file(opened, config.counts):
            rows = np.sort(np.random.default_rng(seed).permutation(opened.n_obs)[: config.sample])
            others = read_groups(obs, config.group_key), read_state(obs, config.state_key)[0]
            known = Known(*read_labels(obs, config.label_key), *others)
        obs = _obs_of(opened, rows)
        size = None if rows is None else PIECE
        labels, classes = read_labels(obs, config.label_key)
        done = read_interventions(obs, config)
        groups = read_groups(obs, config.group_key)
        state, conditions = read_state(obs, config.state_key)
        expression = read_expression(opened, config, size, some=rows, processes=processes)
        sample = None
        if rows is not None and known is not None and expression.kept is not None:
            sample = Sample(rows, expression.kept.mark, known)
        read = expression.values if expression.kept is None else expression.kept.values
        obs_names = obs.index.to_numpy(str)
        truth = read_truth(opened)
        notes = (*take_notes(opened), *filter(None, [expression.left_out]))
        donors = donors_of(obs, config.group_key)
        hint = "" if config.state_key is not None else condition_column(obs, used)[1]
    names, columns = once_each(gene_names(expression.var, config.gene_key), config)
    refuse_cells_as_genes(names, obs_names.tolist(), name_of(config))
    values = merge_duplicates(read, columns)
    expression = replace(expression, kept=None)
    del read  # the sample is now `values`
    give_back()
    return Source(
        obs_names=obs_names,
        labels=labels,
        classes=classes,
        groups=groups,
        state=state,
        conditions=conditions,
        values=values,
        names=names,
        columns=columns,
        expression=expression,
        truth=truth,
        read=notes,
        hint=hint,
        interventions=done,
        sample=sample,
        donors=donors,
    )


def to_vocabulary_of(
    var: pd.DataFrame,
    obs_names: pd.Index,
    config: DataConfig,
    vocabulary: Sequence[str],
    raw: pd.Index | None = None,
) -> ToVocabulary:
    """Return the map from the genes of `var` to the genes of a vocabulary; others are left out.

    Counts of genes that occur several times are added, as they are parts of one count.

    obs_names: names of the cells, for advice.
    raw: names of the genes of adata.raw, for advice.
    Raises VocabularyMismatch where fewer than half of the genes are there, and DataError where
    logarithms would have to be added.
    """
    names = gene_names(var, config.gene_key)
    position = {gene: place for place, gene in enumerate(vocabulary)}
    place = np.array([position.get(name, MISSING) for name in names], np.int64)
    known = place != MISSING
    times = np.bincount(place[known], minlength=len(vocabulary))
    shared = times > 0
    if 2 * shared.sum() < len(vocabulary):
        field, advice = _advice(var, obs_names, names, vocabulary, int(shared.sum()), raw)
        absent = [gene for gene, there in zip(vocabulary, shared, strict=True) if not there]
        problem = (
            f"{name_of(config)} shares {shared.sum()} of {len(vocabulary)} genes with the model; "
            f"{len(absent)} are missing among its {len(names)} ({examples(absent)})"
        )
        raise VocabularyMismatch(problem, field=field, advice=advice)
    repeated = [gene for gene, number in zip(vocabulary, times, strict=True) if number > 1]
    if repeated and config.values == "expression":
        raise DataError(
            f"{len(repeated)} of the model's genes occur more than once in {name_of(config)} "
            f"({examples(repeated)}), and their values are no counts, which could be added",
            field="data.gene_key",
            advice="keep one of each, or set {field} to a column of var with unique names",
        )
    entries = (np.ones(known.sum(), np.float32), (np.flatnonzero(known), place[known]))
    matrix = sparse.csr_matrix(entries, shape=(len(place), len(vocabulary)))
    return ToVocabulary(matrix, shared, names, repeated)


def in_vocabulary(values: sparse.csr_matrix, to_vocabulary: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return values over the genes of the vocabulary, CSR [C, N].

    values: CSR [C, M] over the genes of a file.
    to_vocabulary: CSR [M, N], see ToVocabulary.
    """
    genes = to_vocabulary.tocsc()
    # each is one column: picking it is faster, and keeps rows sorted
    if (np.diff(genes.indptr) == 1).all():
        return values[:, genes.indices]
    return (values @ to_vocabulary).tocsr()


def _advice(
    var: pd.DataFrame,
    obs_names: pd.Index,
    names: Sequence[str],
    vocabulary: Sequence[str],
    shared: int,
    raw: pd.Index | None,
) -> tuple[str, str]:
    """Return which field to set, and what to do, where the data have too few genes of the model.

    The genes may be named in another column of var, rows and columns may be exchanged, and the
    genes may be in adata.raw, have slightly different names, or have been left out.

    shared: how many genes of the vocabulary are there.
    raw: names of the genes of adata.raw.
    """
    best, number = column_with(vocabulary, var)
    ids = "Ensembl ids, " if first_of_most(names, ENSEMBL_ID) else ""
    looks = f"its names look like {ids}{', '.join(map(repr, names[:1]))}"
    if number > shared:
        return "data.gene_key", f"{looks}: set {{field}} to {best}"
    if obs_names.astype(str).isin(vocabulary).sum() > shared:
        advice = "exchange rows and columns, as adata.T does"
        return "data.gene_key", f"its cells have names of the model's genes: {advice}"
    if raw is not None and (in_raw := int(np.isin(vocabulary, raw.astype(str)).sum())) > shared:
        return "data.counts", f"adata.raw has {in_raw} of them: set {{field}} to raw"
    near = near_miss(names, vocabulary)
    if shared and near is None and len(names) < FULL:
        advice = "give the cells with all of theirs"
        return "data.gene_key", f"{len(names)} genes look like a choice of genes: {advice}"
    return "data.gene_key", (
        near or f"{looks}, the model's like {vocabulary[0]!r}, and half of them are needed"
    )
