"""Networks of cell types against the edges of each type, counted by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from grn.edges.edge_table import reference_of_table
from grn.features.evaluate.comparison import TYPE_SCORES, TypedTruth, with_means
from grn.features.evaluate.scores import make_universe

# Regulators A and B, genes A to D: six pairs. AB acts everywhere, AC, AD and BD in some types, BC
# changes its sign.
TRUTH = pd.DataFrame(
    [
        *(("A", "B", 1, label) for label in "abc"),
        ("A", "C", 1, "a"),
        *(("A", "D", 1, label) for label in "ab"),
        *(("B", "C", sign, label) for label, sign in zip("abc", (1, -1, -1), strict=True)),
        ("B", "D", -1, "b"),
    ],
    columns=["source", "target", "sign", "cell_type"],
)
NETWORK = pd.DataFrame(
    [("A", "B", 5.0), ("A", "C", 4.0), ("B", "D", -3.0), ("A", "D", 2.0), ("B", "C", -1.0)],
    columns=["source", "target", "weight"],
)


@pytest.fixture
def typed():
    reference = reference_of_table(TRUTH, "The reference")
    return TypedTruth(make_universe(reference.edges, "reference"), reference.by_type)


def test_counted_by_hand(typed):
    found = typed.score("a", NETWORK, signed=True)
    assert list(found) == list(TYPE_SCORES)
    auprc = (1 + 1 + 3 / 4 + 4 / 5) / 4  # AB, AC, AD and BC at ranks 1, 2, 4 and 5
    expected = {
        "edges": 4,
        "auprc": auprc,
        "auprc_ratio": auprc / (4 / 6),
        "early_precision_ratio": (3 / 4) / (4 / 6),
        "sign_accuracy": 3 / 4,
        "specificity": 1 / 2,  # of AC (4) and AD (2), which act, only AC is above BD (3)
        "changed_signs": 0,
    }
    assert found == pytest.approx(expected)
    found = typed.score("b", NETWORK, signed=True)
    # Edges AB, AD, BC and BD have ranks 1, 4, 5 and 3; AD (2) and BD (3) act, AC (4) does not.
    expected = {"edges": 4, "auprc": (1 + 2 / 3 + 3 / 4 + 4 / 5) / 4, "sign_accuracy": 1}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert (found["specificity"], found["changed_signs"]) == (0, 1)
    found = typed.score("c", NETWORK, signed=True)
    assert found["edges"] == 2 and math.isnan(found["specificity"]), (
        "none of the partial edges acts in c"
    )
    assert found["changed_signs"] == 1


def test_the_truth_of_each_type_is_perfect(typed):
    for label, own in typed.by_type.items():
        found = typed.score(label, own.edges.assign(weight=own.edges["sign"] * 2.0), signed=True)
        assert [found[name] for name in ("auprc", "sign_accuracy", "changed_signs")] == [1, 1, 1]
        assert label == "c" or found["specificity"] == 1


def test_one_network_for_all_types_knows_nothing_of_their_edges():
    """Random truths, and one random network: the mean specificity is that of guessing."""
    generator = np.random.default_rng(0)
    names = [f"g{number}" for number in range(12)]
    pairs = [(source, target) for source in names for target in names if source != target]
    rows = [
        (*pair, sign, label)
        for pair in pairs
        for sign in [generator.choice([-1, 1])]
        for label in "xyz"
        if generator.random() < 0.4
    ]
    reference = reference_of_table(pd.DataFrame(rows, columns=list(TRUTH)), "The reference")
    typed = TypedTruth(make_universe(reference.edges), reference.by_type)
    found = []
    for _ in range(100):
        weights = generator.standard_normal(len(pairs))
        network = pd.DataFrame(pairs, columns=["source", "target"]).assign(weight=weights)
        found += [typed.score(label, network, True)["specificity"] for label in "xyz"]
    assert np.mean(found) == pytest.approx(0.5, abs=0.01)


def test_scores_without_signs_weights_or_edges_are_undefined(typed):
    unsigned = typed.score("a", NETWORK, signed=False)
    assert math.isnan(unsigned["sign_accuracy"]) and math.isnan(unsigned["changed_signs"])
    assert unsigned["specificity"] == 0.5
    silent = typed.score("a", NETWORK[:0], signed=True)
    assert math.isnan(silent["early_precision_ratio"]) and silent["auprc_ratio"] == pytest.approx(1)
    assert (silent["specificity"], silent["sign_accuracy"]) == (0.5, 0)
    for network in (
        NETWORK[NETWORK["target"] != "C"],
        NETWORK.assign(weight=NETWORK["weight"].replace(-1.0, 0.0)),
    ):
        assert typed.score("c", network, signed=True)["changed_signs"] == 0
    within = make_universe(TRUTH, "reference", ["A", "C"])
    found = TypedTruth(
        within, {label: TRUTH[TRUTH["cell_type"] == label] for label in "abc"}
    ).score("b", NETWORK, signed=True)
    assert found["edges"] == 0 and all(
        math.isnan(found[name]) for name in TYPE_SCORES if name != "edges"
    )


def test_means_leave_out_what_is_undefined(typed):
    rows = [
        {"cell_type": label, "method": method, **typed.score(label, table, True)}
        for label in "abc"
        for method, table in (("network", NETWORK), ("other", NETWORK[:1]))
    ]
    table = with_means(rows)
    assert table["cell_type"].tolist() == [*"aabbcc", "mean", "mean"]
    assert table["method"].tolist() == ["network", "other"] * 4
    mean = table.iloc[6]
    assert mean["specificity"] == pytest.approx(1 / 4) and mean["changed_signs"] == pytest.approx(
        2 / 3
    )
    assert mean["edges"] == pytest.approx(10 / 3)
