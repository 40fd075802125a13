"""Which edges are written: laws of the filters."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from grn.errors import DataError
from grn.networks.formats.chosen import Filters, choose

SIGNED = {"sign": "positive: raises"}


@pytest.fixture
def edges() -> pd.DataFrame:
    generator = np.random.default_rng(3)
    pairs = [(f"R{source}", f"G{target}") for source in range(5) for target in range(20)]
    table = pd.DataFrame(pairs, columns=["source", "target"])
    table["weight"] = generator.normal(size=len(table))
    table.loc[:3, "weight"] = 0.0
    table["within"] = np.nan
    table["confidence"] = generator.random(len(table))
    table["q_value"] = generator.random(len(table))
    return table


def chosen(edges, **filters):
    return choose(edges, [], SIGNED, Filters(**filters)).edges


def test_without_filters_every_edge_but_those_of_weight_zero_is_chosen_the_strongest_first(edges):
    found = chosen(edges)
    assert len(found) == 96 and (found["weight"] != 0).all()
    assert found["weight"].abs().is_monotonic_decreasing
    assert "within" not in found, "a column without a number says nothing"


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ({"min_weight": 0.5}, lambda table: table["weight"].abs() >= 0.5),
        ({"min_confidence": 0.7}, lambda table: table["confidence"] >= 0.7),
        ({"max_q_value": 0.2}, lambda table: table["q_value"] <= 0.2),
        ({"sign": "up"}, lambda table: table["weight"] > 0),
        ({"sign": "down"}, lambda table: table["weight"] < 0),
        ({"regulators": ["R1", "R4", "absent"]}, lambda table: table["source"].isin(["R1", "R4"])),
        ({"targets": ["G7", "absent"]}, lambda table: table["target"] == "G7"),
        ({"sign": "up", "min_confidence": 0.5}, lambda table: (table["weight"] > 0) & (table["confidence"] >= 0.5)),
    ],
)
def test_a_filter_keeps_what_it_says_and_nothing_else(filters, passes, edges):
    every = chosen(edges)
    expected = every[passes(every)].reset_index(drop=True)
    pd.testing.assert_frame_equal(chosen(edges, **filters), expected)
    assert 0 < len(expected) < len(every)


def test_top_k_counts_the_edges_that_the_other_filters_leave(edges):
    found = chosen(edges, top_k=2, sign="up")
    every = chosen(edges, sign="up")
    for target, of_target in every.groupby("target"):
        kept = found[found["target"] == target]
        assert list(kept["weight"]) == list(of_target["weight"].head(2))


@pytest.mark.parametrize(
    ("filters", "sentence"),
    [
        ({"min_weight": 99}, r"No edge is left: of 96, none passes --min-weight 99, as the largest is 3\.\d+; give a"),
        ({"max_q_value": 0.0}, r"none passes --max-q-value 0.0, as the smallest is 0\.\d+"),
        ({"min_confidence": 1.0}, r"none passes --min-confidence 1.0, as the largest is 0\.99\d+"),
        ({"regulators": ["x", "y"]}, r"none passes --regulators \('x', 'y'\); regulators with edges are named like 'R"),
        ({"targets": ["x"]}, r"none passes --targets \('x'\); targets with edges are named like 'G"),
    ],
)
def test_an_empty_result_is_an_error_that_says_what_there_is(filters, sentence, edges):
    with pytest.raises(DataError, match=sentence):
        chosen(edges, **filters)


def test_a_sign_or_column_that_the_network_has_not_is_refused(edges):
    with pytest.raises(DataError, match="--sign is up, but the signs of these weights mean nothing"):
        choose(edges, [], {"sign": "none: not identified"}, Filters(sign="up"))
    with pytest.raises(DataError, match=r"--max-q-value is 0\.1, but this network has no column q_value"):
        chosen(edges.drop(columns="q_value"), max_q_value=0.1)
    with pytest.raises(DataError, match="none passes --sign down"):
        chosen(edges.assign(weight=edges["weight"].abs()), sign="down")


def test_no_edge_at_all_and_names_with_tabs_are_refused(edges):
    with pytest.raises(DataError, match="The network has no edge whose weight is not 0"):
        chosen(edges.assign(weight=0.0))
    with pytest.raises(DataError, match="has a tab or another control character in its name"):
        chosen(edges.replace({"target": {"G3": "G\t3"}}))
