"""The draws are what they claim: shares of zeros, seeds, truths, and no regulation where there is none."""

from __future__ import annotations

import os

import numpy as np
import pytest
from draws import Draw, composition, sergio_like, sergio_noise, shuffled, technical_noise, typed

needs_data = pytest.mark.skipif("GRN_BENCHMARK_DATA" not in os.environ, reason="GRN_BENCHMARK_DATA is not set")
SMALL = {"cells_per_type": 60, "types": 4, "regulators": 12, "genes": 60}


def small(kind: str, seed: int) -> Draw:
    if kind == "sergio_like":
        return sergio_like(seed, 0.7, **SMALL)
    if kind == "shuffled":
        return shuffled(typed(1, 4, 30).one, seed)
    return {"typed": typed, "composition": composition}[kind](seed, 4, 30)


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


def test_few_zeros_come_from_larger_libraries():
    levels = np.random.default_rng(1).lognormal(1, 1, (300, 200))
    counts = technical_noise(levels, 0.02, np.random.default_rng(2))
    assert (counts == 0).mean() == pytest.approx(0.02, abs=0.005)
    # Nothing drops out: the counts of a large level are never 0.
    assert (counts[levels > 20] > 0).all() and (levels > 20).sum() > 500


@needs_data
@pytest.mark.parametrize("name", ["sergio_ds1", "sergio_ds2"])
def test_fresh_noise_on_shared_levels(name):
    first, second = (sergio_noise(name, seed, 0.8).one for seed in (1, 2))
    assert (first.matrix == 0).mean() == pytest.approx(0.8, abs=0.01)
    assert (first.matrix != second.matrix).any() and first.reference.equals(second.reference)


@pytest.mark.parametrize("kind", ["sergio_like", "shuffled", "typed", "composition"])
def test_a_seed_gives_the_same_draw_and_another_seed_another(kind):
    first, again, other = small(kind, 1).one, small(kind, 1).one, small(kind, 2).one
    np.testing.assert_array_equal(first.matrix, again.matrix)
    assert first.hash == again.hash != other.hash and first.name != other.name
    if kind in ("sergio_like", "typed"):
        assert first.reference.equals(again.reference) and not first.reference.equals(other.reference)


@pytest.mark.parametrize("kind", ["sergio_like", "typed"])
def test_edges_lead_from_regulators_to_other_measured_genes(kind):
    draw = small(kind, 1)
    one, edges = draw.one, draw.one.reference
    assert set(edges["source"]) <= set(one.regulators) <= set(one.genes) and set(edges["target"]) <= set(one.genes)
    assert (edges["source"] != edges["target"]).all() and not edges.duplicated(["source", "target"]).any()
    assert one.matrix.shape == (len(one.labels), len(one.genes)) and (one.matrix == np.round(one.matrix)).all()


def test_a_simulated_network_has_no_cycle_and_a_third_of_repression():
    edges = sergio_like(5, 0.6, cells_per_type=2, types=2, regulators=40, genes=400).one.reference
    place = {gene: number for number, gene in enumerate([f"R{n + 1}" for n in range(40)])}
    among = edges[edges["target"].isin(place)]
    assert len(among) and (among["source"].map(place) < among["target"].map(place)).all()
    assert (edges["sign"] == -1).mean() == pytest.approx(1 / 3, abs=0.06)


def test_a_simulated_edge_is_seen_with_its_sign():
    draw = sergio_like(4, 0.3, cells_per_type=100, types=6, regulators=20, genes=150)
    x = within_types(draw)
    column = {gene: number for number, gene in enumerate(draw.one.genes)}
    source, target = (draw.one.reference[name].map(column) for name in ("source", "target"))
    correlation = (x[:, source] * x[:, target]).mean(0)
    sign = draw.one.reference["sign"].to_numpy()
    assert correlation[sign > 0].mean() > 0.05 and correlation[sign < 0].mean() < -0.05


def test_half_of_the_edges_are_in_all_types_and_a_quarter_changes_sign():
    truth = typed(1, 4, 5).by_type
    signs = truth.groupby(["source", "target"])["sign"].agg(["size", "sum"])
    everywhere = signs["size"] == 4
    changing = everywhere & (signs["sum"].abs() < 4)
    assert set(signs.loc[~everywhere, "size"]) == {1, 2}
    assert (~everywhere).mean() == pytest.approx(0.25, abs=0.01) and changing.mean() == pytest.approx(0.25, abs=0.01)


def test_the_reference_of_typed_cells_is_the_union_of_the_types():
    draw = typed(2, 4, 5)
    assert set(draw.by_type["cell_type"]) == set(draw.one.labels)
    signs = draw.by_type.groupby(["source", "target"])["sign"].agg(["min", "max"])
    expected = signs["min"].where(signs["min"] == signs["max"], 0)
    found = draw.one.reference.set_index(["source", "target"])["sign"]
    assert found.sort_index().equals(expected.sort_index().rename("sign"))


def test_correlations_within_a_type_have_the_signs_of_its_edges_and_are_gone_elsewhere():
    draw = typed(1, 50, 300)
    x, labels = within_types(draw), np.array(draw.one.labels)
    column = {gene: number for number, gene in enumerate(draw.one.genes)}
    every = draw.one.reference[["source", "target"]]
    for label in set(labels):
        here = draw.by_type[draw.by_type["cell_type"] == label]
        sign = every.merge(here, "left")["sign"].fillna(0).to_numpy()
        cells = x[labels == label]
        correlation = (cells[:, every["source"].map(column)] * cells[:, every["target"].map(column)]).mean(0)
        assert np.mean(np.sign(correlation[sign != 0]) == sign[sign != 0]) > 0.9
        assert np.abs(correlation[sign == 0]).mean() < 0.4 * np.abs(correlation[sign != 0]).mean()


def test_shuffling_keeps_the_values_of_every_gene():
    one = typed(1, 4, 30).one
    other = shuffled(one, 1).one
    np.testing.assert_array_equal(np.sort(one.matrix, axis=0), np.sort(other.matrix, axis=0))
    assert (one.matrix != other.matrix).any() and other.reference is one.reference


def test_composition_differs_between_types_and_correlates_with_nothing_within_them():
    draw = composition(1, 4, 400)
    between = np.corrcoef(draw.one.multiplicities().T.astype(np.float64))[:20, 20:]
    within = (within_types(draw).T @ within_types(draw) / 1600)[:20, 20:]
    assert np.sqrt((between**2).mean()) > 0.1
    # Chance alone gives sqrt(1 / (1600 - 4)) = 0.025; dividing by cell sizes adds a little.
    assert np.sqrt((within**2).mean()) < 0.03
    assert draw.one.reference.empty
