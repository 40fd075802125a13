"""Scores of the field: they are what their packages and definitions say, on tiny inputs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from causes_parts import causalbench, genernib, vcc2026

CONTROL = "non-targeting"


def screen(seed: int = 7) -> tuple[vcc2026.Panel, vcc2026.Panel]:
    """Return measured and predicted cells of three interventions, two of them on genes of the 40
    that are counted.
    """
    generator = np.random.default_rng(seed)
    genes = [f"g{number:02d}" for number in range(40)]
    base = generator.gamma(1.5, 4, 40)
    effect = {
        name: np.exp(generator.normal(0, 0.5 * size, 40) * (generator.random(40) < 0.6))
        for name, size in {"g00": 1.0, "g01": 1.5, "other": 0.8}.items()
    }
    effect[CONTROL] = np.ones(40)

    def cells(size: int, noise: float) -> vcc2026.Panel:
        counts, label = [], []
        for name in sorted(effect):
            wrong = noise * generator.normal(0, 1, 40) * (name != CONTROL)
            mean, count = base * effect[name] * np.exp(wrong), 80 if name == CONTROL else size
            depth = generator.gamma(8, 1 / 8, (count, 1))
            counts.append(generator.poisson(mean * depth))
            label += [name] * count
        return vcc2026.Panel(np.concatenate(counts).astype(float), np.array(label), genes, CONTROL)

    return cells(50, 0), cells(45, 0.3)


# Of the same cells by the package cell-eval2 0.20.0, preset vcc2026, tests by scanpy 1.11.5.
PACKAGE = {
    "pds_cosine": {"g00": 1.0, "g01": 1.0, "other": 1.0},
    "fidelity": {"g00": 0.8636363636363636, "g01": 0.8636363636363636, "other": 0.7391304347826086},
    "reach": {"g00": 1.0, "g01": 0.7058823529411765, "other": 0.7},
    "sig_jaccard": {"g00": 0.4166666666666667, "g01": 0.39285714285714285, "other": 0.32},
    "lfc_nmae": {
        "g00": 0.45824104663688703,
        "g01": 0.6039563969384109,
        "other": 0.7540826195768926,
    },
}
REPLICATE = {
    "pds_cosine": 1.0,
    "expr_mse": -0.24912571425927693,
    "fidelity": 0.9581654456654457,
    "reach": 0.9694444444444444,
    "sig_jaccard": 0.6259944828133682,
    "lfc_nmae": 0.30502115091736914,
}


def test_the_six_metrics_are_those_of_the_package():
    measured, predicted = screen()
    found = vcc2026.Measured(measured).scores(predicted)
    error = vcc2026.mean_scores(found)["expr_mse"]
    assert error == pytest.approx(0.7112452592330267, rel=1e-6)
    del found["expr_mse"]
    assert found == {metric: pytest.approx(each, rel=1e-6) for metric, each in PACKAGE.items()}


def test_a_replicate_scores_what_it_does_in_the_package():
    measured, _ = screen()
    found = vcc2026.mean_repetition(vcc2026.Measured(measured).repetitions())
    assert found == pytest.approx(REPLICATE, rel=1e-6)


def test_the_measured_cells_are_a_perfect_prediction():
    measured, _ = screen()
    found = vcc2026.mean_scores(vcc2026.Measured(measured).scores(measured))
    # The noise of both sides is taken off a distance of 0, which is below 0 therefore.
    assert found.pop("expr_mse") < 0
    best = {"pds_cosine": 1, "fidelity": 1, "reach": 1, "sig_jaccard": 1, "lfc_nmae": 0}
    assert found == pytest.approx(best)


def test_one_profile_for_all_interventions_tells_none_apart():
    measured, _ = screen()
    effect = np.random.default_rng(0).normal(size=40)
    apart = {name: vcc2026.profile(measured.of(name)) for name in measured.names}
    found = vcc2026.discrimination(dict.fromkeys(apart, effect), apart, np.ones(40, bool))
    assert np.mean(list(found.values())) == pytest.approx(0.5)


def test_the_rank_sum_test_is_scipys():
    from scipy.stats import mannwhitneyu

    given, control = np.random.default_rng(5).poisson(1, (30, 6)), np.ones((40, 6))
    control[:, :5] = np.random.default_rng(6).poisson(1.5, (40, 5))
    given[:, 5] = 1
    usual = mannwhitneyu(given, control, axis=0, method="asymptotic", use_continuity=False).pvalue
    assert vcc2026.rank_sum(given, control)[:5] == pytest.approx(usual[:5])
    assert vcc2026.rank_sum(given, control)[5] == 1.0


def test_reach_counts_the_deepest_place_where_nine_of_ten_signs_are_right():
    genes = [f"g{number:02d}" for number in range(12)]
    p = np.arange(1, 13) / 1000
    fold = np.ones(12)
    there = vcc2026.Tested(p, p, fold)
    wrong_first = vcc2026.Tested(p, p, np.where(np.arange(12) == 0, -1.0, 1.0))
    assert vcc2026.reach(wrong_first, there, genes) == 1.0  # 11 of 12 are right
    wrong_third = vcc2026.Tested(p, p, np.where(np.isin(np.arange(12), (2, 3)), -1.0, 1.0))
    assert vcc2026.reach(wrong_third, there, genes) == pytest.approx(2 / 12)


def test_scaled_scores_end_where_the_definition_ends_them():
    assert vcc2026.scaled("pds_cosine", 0.9, 0.5, 0.7) == pytest.approx(2.0)
    assert vcc2026.scaled("expr_mse", -0.3, 1.0, 0.0) == 1.0
    assert vcc2026.scaled("lfc_nmae", 100.0, 1.0, 0.5) == -6.0
    assert np.isnan(vcc2026.scaled("expr_mse", 0.5, 1.0, 2.0))


def intervened() -> tuple[np.ndarray, np.ndarray, list[str]]:
    generator = np.random.default_rng(3)
    label = np.array([CONTROL] * 40 + ["a"] * 25 + ["b"] * 20)
    values = generator.normal(size=(85, 6))
    values[40:65, 1] += 1.5
    values[40:65, 2] -= 0.7
    values[65:, 2] += 0.9
    return values, label, list("abcdef")


# Evaluator of causalbench 1.1.2; the second by its own test of every omitted pair.
PACKAGE_CAUSALBENCH = {"wasserstein": 0.9339737557871373, "false_omission": 1 / 7}
EDGES = [("a", "b"), ("b", "d")]  # so that a path connects a and d


def test_causalbench_is_its_package():
    found = causalbench.Pairs.of(*intervened(), CONTROL).scores(EDGES)
    assert found == pytest.approx(PACKAGE_CAUSALBENCH)


def test_paths_connect_as_many_genes_as_their_length_allows():
    edges = [("a", "b"), ("b", "c"), ("c", "a")]
    assert causalbench.reachable(edges, 1) == set(edges)
    every = {(a, b) for a in "abc" for b in "abc" if a != b}
    assert causalbench.reachable(edges, 2) == causalbench.reachable(edges) == every


def edges(*rows: tuple[str, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["source", "target", "weight"])


def test_the_strongest_edges_are_so_by_size_and_never_of_a_gene_on_itself():
    table = edges(("a", "a", 9), ("a", "b", 0.1), ("a", "c", -0.5), ("a", "d", 0.0))
    assert list(genernib.strongest(table, "source", 2)["target"]) == ["c", "b"]


def test_the_right_regulator_explains_a_gene_in_the_group_left_out_and_a_wrong_one_does_not():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(300, 3))
    values[:, 2] = 2 * values[:, 0] + 0.1 * generator.normal(size=300)
    group = np.repeat(["one", "two", "three"], 100)
    right = genernib.explained(edges(("a", "c", 1)), values, list("abc"), group, 1)
    assert right["c"] > 0.99 and right["a"] == right["b"] == 0
    assert genernib.explained(edges(("b", "c", 1)), values, list("abc"), group, 1)["c"] < 0.01


def test_r2_from_moments_is_that_of_scikit_learns_ridge():
    from sklearn.linear_model import Ridge

    values = np.random.default_rng(8).normal(size=(90, 4))
    values[:, 3] += values[:, 0] - 0.5 * values[:, 1]
    training = np.arange(90) < 60
    model = Ridge().fit(values[training][:, [0, 2]], values[training, 3])
    usual = model.score(values[~training][:, [0, 2]], values[~training, 3])
    assert genernib.ridge_r2(values, {3: [0, 2]}, training) == pytest.approx({3: usual})


def test_percentiles_of_distances_are_ranks_among_all_genes():
    pairs = causalbench.Pairs({("a", gene): place for place, gene in enumerate("bcdef")}, {})
    found = genernib.distance_percentile(edges(("a", "f", -2), ("a", "b", 1)), pairs, 1)
    assert found == {"a": 0.8}
    assert genernib.distance_percentile(edges(("a", "f", 1)), pairs, 2) == {"a": (0.8 + 0.5) / 2}


def test_activity_is_the_t_of_a_slope():
    from scipy.stats import linregress

    weight, change = np.random.default_rng(1).normal(size=(2, 30))
    line = linregress(weight, change)
    assert genernib.activity(weight, change) == pytest.approx(line.slope / line.stderr)


def test_regulators_are_recovered_by_their_targets_and_not_by_others():
    generator = np.random.default_rng(2)
    genes = [f"g{number}" for number in range(60)]
    change, right, wrong = {}, [], []
    for number in range(8):
        moved = generator.choice(np.arange(10, 60), 10, replace=False)
        change[genes[number]] = generator.normal(size=60)
        change[genes[number]][moved] -= 3
        still = np.setdiff1d(np.arange(10, 60), moved)[:10]
        right += [(genes[number], genes[each], 1.0) for each in moved]
        wrong += [(genes[number], genes[each], 1.0) for each in still]
    assert genernib.recovered_regulators(edges(*right), change, genes, 10, 0) > 5
    assert genernib.recovered_regulators(edges(*wrong), change, genes, 10, 0) < 5


def test_gene_sets_that_are_active_and_have_a_regulator_are_recovered():
    genes = [f"g{number}" for number in range(100)]
    sets = {"high": set(genes[:20]), "low": set(genes[40:60])}
    samples = np.random.default_rng(4).normal(size=(5, 100))
    samples[:, :20] += 3
    right = edges(*(("g99", gene, 1.0) for gene in genes[:20]))
    found = genernib.recovered_sets(right, sets, samples, genes)
    assert found == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "active": 1.0, "sets": 2.0}
    other = edges(*(("g99", gene, 1.0) for gene in genes[40:60]))
    assert genernib.recovered_sets(other, sets, samples, genes)["f1"] == 0.0
