"""Which rows of var are genes: a matrix may hold antibodies, peaks or guides beside them, and a
column says which.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from grn.runtime.errors import DataError

# names that 10x, scanpy and muon give the column, in lower case
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
"""Kinds that are known not to be genes. Other words, as protein_coding, are kinds of genes."""


def are_genes(var: pd.DataFrame, where: str = "The matrix") -> np.ndarray:
    """Which features are genes, bool [F]; a feature without a type is one. where: the data, for
    messages.

    Raises DataError where none is.
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
    """A sentence about the features that are not genes; empty where all are.

    genes: of are_genes.
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
    names = {str(name).casefold(): name for name in reversed(list(var.columns))}
    return next((names[each] for each in COLUMNS if each in names), None)


def _counted(kinds: pd.Series) -> str:
    return ", ".join(f"{kind}: {count}" for kind, count in Counter(map(str, kinds)).items())
