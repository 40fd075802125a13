"""Certain edges beside known pairs."""

import numpy as np
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
        ("A", "z", -0.6, 0.04),  # new
        ("B", "y", 0.5, 0.9),  # known, not certain
    ],
    columns=["source", "target", "weight", "q_value"],
)
KNOWN = pd.DataFrame(
    [
        ("A", "x", 1.0),
        ("A", "y", -1.0),
        ("B", "y", 1.0),
        ("B", "z", -1.0),
        ("A", "w", 1.0),
        ("C", "x", 1.0),
        ("A", "A", 1.0),
    ],
    columns=["source", "target", "weight"],
)
OF_TYPES = EDGES.iloc[[0, 4]].assign(cell_type="T", q_value=0.001)
GENES = ["A", "B", "x", "y", "z"]


def test_certain_edges_are_confirmed_contradicted_or_new():
    table = beside_known(EDGES, OF_TYPES, KNOWN, ["A", "B"], GENES)
    found = [(row.cell_type, row.source + row.target, row.known) for row in table.itertuples()]
    assert found == [
        ("all cells", "Ax", "confirmed"),
        ("all cells", "Ay", "contradicted"),
        ("all cells", "Bx", "new"),
        ("all cells", "Az", "new"),
        ("T", "Ax", "confirmed"),
        ("T", "By", "confirmed"),
        ("all cells", "By", "not certain"),
        ("all cells", "Bz", "not certain"),
    ], "w is not measured, C is no regulator of these cells, and no gene is its own target"
    assert np.isnan(table["weight"].iloc[-2:]).all()
    assert of_groups(table, "cell_type").to_dict("index") == {
        "all cells": {"confirmed": 1, "contradicted": 1, "new": 2, "not certain": 2},
        "T": {"confirmed": 2, "contradicted": 0, "new": 0, "not certain": 0},
    }
    columns = ["cell_type", "regulator", "effect", "q_value"]
    active = pd.DataFrame(
        [("T", "A", 1.5, 0.01), ("NK", "A", -2.5, 0.01), ("NK", "B", 9.0, 0.3)], columns=columns
    )
    assert of_regulators(table, active)[1] == [
        ("A", "z", "-2.5 in NK", "2", "1", "1", "1"),
        ("B", "x", "", "2", "0", "0", "1"),
    ]
    assert of_regulators(table, None)[1][0][2] == ""
    sentence = known_sentence(table, "collectri", 2, 5)
    assert "lists 2 (2.0 by chance): 1 with the same sign, 1 with the other; 2 are new" in sentence
    assert "2 other pairs" in sentence


def test_a_weight_of_0_says_nothing_of_a_listed_pair():
    assert said_of(EDGES.assign(weight=0.0), KNOWN).tolist() == ["", "", "new", "new", ""]
