"""Look into a file of cells, to write a first configuration for it: which column holds the cell
types, and which matrix the counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pandas as pd
from anndata import AnnData

from grn.cells.genes.feature_types import are_genes, left_out
from grn.cells.genes.names import ENSEMBL_ID, gene_names, once_each, refuse_cells_as_genes
from grn.cells.obs import condition_column
from grn.cells.preprocessing.counts import choices_that_hold, features_of, genes_of, read_expression
from grn.cells.readers.registry import is_text, open_source, source_in_file
from grn.config.schema import DataConfig, Orientation
from grn.runtime.errors import DataError

# names of columns of obs with cell types, the likeliest first
LABELS = (
    "cell_type",
    "celltype",
    "cell_types",
    "cell.type",
    "bulk_labels",
    "labels",
    "label",
    "annotation",
    "louvain",
    "seurat_annotations",
    "leiden",
    "clusters",
    "cluster",
    "seurat_clusters",
)
# parts of further names, as celltype_l1 and author_cell_type
PARTS = ("celltype", "cell_type", "cell.type", "annot")
# names of columns of var with gene symbols
SYMBOLS = (
    "gene_name",
    "gene_names",
    "gene_symbol",
    "gene_symbols",
    "feature_name",
    "symbol",
    "symbols",
)
MOST_TYPES = 200  # a column with more values holds something else than cell types


@dataclass(frozen=True)
class Found:
    """The findings in a file of cells.

    fields: values for fields of the section data, by name.
    sentences: for the user, about what was found and what was guessed.
    """

    fields: dict[str, str | None]
    sentences: list[str]


def describe(path: str) -> Found:
    """Return which fields of the section data fit the file at `path`, with the reasons.

    Raises DataError, ConfigError.
    """
    orientation = _orientation_of(path) if is_text(Path(path)) else None
    config = DataConfig(path=path, orientation=orientation)
    with source_in_file(config, everything=False) as adata:
        counts, sentence = _counts(adata, config)
        fields = {"path": path, "orientation": orientation, "counts": counts}
        sentences = [f"{path} has {adata.n_obs} cells x {adata.n_vars} genes.", sentence]
        for field, (value, sentence) in {
            "gene_key": _symbols(adata),
            "label_key": _labels(adata),
        }.items():
            fields[field] = value
            sentences.append(sentence)
        features = features_of(adata, counts)
        sentences += filter(None, [left_out(features, are_genes(features), path)])
        fields["state_key"], sentence = condition_column(adata.obs, [fields["label_key"]])
        sentences += [sentence] if sentence else []
        try:  # what training will refuse
            names = gene_names(genes_of(adata, counts), fields["gene_key"])
            refuse_cells_as_genes(names, list(map(str, adata.obs_names)), "these cells")
            once_each(names, config)
        except DataError as error:
            sentences.append(str(error))
    return Found(fields, sentences)


def _orientation_of(path: str) -> Orientation:
    """Return what the rows of a text file are, by their names.

    Raises DataError where these do not tell.
    """
    possible: dict[Orientation, DataError | None] = {}  # with what else is wrong
    for orientation in get_args(Orientation):
        try:
            open_source(DataConfig(path=path, orientation=orientation))
            possible[orientation] = None
        except DataError as error:
            if error.field != "data.orientation":
                possible[orientation] = error
    if len(possible) != 1:
        raise DataError(
            f"Names do not tell whether a row of {path} is a cell or a gene",
            advice=f"say it when you train: grn train {path} --orientation "
            f"{' or '.join(get_args(Orientation))}",
        )
    ((orientation, problem),) = possible.items()
    if problem is not None:
        raise problem
    return orientation


def _counts(adata: AnnData, config: DataConfig) -> tuple[str, str]:
    """Return the value of data.counts, and a sentence about it.

    Raises DataError where no matrix can be used.
    """
    found = choices_that_hold(adata, "counts")
    if not found:
        usable = choices_that_hold(adata, "expression")
        if not usable:
            read_expression(adata, config)  # raises: its sentence says what is wrong with X
        return usable[0], (
            f"No matrix holds counts: add one, or set data.values to expression to use {usable[0]} "
            "as it is."
        )
    if found[0] == "recover":
        return found[0], "Counts are recovered from log1p values."
    others = f" (also: {', '.join(found[1:])})" if found[1:] else ""
    return found[0], f"Counts are in {found[0]}{others}."


def _symbols(adata: AnnData) -> tuple[str | None, str]:
    """Return the column of var with gene symbols, where its index has Ensembl ids, and a sentence
    about it.
    """
    names = list(map(str, adata.var_names[:1]))
    if not names or not ENSEMBL_ID.fullmatch(names[0]):
        return None, f"Genes are named by the index of var ({', '.join(names)}, ...)."
    column = next((str(key) for key in adata.var if str(key).lower() in SYMBOLS), None)
    if column is None:
        return None, f"Genes are Ensembl ids ({names[0]}, ...); no column of var holds symbols."
    return column, f"Gene symbols are in the column {column!r} of var; its index holds Ensembl ids."


def _labels(adata: AnnData) -> tuple[str | None, str]:
    """Return the column of obs that by its name holds cell types, if any, and a sentence about
    it.
    """
    columns = [str(key) for key in adata.obs if _is_label(adata.obs[key])]
    known = [key for name in LABELS for key in columns if key.lower() == name]
    known += [
        key for key in columns if key not in known and any(part in key.lower() for part in PARTS)
    ]
    if not known:
        rest = f"; columns that could be: {', '.join(map(repr, columns))}" if columns else ""
        return None, f"No column of obs is known to hold cell types, so none are learned{rest}."
    others = ", ".join(repr(key) for key in columns if key != known[0])
    return known[
        0
    ], f"Cell types are in the column {known[0]!r} of obs{others and f' (it also has {others})'}."


def _is_label(column: pd.Series) -> bool:
    """Return whether a column can hold cell types: texts, of which there are a few, each many
    times.
    """
    if not (
        isinstance(column.dtype, pd.CategoricalDtype)
        or pd.api.types.is_string_dtype(column.astype(object))
    ):
        return False
    return 2 <= column.nunique() <= min(MOST_TYPES, len(column) // 3)
