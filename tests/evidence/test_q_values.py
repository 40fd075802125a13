"""q-values and confidences: their order, their range, and what they find with and without true
edges.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from grn.edges.weights import Network
from grn.evidence import q_values as module
from grn.evidence.q_values import (
    PLAUSIBLE,
    Evidence,
    benjamini_hochberg,
    cells_with_both,
    edge_evidence,
    evidence_of,
    found_edges,
    least_effect,
    local_rates,
    most_certain,
    null_share,
    of_other_sign,
    p_values,
    q_values,
    rounds_of,
    summary,
    vetoed,
    with_evidence,
)

TARGETS, REGULATORS, EDGES = 100, 20, 150


def q_of(weight, null):
    return q_values(p_values(weight, null))


def rates_of(weight, null):
    return local_rates(weight, null, null_share(p_values(weight, null)))


@pytest.fixture
def weights():
    """Weights of pairs, of which the first EDGES are strong, and weights of knock-offs."""
    generator = np.random.default_rng(2)
    weight, null = generator.standard_normal((2, TARGETS * REGULATORS))
    weight[:EDGES] = np.sign(weight[:EDGES]) * (6 + np.abs(weight[:EDGES]))
    return torch.as_tensor(weight), torch.as_tensor(null)


def test_strong_edges_are_found_and_hardly_anything_else(weights):
    found = q_of(*weights) < 0.05
    assert found[:EDGES].all()
    assert found[EDGES:].sum() < 0.1 * EDGES


@pytest.mark.parametrize("seed", range(5))
def test_without_true_edges_hardly_anything_is_found(seed):
    weight, null = torch.as_tensor(
        np.random.default_rng(seed).standard_normal((2, TARGETS * REGULATORS))
    )
    assert (q_of(weight, null) < 0.1).double().mean() < 0.005


def test_the_rate_is_that_of_scipy(weights):
    from scipy.stats import false_discovery_control

    p = p_values(*weights)
    np.testing.assert_allclose(benjamini_hochberg(p), false_discovery_control(p), rtol=1e-12)
    assert null_share(p) == pytest.approx(1 - EDGES / len(p), abs=0.06)
    assert null_share(torch.ones(10)) == 1


WEIGHTS = arrays(np.float64, st.integers(1, 40), elements=st.floats(-100, 100, width=16)).map(
    torch.as_tensor
)


@pytest.mark.parametrize("rates", [q_of, rates_of])
@given(WEIGHTS, WEIGHTS, st.sampled_from([-8.0, 0.25, 4.0]))
def test_rates_fall_as_weights_grow_whatever_their_signs_and_unit(rates, weight, null, unit):
    """They lie between 0 and 1, and no weight is certain."""
    rate = rates(weight, null)
    assert rate.shape == weight.shape and (rate > 0).all() and (rate <= 1).all()
    assert (rate[weight.abs().argsort(stable=True)].diff() <= 1e-9).all()
    np.testing.assert_allclose(rates(unit * weight, -unit * null.flip(0)), rate, rtol=1e-9)


@given(WEIGHTS, st.randoms(use_true_random=False))
def test_weights_that_are_distributed_as_knock_offs_are_all_false(weight, random):
    null = [random.choice((-1, 1)) * value for value in weight.tolist()]
    random.shuffle(null)
    found = rates_of(weight, torch.tensor(null, dtype=weight.dtype))
    np.testing.assert_allclose(found, 1, rtol=1e-6)


def test_local_rates_are_the_share_of_false_edges_around_a_weight():
    """A quarter of the weights have six times the spread of the others and of the knock-offs."""
    generator = np.random.default_rng(4)
    true = np.arange(40_000) < 10_000
    weight = generator.standard_normal(len(true)) * np.where(true, 6, 1)
    rate = rates_of(*map(torch.as_tensor, (weight, generator.standard_normal(len(true))))).numpy()
    for low, high in ((0, 1), (1, 2), (2, 3), (3, 100)):
        own = (np.abs(weight) >= low) & (np.abs(weight) < high)
        assert rate[own].mean() == pytest.approx((~true)[own].mean(), abs=0.1), (low, high)
    assert rate[np.abs(weight) < 1].mean() > 0.8 and rate[np.abs(weight) > 5].max() < 0.05


GENES = 40
EDGE = {20 + gene: gene % 6 for gene in range(18)}
"""Target -> its regulator, among the first six genes."""


def some_table(make_table, sizes=(300, 40, 12), planted=(0, 1), seed=5, **known):
    """Cells of three types; in those `planted`, regulators raise their targets. The last ten genes
    are hardly seen.
    """
    generator = np.random.default_rng(seed)
    types = np.repeat(np.arange(len(sizes)), sizes)
    values = generator.standard_normal((len(types), GENES))
    for target, regulator in EDGE.items():
        values[:, target] += (
            np.isin(types, planted) * (2.0 if target % 2 else -2.0) * values[:, regulator]
        )
    values = (values + 4).clip(0) * (np.arange(GENES) < 38)
    values[:8, 38:] = 5
    return make_table(values, types, np.arange(6), **known)


def is_edge() -> np.ndarray:
    edges = np.zeros((GENES, 6), bool)
    edges[list(EDGE), list(EDGE.values())] = True
    return edges


def test_each_type_is_judged_by_its_own_cells(make_table):
    """Edges in 300 and 40 cells; 12 cells have no evidence of their own, however strong that of
    others is.
    """
    together, of_types = edge_evidence(some_table(make_table), seed=0, least_cells=10)
    large, small, tiny = of_types
    edges = is_edge()
    for found in (together, large, small):
        assert (found.q[edges] <= 0.05).mean() > 0.9 and (found.q[~edges] <= 0.05).mean() < 0.02
        assert found.confidence[edges].min() > 0.9 and found.confidence.min() >= 0.5
    assert np.isnan(tiny.q).all() and np.isnan(tiny.confidence).all()
    assert tiny.least_effect > PLAUSIBLE > small.least_effect > large.least_effect
    assert large.least_effect > together.least_effect
    assert [each.cells for each in (together, *of_types)] == [352, 300, 40, 12]
    none = edge_evidence(some_table(make_table, planted=(0,)), seed=0, least_cells=10)[1][1]
    assert (none.q > 0.05).all(), "40 cells without edges beside 300 with them"


def test_what_is_certain_before_training_has_the_planted_signs(make_table):
    table = some_table(make_table)
    found = evidence_of(table, seed=0, least_cells=10)
    signs = [1 if target % 2 else -1 for target in EDGE]
    assert np.sign(found.slope[list(EDGE), list(EDGE.values())]).tolist() == signs
    again, states = edge_evidence(table, seed=0, least_cells=10, together=found)
    assert again is found and len(states) == 3
    names = [f"gene{number}" for number in range(GENES)]
    said = most_certain(found, names, table.regulators, count=3)
    gene, regulator = np.unravel_index(np.abs(found.slope).argmax(), found.slope.shape)
    assert f" {(found.q <= 0.05).sum()} associations" in said
    assert f" gene{regulator} " in said and f" gene{gene}," in said
    nothing = replace(found, q=np.ones_like(found.q))
    assert "no association" in most_certain(nothing, names, table.regulators)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_in_which_every_gene_was_permuted_has_no_edge_beside_real_ones(make_table, seed):
    """benchmarks/nulls.py has more draws, sizes and kinds of nulls. Copies of the permuted cells
    change nothing.
    """
    table = some_table(make_table, sizes=(200, 100, 30, 5), planted=(0, 1, 2, 3), seed=seed)
    values, types = table.multiplicity.toarray(), table.states.argmax(1)
    for one in (1, 2, 3):
        values[types == one] = np.random.default_rng(seed).permuted(values[types == one], axis=0)
    once = np.arange(len(types))
    for rows in (once, np.concatenate([once, *[np.flatnonzero(types > 0)] * 2])):
        given = make_table(values[rows], types[rows], np.arange(6))
        real, *permuted = edge_evidence(given, seed=seed, least_cells=10)[1]
        assert (real.q <= 0.05).sum() >= len(EDGE)
        assert not any((found.q <= 0.05).any() for found in permuted)
        assert [found.cells for found in (real, *permuted)] == [200, 100, 30, 5]


def test_pairs_that_are_hardly_seen_together_are_not_tested(make_table):
    table = some_table(make_table)
    expected, seen = cells_with_both(table)
    there, types = table.multiplicity.toarray() > 0, table.states.argmax(1)
    of_types = [there[types == one] for one in range(3)]
    by_hand = sum(each.mean(0) * each[:, [3]].sum(0) for each in of_types)
    np.testing.assert_allclose(expected[:, 3], by_hand, rtol=1e-5)
    assert seen[25, 3] == (there[:, 25] & there[:, 3]).sum()
    found = evidence_of(table, seed=0, least_cells=10)
    assert (found.q[38:] == 1).all() and (found.confidence[38:] == 0.5).all()
    without = replace(table, multiplicity=table.multiplicity[:, :38])
    np.testing.assert_array_equal(evidence_of(without, seed=0, least_cells=10).q, found.q[:38])


def test_genes_that_exclude_each_other_are_no_certain_edge(make_table):
    """They are seen together in fewer cells than by chance, and in too few to tell."""
    values = np.random.default_rng(0).poisson(3.0, (200, 8)) + 1.0
    values[:100, 0], values[100:, 1:] = 0, 0
    found = evidence_of(make_table(values, np.zeros(200, int), [0]), seed=0, least_cells=10)
    assert (found.q == 1).all() and found.confidence.max() < 0.501


def test_levels_of_donors_are_no_evidence(make_table):
    """Genes of a donor are higher or lower together: without its levels, they seem to depend on
    each other.
    """
    generator = np.random.default_rng(0)
    donors = np.repeat(np.arange(6), 50)
    values = generator.normal(5, 1, (300, 30)) + generator.normal(0, 1, (6, 30))[donors]
    certain = []
    for groups in (donors, None):
        table = make_table(values.clip(0), 0 * donors, np.arange(10), groups=groups)
        certain.append((evidence_of(table, seed=0, least_cells=10).q <= 0.05).sum())
    assert certain[0] == 0 and certain[1] >= 5


def test_the_least_effect_is_the_one_that_is_found_in_half_of_all_samples():
    """A correlation of this size among independent pairs, by the p-value of scipy and Benjamini and
    Hochberg.
    """
    from scipy.stats import pearsonr

    generator, cells, pairs = np.random.default_rng(1), 60, 1000
    # one level; Fisher's z has one degree more without the depth
    r = least_effect(cells - 1 + 1, pairs)
    found = 0
    for _ in range(400):
        x, noise = generator.standard_normal((2, cells))
        found += pearsonr(x, r * x + (1 - r**2) ** 0.5 * noise).pvalue <= 0.05 / pairs
    assert 0.4 < found / 400 < 0.6
    assert round(least_effect(28, 6000), 2) == 0.71, "as its docstring says"
    assert np.isnan(least_effect(3, 10)) and np.isnan(least_effect(100, 0))
    assert least_effect(100, 10) < least_effect(50, 10) < least_effect(50, 1000)


@pytest.mark.parametrize("seen", [1.0, 0.05])
def test_chance_alone_reaches_what_the_evidence_says_cells_cannot_show(make_table, seen):
    """Independent genes that each cell has, and genes that one of twenty cells has: the latter
    correlate by chance far beyond what normal numbers would, and no such pair is certain."""
    generator = np.random.default_rng(2)
    values = generator.gamma(1.0, 1.0, (400, GENES)) * (generator.random((400, GENES)) < seen)
    table = make_table(values, np.zeros(400, int), range(6))
    found = evidence_of(table, seed=0, least_cells=1)
    every = np.abs(np.corrcoef(values, rowvar=False)[:, :6])
    every[range(6), range(6)] = 0
    by_formula = least_effect(400 - 1, 6 * (GENES - 1))
    assert (found.least_effect > 1.3 * by_formula) == (seen < 1)
    assert every.max() < found.least_effect and (found.q > 0.05).all()


def test_an_edge_is_certain_with_the_sign_of_the_association_alone():
    q = np.array([[0.01, 0.01], [0.04, np.nan], [0.5, 0.6]])
    confidence = np.array([[0.99, 0.98], [0.9, np.nan], [0.7, 0.6]])
    slope = np.array([[1.0, -1.0], [1.0, 0.0], [1, 1]])
    weight = np.array([[-0.1, -0.1], [0.1, 0.1], [-1, 1]])
    one, evidence = Network(weight, *[np.ones((3, 2))] * 5), Evidence(q, confidence, 90, 0.2, slope)
    network = with_evidence(one, evidence, [])
    np.testing.assert_array_equal(network.q, [[1, 0.01], [0.04, np.nan], [1, 0.6]])
    np.testing.assert_array_equal(network.confidence, [[0.5, 0.98], [0.9, np.nan], [0.5, 0.6]])
    assert of_other_sign(one, evidence) == 1
    (line,) = vetoed(one, evidence)
    assert "1 of the certain associations" in line
    assert vetoed(replace(one, weight=slope), evidence) == [], (
        "every sign is that of the association"
    )


@pytest.mark.parametrize(("right", "known"), [(0.5, False), (0.8, True)])
def test_a_model_that_knows_no_signs_has_no_certain_edge(right, known):
    """Where half of the certain associations have another sign in it,
    the others' agree by chance.
    """
    generator = np.random.default_rng(0)
    slope = generator.normal(size=(40, 5))
    q = np.where(generator.random((40, 5)) < 0.5, 0.01, 0.9)
    evidence = Evidence(q, 1 - q / 2, 90, 0.2, slope)
    weight = slope * np.where(generator.random((40, 5)) < right, 1, -1)
    one = Network(weight, *[np.ones((40, 5))] * 5)
    found, (line,) = with_evidence(one, evidence, []), vetoed(one, evidence)
    assert (found.q <= 0.05).any() == known
    assert ("knows nothing of their signs" in line) == (not known)
    assert known or ((found.q == 1).all() and (found.confidence == 0.5).all())


def test_q_values_are_medians_over_rounds_of_draws(make_table, monkeypatch):
    """Each of its own draws; how many there are is a matter of time, and an odd number."""
    table = some_table(make_table, sizes=(60, 40, 12))
    part, one_round = [], module.one_round
    monkeypatch.setattr(module, "DRAWS", 4)
    monkeypatch.setattr(module, "ROUNDS", 5)
    monkeypatch.setattr(module, "one_round", lambda *of: part.append(one_round(*of)) or part[-1])
    assert rounds_of(table, 100) == 5
    found = evidence_of(table, seed=0, least_cells=10)
    assert len(part) == 5 and not torch.equal(part[0][1], part[1][1])
    weight, q, _ = (torch.stack(each) for each in zip(*part, strict=True))
    assert np.isin(found.q[found.q < 1], q.median(0)[0]).all()
    assert np.isin(found.slope[found.slope != 0], weight.mean(0)).all()


def test_what_was_found_says_first_what_is_certain_and_then_what_is_needed():
    """c has too few cells to say anything, and no cell with both genes of the second edge."""
    none, unknown = np.ones((3, 2)), np.full((3, 2), np.nan)
    certain = none.copy()
    certain[1:, 0] = 0.01
    numbers = np.full((3, 2), 5)
    numbers[2, 0] = 0
    known = [(certain, 90, 0.2), (certain, 60, 0.3), (none, 28, 0.62), (unknown, 2, np.nan)]
    whole, *states = [Evidence(q, q, cells, effect, q) for q, cells, effect in known]
    one = Network(*[numbers] * 6)
    network = with_evidence(replace(one, of_states=dict.fromkeys("abc", one)), whole, states)
    networks = network, *network.of_states.values()
    for found, evidence in zip(networks, (whole, *states), strict=True):
        np.testing.assert_array_equal(found.q, evidence.q)
        assert found.weight is numbers
    found = found_edges(network, whole, states)
    rows = [["all cells", 90, 2, 0], ["a", 60, 2, 0], ["b", 28, 0, 1], ["c", 2, 0, 1]]
    assert found[["label", "cells", "edges", "borrowed"]].to_numpy().tolist() == rows
    assert found["least_effect"].tolist()[:3] == [0.2, 0.3, 0.62]
    lines = summary(found)
    assert lines[0].startswith("2 edges are certain over all cells") and "alone: a 2." in lines[1]
    needed = "None in b: with 28 cells only correlations above 0.62"
    assert any(line.startswith(needed) for line in lines)
