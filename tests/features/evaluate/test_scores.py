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
    assert (found.universe.pairs, found.universe.density, found.predicted, found.outside) == (
        12,
        4 / 12,
        6,
        0,
    )
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
        "sign_balanced_accuracy": (1 + 0) / 2,
        "sign_accuracy_top": 2 / 3,
        "sign_balanced_accuracy_top": (1 + 0) / 2,
        "sign_auroc": 1 / 2,  # AC (-) has weight 3, between AB's 5 and BC's 2
        "sign_majority": 2 / 3,
    }
    assert list(found.scores) == list(SCORES)
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
    assert (found["sign_accuracy"], found["sign_majority"]) == (0.5, 1)
    all_pairs = reference(("A", "B", 0), ("B", "A", 0))
    found = evaluate(network(("A", "B", 1), ("B", "A", -1)), all_pairs, permutations=9)
    assert found.scores["auprc"] == 1 and found.scores["early_precision"] == 1
    assert all(math.isnan(found.scores[name]) for name in ("auroc", "sign_majority", *OF_SIGNS))
    assert found.p_values["auprc"] == 1 and math.isnan(found.p_values["auroc"])
    nothing = evaluate(network(("A", "B", 0)), TRUTH, permutations=9)
    assert (nothing.cut, nothing.predicted, nothing.signed) == (0, 0, False)
    assert math.isnan(nothing.scores["early_precision"])
    assert nothing.scores["auprc"] == pytest.approx(4 / 12) and nothing.scores["auroc"] == 0.5


def test_signs_are_scored_where_the_network_has_signs():
    unsigned = network(("A", "B", 2), ("A", "C", 1))
    assert all(math.isnan(scores(unsigned)[name]) for name in OF_SIGNS)
    assert scores(unsigned, signed=True)["sign_accuracy"] == 1 / 3
    assert all(math.isnan(scores(network(("A", "B", -2)), signed=False)[name]) for name in OF_SIGNS)


def test_self_loops_and_repeated_pairs_count_once():
    plain = network(("A", "B", 5), ("A", "C", -3), ("D", "B", 1))
    noisy = network(
        ("A", "A", 9),
        ("A", "C", 2),
        ("A", "B", 5),
        ("D", "B", 1),
        ("A", "C", -3),
        ("A", "B", -4),
        ("A", "C", 0),
    )
    assert scores(noisy) == pytest.approx(scores(plain), nan_ok=True)
    truth = pd.concat([TRUTH, TRUTH, reference(("B", "B", 1), ("E", "E", 1))])
    assert scores(plain, truth) == pytest.approx(scores(plain), nan_ok=True)
    for rows in (
        [("A", "B", 2), ("A", "B", -2), ("B", "A", -1)],
        [("A", "B", -2), ("B", "A", -1), ("A", "B", 2)],
    ):
        assert scores(network(*rows))["sign_accuracy"] == 1 / 3, (
            "of opposite weights, the positive one stays"
        )
    truth = make_universe(
        reference(("A", "B", 1), ("A", "B", -1), ("A", "C", 0), ("A", "C", -1), ("B", "C", 1))
    )
    signs = {(edge.source, edge.target): edge.sign for edge in truth.edges.itertuples()}
    assert signs == {("A", "B"): 0, ("A", "C"): -1, ("B", "C"): 1}


def test_the_universe_is_that_of_the_chosen_regulators_and_genes():
    all_genes = make_universe(TRUTH)
    assert (list(all_genes.regulators), all_genes.pairs) == (["A", "B", "C", "D"], 12)
    own = make_universe(TRUTH, "reference")
    assert (list(own.regulators), list(own.genes), own.pairs) == (
        ["A", "B", "C"],
        ["A", "B", "C", "D"],
        9,
    )
    listed = make_universe(TRUTH, ["A", "D", "Z"])
    assert (list(listed.regulators), listed.pairs, len(listed.edges)) == (["A", "D"], 6, 2)
    measured = make_universe(TRUTH, None, ["A", "B", "C", "Z"])
    assert (list(measured.genes), len(measured.edges)) == (["A", "B", "C"], 3)
    alone = make_universe(TRUTH, None, ["A", "B", "D"])
    assert list(alone.genes) == ["A", "B"], "D has no edge left"
    assert [universe.left_out for universe in (all_genes, listed, measured, alone)] == [0, 0, 1, 3]
    outside = evaluate(
        network(("A", "B", 1), ("D", "A", 1), ("Z", "A", 2), ("Z", "A", 1)), TRUTH, regulators=["A"]
    )
    assert (outside.predicted, outside.outside) == (1, 2)


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
def test_order_scale_weaker_duplicates_and_explicit_zeros_change_nothing(case, random, scale):
    predicted, truth = case
    expected = evaluate(predicted, truth, permutations=5)
    weaker = predicted.assign(weight=-predicted["weight"] / 2)
    rows = list(range(len(predicted)))
    random.shuffle(rows)
    changed = pd.concat([weaker, predicted[predicted["weight"] != 0]]).assign(
        weight=lambda table: table.weight * scale
    )
    if (predicted["weight"] < 0).any() == (changed["weight"] < 0).any():
        found = evaluate(
            changed.sample(frac=1, random_state=rows[0]), truth.iloc[::-1], permutations=0
        )
        assert found.scores == pytest.approx(expected.scores, nan_ok=True)
    again = evaluate(predicted.iloc[rows], truth, permutations=5)
    assert again.scores == pytest.approx(expected.scores, nan_ok=True)


@given(cases())
@settings(max_examples=20)
def test_the_truth_itself_is_perfect(case):
    _, truth = case
    assume((truth["sign"] != 0).any())
    perfect = truth.assign(weight=np.where(truth["sign"] == 0, 1, truth["sign"]))
    found = evaluate(perfect, truth, signed=True, permutations=0)
    assert found.cut == len(truth)
    names = {name for name in SCORES if not name.endswith("_ratio") and name != "sign_majority"}
    assert all(
        value == pytest.approx(1)
        for name, value in found.scores.items()
        if name in names and value == value
    )
    assert found.scores["auprc_ratio"] == pytest.approx(1 / found.universe.density)


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
    generator = np.random.default_rng(seed)
    names = np.array([f"g{number}" for number in range(genes)], dtype=object)
    source, target = np.nonzero(~np.eye(genes, dtype=bool))
    chosen = generator.choice(len(source), edges, replace=False)
    truth = pd.DataFrame(
        {
            "source": names[source[chosen]],
            "target": names[target[chosen]],
            "sign": generator.choice([-1, 1], edges),
        }
    )
    table = pd.DataFrame(
        {
            "source": names[source],
            "target": names[target],
            "weight": generator.standard_normal(len(source)),
        }
    )
    return table, truth


def test_p_values_of_the_truth_and_of_the_majority_sign():
    _, truth = random_case(10, 20, 0)
    perfect = truth.assign(weight=truth["sign"])
    found = evaluate(perfect, truth, permutations=99)
    assert found.p_values["auprc"] == found.p_values["sign_accuracy"] == pytest.approx(1 / 100)
    majority = evaluate(truth.assign(weight=1.0), truth, signed=True, permutations=50)
    assert (
        majority.scores["sign_balanced_accuracy"] == 0.5 and majority.p_values["sign_accuracy"] == 1
    )
    again = [evaluate(*random_case(10, 20, 0), permutations=50, seed=3) for _ in range(2)]
    assert again[0].p_values == again[1].p_values
    recall = np.diff(again[0].curve["recall"], prepend=0)
    assert (recall * again[0].curve["precision"]).sum() == pytest.approx(again[0].scores["auprc"])


@pytest.mark.parametrize("rows", [[("A", "B", np.inf)], [], [("a", "b", 1)], [("x", "y", 1)]])
def test_what_cannot_be_scored_is_refused(rows):
    with pytest.raises(DataError):
        evaluate(network(*rows), TRUTH)


def test_guessing_scores_at_chance():
    mean = pd.DataFrame([scores(*random_case(12, 40, seed)) for seed in range(200)]).mean()
    assert mean["auroc"] == pytest.approx(0.5, abs=0.02)
    assert mean["early_precision_ratio"] == pytest.approx(1, abs=0.06)
    assert mean["auprc_ratio"] == pytest.approx(1, abs=0.15), (
        "an average precision is biased upwards by little"
    )
    for name in ("sign_accuracy", "sign_balanced_accuracy", "sign_auroc", "sign_accuracy_top"):
        assert mean[name] == pytest.approx(0.5, abs=0.05), name


def test_p_values_are_shares_of_all_permutations():
    """All 495 choices of four pairs of twelve, and all orders of the signs, counted out with
    scikit-learn.
    """
    signs = [1, -1, 1, -1]
    truth = TRUTH.assign(sign=signs)
    weights = {
        ("A", "B"): 5,
        ("A", "D"): -4,
        ("A", "C"): 3,
        ("B", "A"): -2,
        ("B", "C"): -2,
        ("C", "D"): -1,
    }
    found = evaluate(
        network(*((*pair, weight) for pair, weight in weights.items())), truth, permutations=4000
    )
    ranked = np.array([5, 4, 3, 2, 2, 1, 0, 0, 0, 0, 0, 0])
    as_true = [np.isin(np.arange(12), chosen) for chosen in combinations(range(12), 4)]
    precisions = np.array([average_precision_score(true, ranked) for true in as_true])
    expected = (precisions >= found.scores["auprc"] - 1e-9).mean()
    assert (
        found.p_values["auprc"]
        == found.p_values["auprc_ratio"]
        == pytest.approx(expected, abs=0.02)
    )
    early = np.array([true[:5].mean() for true in as_true])
    expected = (early >= found.scores["early_precision"]).mean()
    assert found.p_values["early_precision"] == pytest.approx(expected, abs=0.02)
    at_edges = np.array([5, 3, -2, -1])
    accuracies = np.array([(np.sign(at_edges) == order).mean() for order in orders(signs)])
    expected = (accuracies >= found.scores["sign_accuracy"]).mean()
    assert found.p_values["sign_accuracy"] == pytest.approx(expected, abs=0.03)
    areas = np.array([roc_auc_score(order, at_edges) for order in orders(signs)])
    expected = (areas >= found.scores["sign_auroc"]).mean()
    assert found.p_values["sign_auroc"] == pytest.approx(expected, abs=0.03)
