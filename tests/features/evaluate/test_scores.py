"""The rules of evaluation: counted by hand, against scikit-learn, and as laws."""

import math
from itertools import combinations
from itertools import permutations as orders

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score

from grn.features.evaluate.scores import (
    OF_SIGNS,
    RANKED,
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


def evaluate(predicted, truth, regulators=None, genes=None, **options):
    table, universe = checked_edges(predicted), make_universe(truth, regulators, genes)
    check_names(table, universe)
    return evaluate_on(universe, table, **options)


def scores(predicted, truth=TRUTH, **options):
    return evaluate(predicted, truth, permutations=0, **options).scores


def test_counted_by_hand():
    """Ranked: AB hit, AD miss, AC hit with the wrong sign, BA and BC level, DA; CD and five more
    have no weight.
    """
    predicted = network(
        ("A", "B", 5), ("A", "D", -4), ("A", "C", 3), ("B", "A", -2), ("B", "C", 2), ("D", "A", 1)
    )
    found = evaluate(predicted, TRUTH, permutations=0)
    assert (found.universe.pairs, found.predicted, found.outside) == (12, 6, 0)
    assert (found.cut, found.silent) == (5, 0), "the fourth largest |weight| is shared by two pairs"
    expected = {
        "early_precision": 3 / 5,
        "early_precision_ratio": 3 / 5 * 3,
        "auprc": (1 + 2 / 3 + 3 / 5 + 4 / 12) / 4,
        "auprc_ratio": (1 + 2 / 3 + 3 / 5 + 4 / 12) / 4 * 3,
        # From (0, 1): AB 1 to 1, AC 1/2 to 2/3, BC 2/3 to 3/5, CD 3/6 to 4/12.
        "auprc_trapezoid": (1 + 1 + 1 / 2 + 2 / 3 + 2 / 3 + 3 / 5 + 3 / 6 + 4 / 12) / 8,
        # Of the 8 others: below AB 8, below AC 7, below BC 6 and one level, CD below 3 and level
        # with 5.
        "auroc": (8 + 7 + 6.5 + 2.5) / 32,
        "signed_early_precision": 2 / 5,
        "sign_accuracy": 2 / 3,
        "sign_balanced_accuracy": 1 / 2,
        "sign_accuracy_top": 2 / 3,
        "sign_balanced_accuracy_top": 1 / 2,
        "sign_auroc": 1 / 2,  # AC (-) has weight 3, between AB's 5 and BC's 2
        "sign_majority": 2 / 3,
    }
    assert found.scores == pytest.approx(expected)


def test_a_missing_weight_is_a_wrong_sign_and_an_unknown_sign_is_not_scored():
    found = evaluate(
        network(("A", "B", 2), ("C", "D", -1), ("B", "A", -0.5), ("B", "D", 0)),
        TRUTH,
        permutations=0,
    )
    assert (found.predicted, found.cut, found.silent) == (3, 3, 2), (
        "fewer than K pairs are predicted"
    )
    assert found.scores["sign_accuracy"] == 1 / 3
    assert found.scores["sign_accuracy_top"] == 1
    assert math.isnan(found.scores["sign_balanced_accuracy_top"]), "only AB is at the top"
    assert found.scores["early_precision"] == 2 / 3
    assert found.scores["signed_early_precision"] == 1 / 2, (
        "AB is right, BA is none, CD is left out"
    )


def test_undefined_scores_are_nan_and_never_an_exception():
    one_sign = reference(("A", "B", 1), ("B", "C", 1))
    found = scores(network(("A", "B", 1), ("C", "A", -1)), one_sign)
    assert math.isnan(found["sign_balanced_accuracy"]) and math.isnan(found["sign_auroc"])
    every_pair = reference(("A", "B", 0), ("B", "A", 0))
    found = scores(network(("A", "B", 1), ("B", "A", -1)), every_pair)
    assert found["auprc"] == 1 == found["early_precision"]
    assert all(math.isnan(found[name]) for name in ("auroc", "sign_majority", *OF_SIGNS))
    nothing = scores(network(("A", "B", 0)))
    assert math.isnan(nothing["early_precision"]) and nothing["auroc"] == 0.5
    unsigned = network(("A", "B", 2), ("A", "C", 1))
    assert all(math.isnan(scores(unsigned)[name]) for name in OF_SIGNS)
    assert scores(unsigned, signed=True)["sign_accuracy"] == 1 / 3


def test_self_loops_and_repeated_pairs_count_once():
    """Of the weights of a pair the largest |weight|, of opposite ones the positive."""
    plain = network(("A", "B", 5), ("A", "C", -3), ("D", "B", 1))
    more = network(("A", "A", 9), ("A", "C", 2), ("A", "B", -5), ("A", "C", 0))
    for repeated in (pd.concat([plain, more]), pd.concat([more, plain])):
        assert scores(repeated) == pytest.approx(scores(plain), nan_ok=True)
    truth = pd.concat([TRUTH, TRUTH, reference(("B", "B", 1), ("E", "E", 1))])
    assert scores(plain, truth) == pytest.approx(scores(plain), nan_ok=True)
    rows = ("A", "B", 1), ("A", "B", -1), ("A", "C", 0), ("A", "C", -1)
    assert make_universe(reference(*rows)).edges["sign"].tolist() == [0, -1]


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
    assert evaluate(rows, TRUTH, regulators, genes, permutations=0).outside == 2


GENES = "ABCDE"
PAIRS = list(orders(GENES, 2))


@st.composite
def cases(draw):
    """A reference that names every gene, and weights with many ties and gaps."""
    signs = draw(
        st.lists(st.sampled_from([None, None, 0, 1, -1]), min_size=len(PAIRS), max_size=len(PAIRS))
    )
    weights = draw(st.lists(st.integers(-3, 3), min_size=len(PAIRS), max_size=len(PAIRS)))
    rows = [(*pair, sign) for pair, sign in zip(PAIRS, signs, strict=True) if sign is not None]
    assume({name for row in rows for name in row[:2]} == set(GENES))
    table = network(*((*pair, float(weight)) for pair, weight in zip(PAIRS, weights, strict=True)))
    return table, reference(*rows)


@given(cases())
@settings(max_examples=30)
def test_agrees_with_scikit_learn(case):
    predicted, truth = case
    found = scores(predicted, truth, signed=True)
    edges = {(edge.source, edge.target): edge.sign for edge in truth.itertuples()}
    true = np.array([pair in edges for pair in PAIRS])
    weight = predicted["weight"].to_numpy()
    assert found["auprc"] == pytest.approx(average_precision_score(true, np.abs(weight)))
    precision, recall, _ = precision_recall_curve(true, np.abs(weight))
    assert found["auprc_trapezoid"] == pytest.approx(auc(recall, precision))
    if not true.all():
        assert found["auroc"] == pytest.approx(roc_auc_score(true, np.abs(weight)))
    sign = np.array([edges.get(pair, 0) for pair in PAIRS])
    if {1, -1} <= set(sign):
        assert found["sign_auroc"] == pytest.approx(
            roc_auc_score(sign[sign != 0] > 0, weight[sign != 0])
        )


@given(cases(), st.randoms(), st.sampled_from([1e-3, 0.5, 1e6]))
@settings(max_examples=20)
def test_order_scale_weaker_duplicates_and_zeros_change_nothing(case, random, scale):
    predicted, truth = case
    signs = {"signed": bool((predicted["weight"] < 0).any()), "permutations": 5}
    weaker = predicted.assign(weight=-predicted["weight"] / 2)
    changed = pd.concat([weaker, predicted[predicted["weight"] != 0]])
    changed = changed.assign(weight=changed["weight"] * scale)
    shuffled = changed.sample(frac=1, random_state=random.randrange(99))
    found = evaluate(shuffled, truth.iloc[::-1], **signs)
    expected = evaluate(predicted, truth, **signs)
    assert found.scores == pytest.approx(expected.scores, nan_ok=True)


@given(cases())
@settings(max_examples=20)
def test_the_truth_itself_is_perfect(case):
    _, truth = case
    assume((truth["sign"] != 0).any())
    perfect = truth.assign(weight=np.where(truth["sign"] == 0, 1, truth["sign"]))
    found = evaluate(perfect, truth, signed=True, permutations=0)
    assert found.scores["auprc_ratio"] == pytest.approx(1 / found.universe.density)
    for name in set(SCORES) - {"auprc_ratio", "early_precision_ratio", "sign_majority"}:
        assert math.isnan(found.scores[name]) or found.scores[name] == pytest.approx(1), name


@given(cases())
@settings(max_examples=20)
def test_flipping_every_sign_keeps_the_ranking_and_mirrors_the_sign_scores(case):
    predicted, truth = case
    one = scores(predicted, truth, signed=True)
    other = scores(predicted.assign(weight=-predicted["weight"]), truth, signed=True)
    assert [one[name] for name in RANKED] == pytest.approx(
        [other[name] for name in RANKED], nan_ok=True
    )
    assert one["sign_auroc"] == pytest.approx(1 - other["sign_auroc"], nan_ok=True)


def random_case(genes, edges, seed):
    """Normal weights of all pairs, and edges drawn among these."""
    generator = np.random.default_rng(seed)
    pairs = orders([f"g{number}" for number in range(genes)], 2)
    table = pd.DataFrame(pairs, columns=["source", "target"])
    truth = table.sample(edges, random_state=generator)
    truth["sign"] = generator.choice([-1, 1], edges)
    return table.assign(weight=generator.standard_normal(len(table))), truth


def test_the_majority_sign_says_nothing_and_the_curve_has_the_area_of_its_score():
    table, truth = random_case(10, 20, 0)
    majority = evaluate(truth.assign(weight=1.0), truth, signed=True, permutations=50)
    assert majority.scores["sign_balanced_accuracy"] == 0.5
    assert majority.p_values["sign_accuracy"] == 1
    found, again = (evaluate(table, truth, permutations=50, seed=3) for _ in range(2))
    assert found.p_values == again.p_values
    recall = np.diff(found.curve["recall"], prepend=0)
    assert (recall * found.curve["precision"]).sum() == pytest.approx(found.scores["auprc"])


@pytest.mark.parametrize("rows", [[("A", "B", np.inf)], [], [("a", "b", 1)], [("x", "y", 1)]])
def test_what_cannot_be_scored_is_refused(rows):
    with pytest.raises(DataError):
        evaluate(network(*rows), TRUTH)


def test_guessing_scores_at_chance():
    mean = pd.DataFrame([scores(*random_case(12, 40, seed)) for seed in range(200)]).mean()
    assert mean["early_precision_ratio"] == pytest.approx(1, abs=0.06)
    assert mean["auprc_ratio"] == pytest.approx(1, abs=0.15)  # biased upwards by little
    for name in ("auroc", "sign_accuracy", "sign_balanced_accuracy", "sign_auroc"):
        assert mean[name] == pytest.approx(0.5, abs=0.05), name


def test_p_values_are_shares_of_all_permutations():
    """All 495 choices of four pairs of twelve, and all orders of the signs, counted out with
    scikit-learn.
    """
    signs, at_edges = [1, -1, 1, -1], np.array([5, 3, -2, -1])
    truth = TRUTH.assign(sign=signs)
    predicted = truth.assign(weight=at_edges)[["source", "target", "weight"]]
    others = network(("A", "D", -4), ("B", "A", -2))
    found = evaluate(pd.concat([predicted, others]), truth, permutations=4000)
    ranked = np.array([5, 4, 3, 2, 2, 1, 0, 0, 0, 0, 0, 0])
    choices = [np.isin(np.arange(12), chosen) for chosen in combinations(range(12), 4)]
    every = {
        "auprc": [average_precision_score(true, ranked) for true in choices],
        "early_precision": [true[:5].mean() for true in choices],
        "sign_accuracy": [(np.sign(at_edges) == order).mean() for order in orders(signs)],
        "sign_auroc": [roc_auc_score(order, at_edges) for order in orders(signs)],
    }
    for name, values in every.items():
        expected = np.mean(np.array(values) >= found.scores[name] - 1e-9)
        assert found.p_values[name] == pytest.approx(expected, abs=0.03), name
