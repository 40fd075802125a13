"""Predicted labels in another vocabulary, and beside labels that the cells have already.

Letters: C cells, K cell types of the model.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData

from grn.cells.obs import column_of
from grn.errors import ConfigError, DataError, nearest, one_line

LabelMap = Mapping[str, str]  # a name of a cell type -> its name in the vocabulary that is wanted
COLUMNS = ["from", "to"]


@dataclass(frozen=True)
class LabelScores:
    """Predicted beside given labels.

    confusion: cells by given (rows) and predicted (columns) type, the given ones first among the columns; only cells
    whose given type the model has.   per_class: columns class, f1, cells.   accuracy: of the cells with a predicted
    type.   macro_f1: mean over the given types, for which an unassigned cell is a missed one.   unknown: cells without
    a label, or with one that the model does not have, which are in no score.   unknown_types: the latter's labels.
    """

    accuracy: float
    macro_f1: float
    confusion: pd.DataFrame
    per_class: pd.DataFrame
    unassigned: int
    unknown: int
    unknown_types: tuple[str, ...]

    def values(self) -> dict[str, float | np.ndarray]:
        """What .h5ad files can store of it: names of types, which may hold a '/', are values and no keys."""
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "confusion": self.confusion.to_numpy(np.int64),
            "given": self.confusion.index.to_numpy(object),
            "predicted": self.confusion.columns.to_numpy(object),
        }

    def sentence(self, column: str) -> str:
        """The scores in words. column: of obs, with the given labels."""
        scored = int(self.confusion.to_numpy().sum())
        left = f"; {self.unassigned} of them are unassigned and not in the accuracy" if self.unassigned else ""
        text = (
            f"Accuracy {self.accuracy:.3f}, macro F1 {self.macro_f1:.3f} against the labels in {column!r} "
            f"({scored} cells{left})."
        )
        if self.unknown:
            named = f", such as {self.unknown_types[0]!r}" if self.unknown_types else ""
            text += f" {self.unknown} cells have no label that the model has{named}, and are not scored."
        return text


def read_map(given: LabelMap | str | os.PathLike[str]) -> dict[str, str]:
    """The map in a csv or tsv file with the columns `from` and `to`, or that of a mapping.

    Raises ConfigError for a file that is no such table, or that maps one name to two.
    """
    if isinstance(given, Mapping):
        return dict(given)
    path = Path(given)
    plain = {"dtype": str, "keep_default_na": False, "skipinitialspace": True, "index_col": False}
    try:
        with warnings.catch_warnings():  # a third field in a line is an error, and not a column before the others
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", **plain)
    except (OSError, ValueError, pd.errors.ParserWarning) as problem:
        advice = "give a file with the columns from,to"
        raise ConfigError(
            f"{{field}} {path} cannot be read ({one_line(problem)})", field="map", advice=advice
        ) from None
    if list(table.columns) != COLUMNS or table.empty:
        raise ConfigError(f"{{field}} {path} must have the columns from,to and a line for each cell type.", field="map")
    table = table.drop_duplicates()
    if (twice := table["from"].duplicated()).any():
        raise ConfigError(f"{{field}} {path} maps {table['from'][twice].iloc[0]!r} to two names.", field="map")
    return dict(zip(table["from"], table["to"], strict=True))


def refuse_unused(names: LabelMap, classes: Sequence[str], given: Sequence[str] = ()) -> None:
    """Raises ConfigError for a name in the map that neither the model (classes) nor the cells (given) have."""
    known = {*classes, *given}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"the model's are {', '.join(map(repr, classes))}."
            raise ConfigError(
                f"{{field}} names the cell type {name!r}, which neither the model nor the cells have; {hint}",
                field="map",
            )


def merged(probabilities: np.ndarray, classes: Sequence[str], names: LabelMap) -> tuple[np.ndarray, tuple[str, ...]]:
    """Probabilities [C, K] of the types of `names`: the sum over the model's types that have the same name there.

    Types that are not in the map keep their names. Returns them with their columns, sorted.
    """
    renamed = [names.get(name, name) for name in classes]
    wanted = tuple(sorted(set(renamed)))
    to = np.zeros((len(classes), len(wanted)), probabilities.dtype)
    to[np.arange(len(classes)), [wanted.index(name) for name in renamed]] = 1
    return np.minimum(probabilities @ to, 1), wanted  # of rounding, a sum may be above 1


def given_labels(adata: AnnData, column: str, names: LabelMap) -> np.ndarray:
    """The labels in a column of obs, by the map where they are in it; None where missing. object [C].

    Raises DataError where obs has no such column, or the column no label.
    """
    values = column_of(adata.obs, column, "labels", "obs")
    text = values.astype(object).map(str)
    known = (values.notna() & (text.str.strip() != "")).to_numpy()
    return text.map(lambda name: names.get(name, name)).where(known, None).to_numpy(object)


def score_labels(given: np.ndarray, predicted: np.ndarray, classes: Sequence[str], unassigned: str) -> LabelScores:
    """Predicted labels [C], of which some are `unassigned`, beside given ones [C] (None: missing).

    Raises DataError where no cell has a given label that is among the classes.
    """
    from sklearn.metrics import f1_score

    scored = np.isin(given.astype(str), classes) & np.array([label is not None for label in given])
    others = sorted({label for label in given if label is not None} - set(classes))
    if not scored.any():
        raise DataError(
            f"None of the given labels ({others[0]!r}, ...) is a cell type of the model ({classes[0]!r}, ...); give a "
            "map from one to the other, or another column.",
            field="labels",
        )
    truth, found = given[scored].astype(str), predicted[scored].astype(str)
    types = sorted(set(truth))
    columns = [*types, *sorted(set(found) - set(types))]
    confusion = pd.crosstab(truth, found).reindex(index=types, columns=columns, fill_value=0)
    confusion.index.name, confusion.columns.name = "given", "predicted"
    f1 = f1_score(truth, found, labels=types, average=None)
    left = int(confusion[unassigned].sum()) if unassigned in confusion and unassigned not in types else 0
    return LabelScores(
        accuracy=float((truth == found).sum() / max(len(truth) - left, 1)),
        macro_f1=float(f1.mean()),
        confusion=confusion,
        per_class=pd.DataFrame({"class": types, "f1": f1, "cells": confusion.to_numpy().sum(1)}),
        unassigned=left,
        unknown=int((~scored).sum()),
        unknown_types=tuple(others),
    )
