"""The rules of evaluation: by NumPy and scikit-learn, and as laws."""

from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score

from grn.features.evaluate.scores import (
    OF_SIGNS,
    SCORES,
    check_names,
    checked_edges,
    evaluate_on,
    make_universe,
)
from grn.runtime.errors import DataError


def network(*rows):
    return pd.DataFrame(rows, columns=["source", "target", "weight"])


def reference(*rows):
    return pd.DataFrame(rows, columns=["source", "target", "sign"])


# Twelve pairs of four genes; K = 4.
TRUTH = reference(("A", "B", 1), ("A", "C", -1), ("B", "C", 1), ("C", "D", 0))


def evaluate(predicted, truth=TRUTH, regulators=None, genes=None, **options):
    table, universe = checked_edges(predicted), make_universe(truth, regulators, genes)
    check_names(table, universe)
    return evaluate_on(universe, table, **{"permutations": 0} | options)


def scores(predicted, truth=TRUTH, **options):
    return evaluate(predicted, truth, **options).scores


def roc_auc(positive, values) -> float:
    return roc_auc_score(positive, values) if len(set(positive)) == 2 else np.nan


def by_definition(true, sign, weight) -> dict[str, float]:
    """true bool [U]: the pairs that are edges. sign [U]: of edges, 0 where it is unknown.
    weight [U]: 0 where there is none, which is a wrong sign.
    """

    def mean(values) -> float:
        return pd.Series(values, dtype=float).mean()

    def balanced(among) -> float:
        return np.mean([mean(right[among & (sign == each)]) for each in (1, -1)])

    size, known, right = np.abs(weight), true & (sign != 0), np.sign(weight) == sign
    # ties with the K-th pair are in; where fewer have a weight, these
    top = (size >= np.sort(size)[-true.sum()]) & (size > 0)
    precision, recall, _ = precision_recall_curve(true, size)
    found = {
        "early_precision": mean(true[top]),
        "auprc": average_precision_score(true, size),
        "auprc_trapezoid": auc(recall, precision),
        "auroc": roc_auc(true, size),
        "sign_majority": max(mean(sign[known] > 0), mean(sign[known] < 0)),
    }
    found |= {f"{name}_ratio": found[name] / true.mean() for name in ("early_precision", "auprc")}
    if not known.any():
        return found | dict.fromkeys(OF_SIGNS, np.nan)
    return found | {
        "signed_early_precision": mean((known & right)[top & (known | ~true)]),
        "sign_accuracy": mean(right[known]),
        "sign_balanced_accuracy": balanced(known),
        "sign_accuracy_top": mean(right[known & top]),
        "sign_balanced_accuracy_top": balanced(known & top),
        "sign_auroc": roc_auc(sign[known] > 0, weight[known]),
    }


GENES = "ABCDE"
PAIRS = list(permutations(GENES, 2))


@st.composite
def cases(draw):
    """A reference that names every gene, and weights with many ties and gaps."""

    def of_pairs(values):
        return draw(st.lists(values, min_size=len(PAIRS), max_size=len(PAIRS)))

    table = pd.DataFrame(PAIRS, columns=["source", "target"])
    table["weight"] = np.array(of_pairs(st.integers(-3, 3)), float)
    table["sign"] = of_pairs(st.sampled_from([None, None, 0, 1, -1]))
    truth = table.dropna(subset="sign").drop(columns="weight").astype({"sign": int})
    assume({*truth["source"], *truth["target"]} == set(GENES))
    return table, truth


@given(cases())
@settings(max_examples=60)
def test_scores_are_those_of_their_definitions(case):
    table, truth = case
    true, sign = table["sign"].notna().to_numpy(), table["sign"].fillna(0).to_numpy(float)
    expected = by_definition(true, sign, table["weight"].to_numpy())
    found = scores(table, truth, signed=True)
    assert found == pytest.approx({name: expected[name] for name in SCORES}, nan_ok=True)


@given(cases(), st.randoms(), st.sampled_from([1e-3, 0.5, 1e6]))
@settings(max_examples=20)
def test_order_scale_weaker_duplicates_and_zeros_change_nothing(case, random, scale):
    predicted, truth = case
    weaker = predicted.assign(weight=-predicted["weight"] / 2)
    loops = predicted.assign(target=predicted["source"], weight=9.0)
    changed = pd.concat([weaker, predicted[predicted["weight"] != 0], loops])
    changed = changed.assign(weight=changed["weight"] * scale)
    shuffled = changed.sample(frac=1, random_state=random.randrange(99))
    found = scores(shuffled, pd.concat([truth.iloc[::-1], truth]), signed=True)
    assert found == pytest.approx(scores(predicted, truth, signed=True), nan_ok=True)


def test_an_edge_with_both_signs_has_none_that_is_known():
    rows = ("A", "B", 1), ("A", "B", -1), ("A", "C", 0), ("A", "C", -1)
    assert make_universe(reference(*rows)).edges["sign"].tolist() == [0, -1]


def test_signs_are_scored_where_the_network_has_signs():
    unsigned = network(("A", "B", 2), ("A", "C", 1))
    assert np.isnan([scores(unsigned)[name] for name in OF_SIGNS]).all()
    assert scores(unsigned, signed=True)["sign_accuracy"] == 1 / 3
    assert scores(network(("A", "B", 2), ("A", "C", -1)))["sign_accuracy"] == 2 / 3


@pytest.mark.parametrize(
    ("regulators", "genes", "pairs", "edges"),
    [
        (None, None, 12, 4),
        ("reference", None, 9, 4),  # A, B and C
        (["A", "D", "Z"], None, 6, 2),
        (None, ["A", "B", "C", "Z"], 6, 3),
        (None, ["A", "B", "D"], 2, 1),  # D has no edge left
    ],
)
def test_the_universe_is_that_of_the_chosen_regulators_and_genes(regulators, genes, pairs, edges):
    found = make_universe(TRUTH, regulators, genes)
    assert (found.pairs, len(found.edges)) == (pairs, edges)
    rows = network(("A", "B", 1), ("Z", "A", 2), ("Z", "A", 1), ("Y", "A", 1))
    assert evaluate(rows, TRUTH, regulators, genes).outside == 2


@pytest.mark.parametrize("rows", [[("A", "B", np.inf)], [], [("a", "b", 1)], [("x", "y", 1)]])
def test_what_cannot_be_scored_is_refused(rows):
    with pytest.raises(DataError):
        evaluate(network(*rows))


def test_the_majority_sign_says_nothing_and_the_curve_has_the_area_of_its_score():
    majority = evaluate(TRUTH.assign(weight=1.0), signed=True, permutations=50)
    assert majority.scores["sign_balanced_accuracy"] == 0.5
    assert majority.p_values["sign_accuracy"] == 1
    found = evaluate(network(("A", "B", 3), ("A", "D", 2), ("B", "C", 1)))
    recall = np.diff(found.curve["recall"], prepend=0)
    assert (recall * found.curve["precision"]).sum() == pytest.approx(found.scores["auprc"])


def test_p_values_are_shares_of_all_permutations():
    """All 495 choices of four pairs of twelve, and all orders of the signs, counted out with
    scikit-learn.
    """
    signs, at_edges = [1, -1, 1, -1], np.array([5, 3, -2, -1])
    truth = TRUTH.assign(sign=signs)
    predicted = pd.concat([truth.assign(weight=at_edges), network(("A", "D", -4), ("B", "A", -2))])
    found, again = (evaluate(predicted, truth, permutations=4000, seed=3) for _ in range(2))
    ranked = np.array([5, 4, 3, 2, 2, 1, 0, 0, 0, 0, 0, 0])
    choices = [np.isin(np.arange(12), chosen) for chosen in combinations(range(12), 4)]
    every = {
        "auprc": [average_precision_score(true, ranked) for true in choices],
        "early_precision": [true[:5].mean() for true in choices],
        "sign_accuracy": [(np.sign(at_edges) == order).mean() for order in permutations(signs)],
        "sign_auroc": [roc_auc_score(order, at_edges) for order in permutations(signs)],
    }
    for name, values in every.items():
        expected = np.mean(np.array(values) >= found.scores[name] - 1e-9)
        assert found.p_values[name] == pytest.approx(expected, abs=0.03), name
    assert found.p_values == again.p_values
