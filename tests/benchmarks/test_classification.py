"""The benchmark of cell types: its scores, its labelled cells, and one run of it."""

from __future__ import annotations

import sys

import classification
import numpy as np
import pandas as pd
import pytest
from classification import labelled_rows, main, scores
from classification_parts import celltypist
from classification_parts.drawing import SCORES, by_share
from classification_parts.methods import METHODS, Labels, available
from scipy import sparse

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
    truth = np.array([0] * 9 + [1] + [0] * 8 + [1] * 2)  # 90 % right where sure, 80 % where it is not
    both = np.concatenate([confident, half])
    assert scores(Labels(both.argmax(1), both), truth)["calibration_error"] == pytest.approx((0 + 0.3) / 2)


def test_the_floor_of_the_calibration_error_is_what_right_probabilities_get():
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.5, 1, 150)
    both = np.stack([confidence, 1 - confidence], 1)
    right = [(generator.random(150) > confidence).astype(int) for _ in range(100)]
    of_right = np.mean([scores(Labels(both.argmax(1), both), truth)["calibration_error"] for truth in right])
    assert scores(Labels(both.argmax(1), both), right[0])["calibration_floor"] == pytest.approx(of_right, abs=0.01)


def test_fewer_labels_are_among_more_and_every_type_keeps_one():
    targets = np.repeat([0, 1, 2], [50, 20, 2])
    rest = np.arange(1, 72)
    many, few = (labelled_rows(targets, rest, fraction, 3) for fraction in (0.5, 0.1))
    assert set(few) <= set(many) <= set(rest) and set(targets[few]) == {0, 1, 2}
    assert len(few) == 5 + 2 + 1 and labelled_rows(targets, rest, 1.0, 3).tolist() == rest.tolist()


def test_every_method_labels_test_cells_that_it_was_not_fitted_on(tmp_path, monkeypatch, make_config):
    found = make_config(max_steps=4).model_dump()
    found["data"]["simulated"] |= {"cells": 120, "cell_types": 3}
    monkeypatch.setattr(classification, "configurations", lambda: {"small": Config.model_validate(found)})
    monkeypatch.delenv(celltypist.VARIABLE, raising=False)
    methods = set(METHODS) - {"CellTypist"}
    command = ["classification.py", "--splits", "1", "--fractions", "1", "0.3", "--output", str(tmp_path)]
    command += ["--picture", str(tmp_path / "picture.png")]
    for arguments in (command, [*command, "--without", "grn"]):
        monkeypatch.setattr(sys, "argv", arguments)
        main()
        table = pd.read_csv(tmp_path / "classification.csv")
        assert len(table) == 2 * len(methods), "rows of a second run replace those of the first"
    assert set(table["method"]) == methods and table["accuracy"].between(0, 1).all()
    assert table.loc[table["method"] != "linear SVM", "log_loss"].notna().all()
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    by_type = pd.read_csv(tmp_path / "classification_by_type.csv")
    of_regression = by_type.query("method == 'logistic regression' and labels == 1")
    expected = table.query("method == 'logistic regression' and labels == 1")["macro_f1"].item()
    assert of_regression["f1"].mean() == pytest.approx(expected, abs=1e-5)


def test_celltypist_is_left_out_where_no_python_has_it(monkeypatch, capsys):
    monkeypatch.delenv(celltypist.VARIABLE, raising=False)
    assert available(["grn", "CellTypist"]) == ["grn"]
    assert f"CellTypist: left out: {celltypist.VARIABLE} is not set" in capsys.readouterr().out


@pytest.mark.skipif(celltypist.unavailable() is not None, reason="no Python with celltypist")
def test_celltypist_tells_planted_types(tmp_path):
    generator = np.random.default_rng(0)
    targets = np.repeat([0, 2, 3], 30)  # no cell of type 1 is known
    counts = sparse.csr_matrix(generator.poisson(np.where(targets[:, None] == np.arange(20) % 4, 9, 1)))
    found = celltypist.probabilities(counts[::2], targets[::2], counts[1::2], 4, tmp_path)
    assert found.argmax(1).tolist() == targets[1::2].tolist() and (found[:, 1] == 0).all()
    np.testing.assert_allclose(found.sum(1), 1)


def test_a_set_that_does_not_exist_is_refused_with_those_that_do(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["classification.py", "--sets", "pbmc99"])
    with pytest.raises(SystemExit, match="No set is called pbmc99; there are pbmc68k_reduced, pbmc3k, sergio_ds1"):
        main()


def test_the_picture_has_a_panel_a_set_and_score_and_shows_the_worst_split():
    splits = {"grn": (0.9, 0.7, 0.8), "random forest": (0.6, 0.6, 0.3)}
    rows = [
        {"set": name, "method": method, "labels": share, "split": split, "accuracy": score, "macro_f1": score / 2}
        for name in ("one", "another")
        for method, scored in splits.items()
        for share in (1.0, 0.1)
        for split, score in enumerate(scored)
    ]
    found = by_share(pd.DataFrame(rows), "labels", ours="grn", label="labels", shares=(1.0, 0.3, 0.1))
    assert [panel.get_title(loc="left") for panel in found.axes] == ["one", "another", "", ""]
    assert len(found.axes) == 2 * len(SCORES)
    means = {bars.get_label(): bars.lines[0].get_ydata() for bars in found.axes[0].containers}
    np.testing.assert_allclose(means["grn"], [0.8, np.nan, 0.8])
    of_forest = next(bars for bars in found.axes[0].containers if bars.get_label() == "random forest")
    lowest = [line[:, 1].min() for line in of_forest.lines[2][0].get_segments() if len(line)]
    np.testing.assert_allclose(lowest, [0.3, 0.3])
