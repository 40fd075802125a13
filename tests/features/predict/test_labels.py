"""Labels in another vocabulary, and beside given ones."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.cli.main import main
from grn.features.predict.labels import merged, refuse_unused, score_labels
from grn.runtime.errors import DataError


def test_probabilities_of_types_with_one_name_are_added():
    probabilities = np.array([[0.3, 0.3, 0.4], [0.1, 0.2, 0.7]])
    found, classes = merged(probabilities, ("CD4 T", "CD8 T", "B"), {"CD4 T": "T", "CD8 T": "T"})
    assert classes == ("B", "T") and np.allclose(found, [[0.4, 0.6], [0.7, 0.3]])
    same, classes = merged(probabilities, ("a", "b", "c"), {})
    assert classes == ("a", "b", "c") and np.array_equal(same, probabilities)


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
    assert "5 cells; 1 of them" in found.sentence and "2 cells have no label" in found.sentence
    with pytest.raises(DataError):
        score_labels(given[5:6], predicted[5:6], ("a", "b"), "unassigned")


def test_predict_renames_types_and_scores_given_labels(tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = grn.load(tiny_run)
    adata = simulate(run.config.data.simulated)
    own = sorted(adata.obs["cell_type"].astype(str).unique())
    adata.obs["mine"] = adata.obs["cell_type"].astype(str).str.upper()
    names = {own[0]: "one/other", own[1]: "one/other"} | {
        own[0].upper(): "one/other",
        own[1].upper(): "one/other",
    }
    found = grn.predict(adata, run, map=names, labels="mine", copy=True, quiet=True)
    given = adata.obs["mine"].map(names)
    right = (found.obs["grn_cell_type"].astype(str).to_numpy() == given.to_numpy())[given.notna()]
    assert found.uns["grn"]["accuracy"] == pytest.approx(right.mean())
    assert np.allclose(found.obsm["grn_probabilities"].sum(1), 1, atol=1e-5)
    assert found.obsm["grn_probabilities"].shape[1] == len(found.uns["grn"]["classes"]) < len(own)

    adata.write_h5ad("cells.h5ad")
    command = ["predict", "cells.h5ad", str(tiny_run), "--labels", "cell_type"]
    assert main([*command, "--output", "out.h5ad"]) == 0
    written = anndata.read_h5ad("out.h5ad")
    again = grn.predict(adata, run, labels="cell_type", copy=True, quiet=True)
    assert again.uns["grn"]["macro_f1"] == pytest.approx(written.uns["grn"]["macro_f1"])
    table = pd.read_csv("out_confusion.csv", index_col="given")
    assert np.array_equal(table.to_numpy(), written.uns["grn"]["confusion"])
