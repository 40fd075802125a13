"""The table and the picture of small networks; our own method needs its file."""

from __future__ import annotations

import sys

import networks
import numpy as np
import pandas as pd
import pytest
from peers import NAMES
from sets import NetworkSet

GENES = ["a", "b", "c"]


@pytest.fixture
def tiny() -> NetworkSet:
    matrix = np.random.default_rng(2).normal(size=(20, 3)).astype(np.float32)
    reference = pd.DataFrame({"source": ["a", "a"], "target": ["b", "c"], "sign": [1, -1]})
    return NetworkSet("tiny", GENES, "expression", matrix, None, ["a", "b"], reference, "all", "0123")


def network(*weights: float) -> pd.DataFrame:
    pairs = [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c")]
    return pd.DataFrame(
        [(*pair, weight) for pair, weight in zip(pairs, weights, strict=True)], columns=["source", "target", "weight"]
    )


@pytest.fixture
def table(tiny) -> pd.DataFrame:
    notes = {"seconds": 1.0, "cpu_seconds": 2.0, "peak_mb": 100.0, "cores": 2}
    right, wrong = network(3, -2, 1, 0.5), network(0.1, 0.2, 1, -2)
    rows = [
        networks.row(tiny, "grn", [(right, notes), (wrong, notes)]),
        networks.row(tiny, "ridge", [(right, notes)]),
    ]
    return pd.DataFrame(rows)


def test_a_perfect_network_and_the_spread_of_two(table):
    ours, ridge = table.iloc[0], table.iloc[1]
    assert (ridge["auprc"], ridge["sign_accuracy"], ridge["runs"]) == (1, 1, 1)
    assert ridge["auprc_ratio"] == pytest.approx(3)  # 2 edges among 6 pairs
    assert np.isnan(ridge["auprc_sd"]) and ours["auprc_sd"] > 0
    assert ours["sign_accuracy"] == pytest.approx(0.75)


def test_the_table_is_readable(table):
    lines = networks.readable(table).splitlines()
    assert len(lines) == 3 and "±" in lines[1] and "±" not in lines[2]


def test_the_picture_has_a_panel_a_metric(table):
    from networks_picture import PANELS, dots

    picture = dots(table, ours="grn")
    assert len(picture.axes) == len(PANELS)
    assert {text.get_text() for text in picture.legends[0].get_texts()} == {"grn", "ridge", "all signs alike"}


def test_our_method_needs_its_file(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "ours", raising=False)
    others = [path for path in sys.path if path != str(networks.HERE)]
    monkeypatch.setattr(sys, "path", others)
    assert networks.methods() == list(NAMES)
    (tmp_path / "ours.py").write_text("SETTINGS = {}\n")
    # Not syspath_prepend: after setattr it would leave the tests that follow without the benchmarks.
    monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
    assert networks.methods() == ["grn", *NAMES]
