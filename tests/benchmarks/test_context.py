"""The scores of networks in context, and the methods that they are compared with."""

from __future__ import annotations

import context
import numpy as np
import pandas as pd
import peers_by_type as peers
import pytest
from draws import Draw, composition, sergio_like, typed


@pytest.fixture(scope="module")
def draw() -> Draw:
    return typed(1, 4, 80, types=3, regulators=8, targets=40)


def network(edges: pd.DataFrame, weight: pd.Series) -> pd.DataFrame:
    return edges[["source", "target"]].assign(weight=weight)


def test_the_truth_scores_one_and_its_opposite_only_in_ranking(draw):
    truth = {label: network(edges, edges["sign"]) for label, edges in draw.by_type.groupby("cell_type")}
    assert set(context.typed_scores(draw, context.Found(None, truth)).values()) == {1.0}
    opposite = {label: table.assign(weight=-table["weight"]) for label, table in truth.items()}
    found = context.typed_scores(draw, context.Found(None, opposite))
    assert found == {"auprc": 1.0, "signs": 0.0, "specificity": 1.0, "changed_signs": 0.0}


def test_one_network_for_all_types_is_not_specific(draw):
    everything = draw.by_type.drop_duplicates(["source", "target"])
    found = context.typed_scores(draw, context.Found(network(everything, everything["sign"])))
    assert found["specificity"] == 0.5 and 0.3 < found["changed_signs"] < 0.8 and found["auprc"] < 1


def test_auroc_counts_ties_as_half():
    assert context.auroc(np.array([3.0, 1, 2, 1]), np.array([True, True, False, False])) == pytest.approx(0.625)
    assert np.isnan(context.auroc(np.ones(2), np.ones(2, dtype=bool)))


def features(draw: Draw, rho: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[x, rho x 1_1, ..., rho x 1_K] [C, R (K + 1)], standardised x [C, N] and the type of each cell."""
    x = draw.one.multiplicities().astype(np.float64)
    rows = peers.by_label(draw.one.labels)
    kind = np.empty(len(x), dtype=int)
    for number, members in enumerate(rows.values()):
        x[members] = (x[members] - x[members].mean(0)) / x[members].std(0)
        kind[members] = number
    inputs = x[:, :8]
    return np.hstack([inputs, *(rho * inputs * (kind == number)[:, None] for number in range(3))]), x, kind


@pytest.mark.parametrize("rho", [0.0, 0.5, 2.0])
def test_shared_and_own_slopes_are_those_of_one_regression(draw, rho):
    inputs, x, kind = features(draw, rho)
    own = np.arange(8)
    moments = [(x[kind == k][:, :8].T @ x[kind == k][:, :8], x[kind == k][:, :8].T @ x[kind == k]) for k in range(3)]
    (found,) = peers._solve(moments, rho, np.array([30.0]), own)
    for gene in (3, 20):  # a regulator, which is not among its own inputs, and a target
        used = np.flatnonzero(np.arange(32) % 8 != gene) if gene < 8 else np.arange(32)
        part = inputs[:, used]
        slopes = np.zeros(32)
        slopes[used] = np.linalg.solve(part.T @ part + 30 * np.eye(len(used)), part.T @ x[:, gene])
        shared, deviation = slopes[:8], slopes[8:].reshape(3, 8)
        np.testing.assert_allclose(found[:, :, gene], shared + rho * deviation, atol=1e-9)


def test_types_differ_where_networks_do_and_not_where_they_are_the_same(draw):
    inputs = (draw.one.multiplicities(), draw.one.labels, draw.one.genes, draw.one.regulators)
    tables, rho, _ = peers.ridge_shared(*inputs, seed=0)
    assert rho > 0 and set(tables) == set(draw.one.labels)
    scores = context.typed_scores(draw, context.Found(None, tables))
    alone = context.typed_scores(draw, context.Found(peers.ridge_within(*inputs)))
    assert scores["changed_signs"] > alone["changed_signs"] + 0.2 and scores["auprc"] > alone["auprc"]
    one = composition(1, 4, 80, types=3, regulators=8, targets=40).one
    nothing, _, _ = peers.ridge_shared(one.multiplicities(), one.labels, one.genes, one.regulators, seed=0)
    regulated = context.size(draw.one, context.Found(None, tables))
    assert context.size(one, context.Found(None, nothing)) < 0.3 * regulated


def test_correlations_over_all_cells_find_composition_and_those_within_types_do_not():
    draw = composition(2, 4, 150, regulators=10, targets=50)
    q = {method: context.infer(method, draw.one, 2).q for method in ("pearson", "pearson_each")}
    assert (q["pearson"] <= 0.05).mean() > 0.2 and (q["pearson_each"] <= 0.05).mean() < 0.01


def test_abundance_alone_does_not_tell_the_edges_of_simulated_cells():
    draws = [sergio_like(seed, 0.7, cells_per_type=20, types=5, regulators=35, genes=250) for seed in range(3)]
    scores = [context.network_scores(draw, context.infer("abundance", draw.one, 0)) for draw in draws]
    assert np.mean([each["auprc_ratio"] for each in scores]) == pytest.approx(1, abs=0.2)


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    tiny = context.KINDS["typed"].__class__(
        {"tiny": lambda seed: typed(seed, 4, 20, types=3, regulators=4, targets=30)},
        context.KINDS["typed"].metrics,
        context.TYPED,
        context.measure_typed,
    )
    monkeypatch.setitem(context.KINDS, "typed", tiny)
    run = ["context.py", "--kinds", "typed", "--output", str(tmp_path), "--methods", "ridge"]
    monkeypatch.setattr("sys.argv", [*run, "--seeds", "1"])
    context.main()
    first = pd.read_csv(tmp_path / "context.csv").assign(auprc=9.0)
    first.to_csv(tmp_path / "context.csv", index=False)
    monkeypatch.setattr("sys.argv", [*run, "--seeds", "1", "2", "--missing"])
    context.main()
    after = pd.read_csv(tmp_path / "context.csv")
    assert after["seed"].tolist() == [1, 2] and after["auprc"][0] == 9 and after["auprc"][1] <= 1
    assert "typed: mean over the seeds (worst)" in capsys.readouterr().out
