"""Certain edges beside known pairs."""

import pandas as pd

from grn.features.findings.known import (
    beside_known,
    known_sentence,
    of_groups,
    of_regulators,
    said_of,
)

EDGES = pd.DataFrame(
    [
        ("A", "x", 0.9, 0.01),  # known, the same sign
        ("A", "y", 0.8, 0.02),  # known, the other sign
        ("B", "x", -0.7, 0.03),  # new
        ("B", "y", 0.5, 0.9),  # known, not certain
    ],
    columns=["source", "target", "weight", "q_value"],
)
KNOWN = pd.DataFrame(
    [
        ("A", "x", 1.0),
        ("A", "y", -1.0),
        ("B", "y", 1.0),
        ("A", "w", 1.0),  # w is not measured
        ("C", "x", 1.0),  # C is no regulator of these cells
        ("A", "A", 1.0),  # no gene is its own target
    ],
    columns=["source", "target", "weight"],
)


def test_certain_edges_are_confirmed_contradicted_or_new():
    of_types = EDGES.iloc[[0, 3]].assign(cell_type="T", q_value=0.001)
    table = beside_known(EDGES, of_types, KNOWN, ["A", "B"], ["A", "B", "x", "y"])
    found = dict(zip(table["source"] + table["target"], table["known"], strict=True))
    assert found == {"Ax": "confirmed", "Ay": "contradicted", "Bx": "new", "By": "not certain"}
    groups = of_groups(table, "cell_type")
    assert groups.loc["all cells"].tolist() == [1, 1, 1, 1]
    assert groups.loc["T", "confirmed"] == 2 == groups.loc["T"].sum()
    active = pd.DataFrame({"cell_type": ["T", "NK"], "regulator": "A", "effect": [1.5, -2.5]})
    _, (first, second) = of_regulators(table, active.assign(q_value=0.01))
    assert first == ("A", "", "-2.5 in NK", "2", "1", "1", "0")
    assert second[:2] == ("B", "x"), "what is new of it"
    said = known_sentence(table, "collectri", 2, 4)
    assert "1 with the same sign, 1 with the other; 1 are new" in said


def test_a_weight_of_0_says_nothing_of_a_listed_pair():
    assert said_of(EDGES.assign(weight=0.0), KNOWN).tolist() == ["", "", "new", ""]
