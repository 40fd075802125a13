"""Networks in context: the draws are what they claim, and the scores are right."""

from __future__ import annotations

import os

import context
import numpy as np
import pandas as pd
import peers_by_type as peers
import pytest
from draws import Draw, composition, sergio_like, typed

needs_data = pytest.mark.skipif(
    "GRN_BENCHMARK_DATA" not in os.environ, reason="GRN_BENCHMARK_DATA is not set"
)


SMALL = {"cells_per_type": 60, "types": 4, "regulators": 12, "genes": 60}


def within_types(draw: Draw) -> np.ndarray:
    """log1p of counts over cell sizes [C, N], without the means of types."""
    x = draw.one.multiplicities().astype(np.float64)
    labels = np.array(draw.one.labels)
    for label in set(labels):
        x[labels == label] -= x[labels == label].mean(0)
    return x / x.std(0)


@pytest.mark.parametrize("zeros", [0.6, 0.7, 0.8, 0.9])
def test_the_share_of_zeros_is_what_was_asked_for(zeros):
    draw = sergio_like(3, zeros, cells_per_type=200, types=4, regulators=20, genes=120)
    assert (draw.one.matrix == 0).mean() == pytest.approx(zeros, abs=0.01)


def test_correlations_within_a_type_have_the_signs_of_its_edges():
    draw = typed(1, 50, 300)
    x, labels = within_types(draw), np.array(draw.one.labels)
    column = {gene: number for number, gene in enumerate(draw.one.genes)}
    every = draw.one.reference[["source", "target"]]
    for label in set(labels):
        here = draw.by_type[draw.by_type["cell_type"] == label]
        sign = every.merge(here, "left")["sign"].fillna(0).to_numpy()
        cells = x[labels == label]
        correlation = (
            cells[:, every["source"].map(column)] * cells[:, every["target"].map(column)]
        ).mean(0)
        assert np.mean(np.sign(correlation[sign != 0]) == sign[sign != 0]) > 0.9
        assert np.abs(correlation[sign == 0]).mean() < 0.4 * np.abs(correlation[sign != 0]).mean()


def test_composition_differs_between_types_and_correlates_with_nothing_within_them():
    draw = composition(1, 4, 400)
    between = np.corrcoef(draw.one.multiplicities().T.astype(np.float64))[:20, 20:]
    within = (within_types(draw).T @ within_types(draw) / 1600)[:20, 20:]
    assert np.sqrt((between**2).mean()) > 0.1
    # Chance alone gives sqrt(1 / (1600 - 4)) = 0.025; dividing by cell sizes adds a little.
    assert np.sqrt((within**2).mean()) < 0.03
    assert draw.one.reference.empty


@pytest.fixture(scope="module")
def draw() -> Draw:
    return typed(1, 4, 80, types=3, regulators=8, targets=40)


def network(edges: pd.DataFrame, weight: pd.Series) -> pd.DataFrame:
    return edges[["source", "target"]].assign(weight=weight)


def test_the_truth_scores_one_and_its_opposite_only_in_ranking(draw):
    truth = {
        label: network(edges, edges["sign"]) for label, edges in draw.by_type.groupby("cell_type")
    }
    assert set(context.typed_scores(draw, context.Found(None, truth)).values()) == {1.0}
    opposite = {label: table.assign(weight=-table["weight"]) for label, table in truth.items()}
    found = context.typed_scores(draw, context.Found(None, opposite))
    assert found == {"auprc": 1.0, "signs": 0.0, "specificity": 1.0, "changed_signs": 0.0}


def test_one_network_for_all_types_is_not_specific(draw):
    everything = draw.by_type.drop_duplicates(["source", "target"])
    found = context.typed_scores(draw, context.Found(network(everything, everything["sign"])))
    assert found["specificity"] == 0.5 and 0.3 < found["changed_signs"] < 0.8 and found["auprc"] < 1


def features(draw: Draw, rho: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[x, rho x 1_1, ..., rho x 1_K] [C, R (K + 1)], standardised x [C, N] and the type of each
    cell.
    """
    x = draw.one.multiplicities().astype(np.float64)
    rows = peers.by_label(draw.one.labels)
    kind = np.empty(len(x), dtype=int)
    for number, members in enumerate(rows.values()):
        x[members] = (x[members] - x[members].mean(0)) / x[members].std(0)
        kind[members] = number
    inputs = x[:, :8]
    return (
        np.hstack([inputs, *(rho * inputs * (kind == number)[:, None] for number in range(3))]),
        x,
        kind,
    )


@pytest.mark.parametrize("rho", [0.0, 0.5, 2.0])
def test_shared_and_own_slopes_are_those_of_one_regression(draw, rho):
    inputs, x, kind = features(draw, rho)
    own = np.arange(8)
    moments = [
        (x[kind == k][:, :8].T @ x[kind == k][:, :8], x[kind == k][:, :8].T @ x[kind == k])
        for k in range(3)
    ]
    (found,) = peers._solve(moments, rho, np.array([30.0]), own)
    for gene in (3, 20):  # a regulator, which is not among its own inputs, and a target
        used = np.flatnonzero(np.arange(32) % 8 != gene) if gene < 8 else np.arange(32)
        part = inputs[:, used]
        slopes = np.zeros(32)
        slopes[used] = np.linalg.solve(part.T @ part + 30 * np.eye(len(used)), part.T @ x[:, gene])
        shared, deviation = slopes[:8], slopes[8:].reshape(3, 8)
        np.testing.assert_allclose(found[:, :, gene], shared + rho * deviation, atol=1e-9)
