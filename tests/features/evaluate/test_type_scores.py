"""Networks of cell types against the edges of each type, counted by hand."""

import math
from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from grn.edges.edge_table import reference_of_table
from grn.features.evaluate.comparison import TypedTruth
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
    """Ratios are over the density, 4 / 6."""
    found = {label: typed.score(label, NETWORK, signed=True) for label in "abc"}
    auprc = (1 + 1 + 3 / 4 + 4 / 5) / 4  # AB, AC, AD and BC at ranks 1, 2, 4 and 5
    ratios = {"auprc_ratio": auprc * 3 / 2, "early_precision_ratio": 3 / 4 * 3 / 2}
    # of AC (4) and AD (2), which act, only AC is above BD (3)
    of_types = {"specificity": 1 / 2, "changed_signs": 0}
    expected = {"edges": 4, "auprc": auprc, "sign_accuracy": 3 / 4} | ratios | of_types
    assert found["a"] == pytest.approx(expected)
    # AD (2) and BD (3) act, AC (4) does not.
    assert (found["b"]["specificity"], found["b"]["changed_signs"]) == (0, 1)
    assert math.isnan(found["c"]["specificity"]), "none of the partial edges acts in c"


def test_one_network_for_all_types_knows_nothing_of_their_edges():
    """Random truths, and one random network: the mean specificity is that of guessing."""
    generator = np.random.default_rng(0)
    names = [f"g{number}" for number in range(12)]
    pairs = pd.DataFrame(permutations(names, 2), columns=["source", "target"])
    rows = [pairs.sample(frac=0.4, random_state=n).assign(sign=1, cell_type=n) for n in range(3)]
    reference = reference_of_table(pd.concat(rows).astype({"cell_type": str}), "The reference")
    typed = TypedTruth(make_universe(reference.edges), reference.by_type)
    networks = [pairs.assign(weight=generator.standard_normal(len(pairs))) for _ in range(100)]
    found = [typed.score(label, each, True)["specificity"] for label in "012" for each in networks]
    assert np.mean(found) == pytest.approx(0.5, abs=0.01)


def test_scores_without_signs_or_weights_are_undefined(typed):
    unsigned = typed.score("a", NETWORK, signed=False)
    assert math.isnan(unsigned["sign_accuracy"]) and math.isnan(unsigned["changed_signs"])
    silent = typed.score("a", NETWORK[:0], signed=True)
    assert math.isnan(silent["early_precision_ratio"]) and silent["auprc_ratio"] == pytest.approx(1)
    assert (silent["specificity"], silent["sign_accuracy"]) == (0.5, 0)


def test_a_type_without_edges_between_the_genes_has_no_scores():
    within = make_universe(TRUTH, "reference", ["A", "C"])
    found = TypedTruth(within, dict([*TRUTH.groupby("cell_type")])).score("b", NETWORK, signed=True)
    assert found.pop("edges") == 0 and all(map(math.isnan, found.values()))
