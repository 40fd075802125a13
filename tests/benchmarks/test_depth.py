"""The benchmark of cell types against depth: its thinned cells, and one run of it."""

from __future__ import annotations

import itertools
import sys

import classification
import depth
import numpy as np
import pandas as pd
import pytest
from classification_parts.methods import labelled_set

from grn.config.schema import Config


@pytest.fixture
def small(make_config) -> Config:
    found = make_config(max_steps=4).model_dump()
    found["data"]["simulated"] |= {"cells": 120, "cell_types": 3}
    return Config.model_validate(found)


def test_cells_keep_a_share_of_their_counts_and_of_those_of_the_depth_before(small):
    one, rows = labelled_set(small), np.arange(10, 90)
    whole, half, tenth = depth.thinned(one, rows, (1.0, 0.5, 0.1), seed=0)
    np.testing.assert_allclose(whole.values, one.values[rows], rtol=1e-6)
    assert (one.adata.X[rows] != whole.adata.X).nnz == 0
    counts = [each.adata.X.toarray() for each in (whole, half, tenth)]
    assert all((fewer <= more).all() for more, fewer in itertools.pairwise(counts))
    shares = [each.sum() / counts[0].sum() for each in counts[1:]]
    deviation = np.sqrt(0.25 / counts[0].sum())  # the larger of the two
    np.testing.assert_allclose(shares, [0.5, 0.1], atol=5 * deviation)
    # Scaled to the same total as the training cells.
    totals = [np.expm1(each.values).sum(1).mean() for each in (whole, half)]
    assert totals[1] == pytest.approx(totals[0], rel=0.2)


def test_every_method_labels_the_cells_at_every_depth(small, tmp_path, monkeypatch):
    for module in (classification, depth):
        monkeypatch.setattr(module, "configurations", lambda: {"small": small})
    command = ["depth.py", "--sets", "*", "--splits", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--picture", str(tmp_path / "picture.png")])
    depth.main()
    table = pd.read_csv(tmp_path / "depth.csv")
    assert set(table["method"]) == set(depth.COMPARED) and len(table) == len(depth.COMPARED) * len(depth.DEPTHS)
    assert table["accuracy"].between(0, 1).all() and (tmp_path / "picture.png").exists()

    # With all counts, what the benchmark of cell types says.
    others = [name for name in classification.METHODS if name != "logistic regression"]
    command = ["classification.py", "--splits", "1", "--fractions", "1", "--without", *others]
    monkeypatch.setattr(sys, "argv", [*command, "--output", str(tmp_path), "--picture", str(tmp_path / "another.png")])
    classification.main()
    same = ["accuracy", "macro_f1", "log_loss"]
    whole = table.query("method == 'logistic regression' and depth == 1")[same]
    np.testing.assert_allclose(whole, pd.read_csv(tmp_path / "classification.csv")[same], rtol=1e-4)
