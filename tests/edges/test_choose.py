"""Which edges are written: laws of the filters."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from grn.edges.choose import choose, gene_names
from grn.runtime.errors import DataError

SIGNED = {"sign": "positive: raises"}


@pytest.fixture
def edges() -> pd.DataFrame:
    generator = np.random.default_rng(3)
    pairs = [(f"R{source}", f"G{target}") for source in range(5) for target in range(20)]
    table = pd.DataFrame(pairs, columns=["source", "target"])
    table["weight"] = generator.normal(size=len(table))
    table.loc[:3, "weight"] = 0.0
    table["between"] = np.nan
    table["confidence"] = generator.random(len(table))
    table["q_value"] = generator.random(len(table))
    return table


def chosen(edges, **filters):
    return choose(edges, [], SIGNED, filters).edges


def test_without_filters_every_edge_with_a_weight_is_chosen_the_most_certain_first(edges):
    """And of those that are as certain, the strongest; an edge that nobody has judged is as one
    that is not certain. A column without a number says nothing.
    """
    edges["q_value"] = edges["q_value"].round(1).where(edges.index % 7 > 0)
    for table in (edges, edges.drop(columns="q_value")):
        found = chosen(table)
        expected = edges[edges["weight"] != 0].assign(
            q=table.get("q_value", edges["weight"] * 0), size=edges["weight"].abs()
        )
        expected = expected.fillna({"q": 1}).sort_values(["q", "size"], ascending=[True, False])
        assert found["weight"].tolist() == expected["weight"].tolist()
        assert "between" not in found


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
        (
            {"sign": "up", "min_confidence": 0.5},
            lambda table: (table["weight"] > 0) & (table["confidence"] >= 0.5),
        ),
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
    strongest = every.groupby("target")["weight"].nlargest(2)
    assert set(found["weight"]) == set(strongest)


@pytest.mark.parametrize(
    "filters",
    [
        {"min_weight": 99},
        {"max_q_value": 0.0},
        {"min_confidence": 1.0},
        {"regulators": ["x", "y"]},
        {"targets": ["g3"]},
    ],
)
def test_an_empty_result_is_an_error_of_its_filter(filters, edges):
    with pytest.raises(DataError) as caught:
        chosen(edges, **filters)
    assert [caught.value.field] == list(filters)


def test_a_sign_or_column_that_the_network_has_not_is_refused(edges):
    with pytest.raises(DataError):
        choose(edges, [], {"sign": "none: not identified"}, {"sign": "up"})
    with pytest.raises(DataError):
        chosen(edges.drop(columns="q_value"), max_q_value=0.1)
    with pytest.raises(DataError):
        chosen(edges.replace({"target": {"G3": "G\t3"}}))


def test_genes_are_named_by_a_list_a_text_or_a_file(tmp_path):
    (tmp_path / "list.txt").write_text("R1\nR3\n")
    for choice in (["R1", "R3"], "R1, R3", tmp_path / "list.txt", str(tmp_path / "list.txt")):
        assert gene_names(choice, "targets") == ["R1", "R3"]
    with pytest.raises(DataError) as caught:
        gene_names("nowhere/list.txt", "targets")
    assert caught.value.field == "targets"
