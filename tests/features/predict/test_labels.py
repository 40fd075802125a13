"""Labels in another vocabulary, and beside given ones."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.features.predict.labels import merged, refuse_unused, score_labels
from grn.runtime.errors import DataError


def test_probabilities_of_types_with_one_name_are_added():
    probabilities = np.array([[0.3, 0.3, 0.4], [0.1, 0.2, 0.7]])
    found, classes = merged(probabilities, ("CD4 T", "CD8 T", "B"), {"CD4 T": "T", "CD8 T": "T"})
    assert classes == ("B", "T") and np.allclose(found, [[0.4, 0.6], [0.7, 0.3]])


def test_names_that_nobody_has_are_refused():
    refuse_unused({"NA": "x"}, ("B",), ("NA",))
    with pytest.raises(DataError, match="did you mean 'B cell'"):
        refuse_unused({"Bcell": "B"}, ("B cell",))


def test_scores_leave_out_unknown_labels_and_count_unassigned_cells_as_missed():
    given = np.array(["a", "a", "a", "b", "b", "z", None], dtype=object)
    predicted = np.array(["a", "unassigned", "b", "b", "b", "a", "a"], dtype=object)
    found = score_labels(given, predicted, ("a", "b", "c"), "unassigned")
    assert found.accuracy == 3 / 4 and found.macro_f1 == pytest.approx((2 / 4 + 4 / 5) / 2)
    assert found.confusion.to_numpy().tolist() == [[1, 1, 1], [0, 2, 0]]
    with pytest.raises(DataError):
        score_labels(given[5:6], predicted[5:6], ("a", "b"), "unassigned")


def test_types_are_renamed_and_given_labels_scored(run, adata):
    """Both types have one name, so that every cell is right, with confidence 1 at most."""
    adata.obs["mine"] = adata.obs["cell_type"].astype(str).str.upper()
    names = dict.fromkeys([*run.cell_types, *adata.obs["mine"]], "one/other")
    found = grn.predict(adata, run, map=names, labels="mine", copy=True)
    assert found.uns["grn"]["accuracy"] == 1 and list(found.uns["grn"]["classes"]) == ["one/other"]
    np.testing.assert_allclose(found.obs["grn_cell_type_confidence"], 1, atol=1e-5)
    assert found.obs["grn_cell_type_confidence"].max() <= 1


def test_the_command_writes_the_confusion_beside_the_cells(run, adata, command):
    adata.write_h5ad("cells.h5ad")
    call = "predict", "cells.h5ad", run.folder, "--labels", "cell_type", "--output", "out.h5ad"
    assert command(*call)[0] == 0
    written = anndata.read_h5ad("out.h5ad").uns["grn"]
    expected = grn.predict(adata, run, labels="cell_type", copy=True)
    assert written["macro_f1"] == pytest.approx(expected.uns["grn"]["macro_f1"])
    table = pd.read_csv("out_confusion.csv", index_col="given")
    np.testing.assert_array_equal(table, written["confusion"])
