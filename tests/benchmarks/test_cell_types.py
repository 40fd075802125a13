"""The benchmarks of cell types: scores, labelled and thinned cells, one run of each."""

from __future__ import annotations

import itertools

import classification
import depth
import numpy as np
import pandas as pd
import pytest
from classification import labelled_rows, main, scores
from classifiers import CELLTYPIST, METHODS, Labels, labelled_set

from grn.config.schema import Config


def test_scores_of_a_sure_method_and_of_one_without_probabilities():
    truth = np.array([0, 0, 1, 2])
    sure = np.eye(4)[[0, 0, 1, 1]]
    found = scores(Labels(sure.argmax(1), sure), truth)
    assert found["accuracy"] == 0.75 and found["macro_f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found["calibration_error"] == pytest.approx(0.25)
    assert found["log_loss"] == pytest.approx(-np.log(1e-6) / 4)
    assert (found["confidence_minus_accuracy"], found["calibration_floor"]) == (0.25, 0)
    assert scores(Labels(sure.argmax(1), None), truth).keys() == {"accuracy", "macro_f1"}


def test_calibration_error_weighs_bins_by_their_cells():
    confident = np.array([[0.9, 0.1]] * 10)
    half = np.array([[0.5, 0.5]] * 10)
    # 90 % right where sure, 80 % where it is not
    truth = np.array([0] * 9 + [1] + [0] * 8 + [1] * 2)
    both = np.concatenate([confident, half])
    assert scores(Labels(both.argmax(1), both), truth)["calibration_error"] == pytest.approx(
        (0 + 0.3) / 2
    )


def test_the_floor_of_the_calibration_error_is_what_right_probabilities_get():
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.5, 1, 150)
    both = np.stack([confidence, 1 - confidence], 1)
    right = [(generator.random(150) > confidence).astype(int) for _ in range(100)]
    of_right = np.mean(
        [scores(Labels(both.argmax(1), both), truth)["calibration_error"] for truth in right]
    )
    assert scores(Labels(both.argmax(1), both), right[0])["calibration_floor"] == pytest.approx(
        of_right, abs=0.01
    )


def test_fewer_labels_are_among_more_and_every_type_keeps_one():
    targets = np.repeat([0, 1, 2], [50, 20, 2])
    rest = np.arange(1, 72)
    many, few = (labelled_rows(targets, rest, fraction, 3) for fraction in (0.5, 0.1))
    assert set(few) <= set(many) <= set(rest) and set(targets[few]) == {0, 1, 2}
    assert len(few) == 5 + 2 + 1 and labelled_rows(targets, rest, 1.0, 3).tolist() == rest.tolist()


@pytest.fixture
def small(make_config) -> Config:
    found = make_config(max_steps=4).model_dump()
    found["data"]["simulated"] |= {"cells": 120, "cell_types": 3}
    return Config.model_validate(found)


def test_every_method_labels_test_cells_that_it_was_not_fitted_on(small, tmp_path, monkeypatch):
    monkeypatch.setattr(classification, "configurations", lambda: {"small": small})
    monkeypatch.delenv(CELLTYPIST, raising=False)
    methods = set(METHODS) - {"CellTypist"}
    command = ["--splits", "1", "--fractions", "1", "0.3", "--output", str(tmp_path)]
    command += ["--picture", str(tmp_path / "picture.png")]
    others = methods - {"logistic regression"}
    for arguments in (command, [*command, "--without", *others]):
        main(arguments)
        table = pd.read_csv(tmp_path / "classification.csv")
        assert len(table) == 2 * len(methods), "rows of a second run replace those of the first"
    assert set(table["method"]) == methods and table["accuracy"].between(0, 1).all()
    assert table.loc[table["method"] != "linear SVM", "log_loss"].notna().all()
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    by_type = pd.read_csv(tmp_path / "classification_by_type.csv")
    of_regression = by_type.query("method == 'logistic regression' and labels == 1")
    expected = table.query("method == 'logistic regression' and labels == 1")["macro_f1"].item()
    assert of_regression["f1"].mean() == pytest.approx(expected, abs=1e-5)


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
    command = ["--sets", "*", "--splits", "1", "--output", str(tmp_path)]
    depth.main([*command, "--picture", str(tmp_path / "picture.png")])
    table = pd.read_csv(tmp_path / "depth.csv")
    assert set(table["method"]) == set(depth.COMPARED) and len(table) == len(depth.COMPARED) * len(
        depth.DEPTHS
    )
    assert table["accuracy"].between(0, 1).all() and (tmp_path / "picture.png").exists()

    # With all counts, what the benchmark of cell types says.
    others = [name for name in classification.METHODS if name != "logistic regression"]
    command = ["--splits", "1", "--fractions", "1", "--without", *others, "--output", str(tmp_path)]
    classification.main([*command, "--picture", str(tmp_path / "another.png")])
    same = ["accuracy", "macro_f1", "log_loss"]
    whole = table.query("method == 'logistic regression' and depth == 1")[same]
    np.testing.assert_allclose(whole, pd.read_csv(tmp_path / "classification.csv")[same], rtol=1e-4)
