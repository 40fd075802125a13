"""Genes among the features of a matrix, which may hold antibodies, peaks or guides, too: a column
of var says what each feature is.

Letters: F features.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from grn.runtime.errors import DataError

# names of that column in files of 10x, scanpy and muon, in lower case
COLUMNS = ("feature_types", "feature_type", "modality")
GENES = ("gene expression", "gene", "genes", "gex", "rna")
OTHERS = (
    "antibody capture",
    "antigen capture",
    "multiplexing capture",
    "crispr guide capture",
    "custom",
    "peaks",
    "adt",
    "hto",
    "protein",
    "proteins",
    "atac",
    "guides",
    "negative control probe",
    "negative control codeword",
)
"""Kinds that are not genes. Other words, for example protein_coding, are kinds of genes."""


def are_genes(var: pd.DataFrame, where: str = "The matrix") -> np.ndarray:
    """Return which features are genes, bool [F]. A feature without a type is one.

    var: the table of F features.
    where: the name of the data in messages.
    Raises DataError where none is a gene.
    """
    column = _column(var)
    if column is None:
        return np.ones(len(var), dtype=bool)
    kinds = var[column].astype(object)
    missing = kinds.isna().to_numpy()
    words = kinds.astype(str).str.strip().str.casefold()
    genes = words.isin(GENES).to_numpy() | missing
    if not genes[~missing].any():
        genes = ~words.isin(OTHERS).to_numpy() | missing
    if len(var) and not genes.any():
        problem = f"{where} has no genes among its features ({_counted(kinds)})"
        raise DataError(problem, field="data.path", advice="give a matrix of gene expression")
    return genes


def left_out(var: pd.DataFrame, genes: np.ndarray, where: str) -> str:
    """Return a sentence about the features that are not genes; an empty text where all are.

    var: the table of F features.
    genes [F]: see are_genes.
    where: the name of the data in messages.
    """
    column = _column(var)
    if column is None or genes.all():
        return ""
    others = _counted(var[column].astype(object)[~genes])
    return (
        f"{(~genes).sum()} of {len(genes)} features of {where} are not genes and are left out "
        f"({others})."
    )


def _column(var: pd.DataFrame) -> str | None:
    """Return the column of var with the types of features; None where there is none."""
    names = {str(name).casefold(): name for name in reversed(list(var.columns))}
    return next((names[each] for each in COLUMNS if each in names), None)


def _counted(kinds: pd.Series) -> str:
    """Return a text of how many features there are of each kind."""
    return ", ".join(f"{kind}: {count}" for kind, count in Counter(map(str, kinds)).items())
