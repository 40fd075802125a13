"""Predicted labels in another vocabulary, and beside labels that the cells have already.

Letters: C cells, K cell types of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from anndata import AnnData

from grn.cells.obs import column_of
from grn.runtime.errors import DataError, check_known

LabelMap = Mapping[str, str]  # a name of a cell type -> its name in the vocabulary that is wanted


class LabelScores(NamedTuple):
    """Agreement of predicted types with given ones.

    accuracy: of the cells with a predicted type.
    macro_f1: mean over the given types, for which an unassigned cell is a missed one.
    confusion: cells by given (rows) and predicted type, the given ones first among the columns.
    sentence: all of it, and how many cells are in no score, as the model has not their label.
    """

    accuracy: float
    macro_f1: float
    confusion: pd.DataFrame
    sentence: str


def refuse_unused(names: LabelMap, classes: Sequence[str], given: Sequence[str] = ()) -> None:
    """Raise DataError for a name in the map that neither the model (classes) nor the cells (given)
    have.
    """
    for name in names:
        check_known(
            name, (*classes, *given), "{field} cannot be used: the model", "cell type", "map"
        )


def merged(
    probabilities: np.ndarray, classes: Sequence[str], names: LabelMap
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Probabilities [C, types], summed over the model's types that have one name, and these names,
    sorted.
    """
    renamed = [names.get(name, name) for name in classes]
    wanted = tuple(sorted(set(renamed)))
    to = np.zeros((len(classes), len(wanted)), probabilities.dtype)
    to[np.arange(len(classes)), [wanted.index(name) for name in renamed]] = 1
    return np.minimum(probabilities @ to, 1), wanted  # of rounding, a sum may be above 1


def given_labels(adata: AnnData, column: str, names: LabelMap) -> np.ndarray:
    """The labels in a column of obs, by the map where they are in it; None where missing. object
    [C].
    """
    values = column_of(adata.obs, column, "labels", "obs")
    text = values.astype(object).map(str)
    known = (values.notna() & (text.str.strip() != "")).to_numpy()
    return text.map(lambda name: names.get(name, name)).where(known, None).to_numpy(object)


def score_labels(
    given: np.ndarray, predicted: np.ndarray, classes: Sequence[str], unassigned: str
) -> LabelScores:
    """Predicted labels [C], of which some are `unassigned`, beside given ones [C] (None:
    missing).
    """
    from sklearn.metrics import f1_score

    scored = np.isin(given.astype(str), classes) & np.array([label is not None for label in given])
    others = sorted({label for label in given if label is not None} - set(classes))
    if not scored.any():
        raise DataError(
            f"None of the given labels ({others[0]!r}, ...) is a cell type of the model "
            f"({classes[0]!r}, ...); give a map from one to the other, or another column.",
            field="labels",
        )
    truth, found = given[scored].astype(str), predicted[scored].astype(str)
    types = sorted(set(truth))
    columns = [*types, *sorted(set(found) - set(types))]
    confusion = pd.crosstab(truth, found).reindex(index=types, columns=columns, fill_value=0)
    confusion.index.name, confusion.columns.name = "given", "predicted"
    left = (
        int(confusion[unassigned].sum())
        if unassigned in confusion and unassigned not in types
        else 0
    )
    accuracy = float((truth == found).sum() / max(len(truth) - left, 1))
    macro_f1 = float(f1_score(truth, found, labels=types, average="macro"))
    sentence = (
        f"Accuracy {accuracy:.3f}, macro F1 {macro_f1:.3f} against the given labels ({len(truth)} "
        "cells"
    )
    sentence += f"; {left} of them are unassigned and not in the accuracy)." if left else ")."
    if unknown := int((~scored).sum()):
        named = f", such as {others[0]!r}" if others else ""
        sentence += f" {unknown} cells have no label that the model has{named}, and are not scored."
    return LabelScores(accuracy, macro_f1, confusion, sentence)
