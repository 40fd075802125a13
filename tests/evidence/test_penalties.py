"""Penalties that held-out cells choose, and what counting has to do with a regulator."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.linear_model import Ridge

from flashsign.tables.slope_penalty import penalty_of
from grn.evidence import penalties as module
from grn.evidence.penalties import (
    COUNTED,
    MOST,
    RIDGE,
    Shadow,
    best_penalties,
    by_others,
    choose_penalties_of_blocks,
    shares_of_counting,
)
from grn.model.penalty import Penalty

CELLS, GENES, REGULATORS = 200, 12, 3
OTHERS = np.arange(REGULATORS, GENES)


def values_of(strength: float, *, states: int = 1, own: float = 0.0):
    """Values [C, N] of genes, of which the first regulate the others, and states [C]; `own`: how
    much slopes of states differ.
    """
    generator = np.random.default_rng(0)
    state = np.arange(CELLS) % states
    x = generator.normal(size=(CELLS, REGULATORS))
    slopes = generator.normal(size=(GENES - REGULATORS, REGULATORS))
    slopes = slopes + own * generator.normal(size=(states, *slopes.shape))
    noise = generator.normal(size=(CELLS, GENES - REGULATORS))
    y = strength * np.einsum("cij,cj->ci", slopes[state], x) + noise
    return np.concatenate([x, y], 1) + 6 + state[:, None], state


@pytest.fixture
def table_of(make_table):
    def make(strength: float, *, own: float = 0.0, states: int = 1, **known):
        return make_table(*values_of(strength, states=states, own=own), range(REGULATORS), **known)

    return make


def fold() -> np.ndarray:
    return np.arange(CELLS) // 2 % 5


@pytest.mark.parametrize("states", [1, 2])
def test_errors_are_those_of_ridge_regression_written_out(make_table, states):
    """One regression a gene, by scikit-learn, with deviations by state as features of their own."""
    values, state = values_of(1.0, states=states)
    table = make_table(
        values, state, range(REGULATORS), basal=np.random.default_rng(1).random(CELLS)
    )
    part, rho = Shadow(table, fold(), 1, genes=OTHERS), 0.7
    (found,) = part.errors([Penalty(30.0, rho if states > 1 else 0.0)], GENES)
    seen, judged = fold() != 1, fold() == 1
    known = np.eye(states)[state]
    means = np.linalg.lstsq(known[seen], values[seen], rcond=None)[0]
    sd = (values - known @ np.linalg.lstsq(known, values, rcond=None)[0]).std(0)
    rest = (values - known @ means) / sd
    depth = part.x[:, -1:].numpy()
    features = [rest[:, :REGULATORS], 1e3 * depth]  # the depth is hardly penalised
    if states > 1:
        read = np.column_stack([rest[:, :REGULATORS], depth])
        features.append(rho * (known[:, :, None] * read[:, None]).reshape(CELLS, -1))
    features = np.concatenate(features, 1)
    ridge = Ridge(alpha=30.0, fit_intercept=False).fit(features[seen], rest[seen, REGULATORS:])
    expected = np.square(ridge.predict(features[judged]) - rest[judged, REGULATORS:]).mean(0)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("penalty", [Penalty(30.0, 0.5), Penalty(30.0, 0.5, 0.1)], ids=str)
def test_errors_of_cells_and_of_genes_have_one_mean(make_table, penalty):
    values, state = values_of(0.5, states=2, own=0.5)
    part = Shadow(make_table(values, state, range(REGULATORS)), fold(), 1)
    of_cells = part.errors_of_cells(penalty, GENES - REGULATORS)
    assert len(of_cells) == int((fold() == 1).sum())
    torch.testing.assert_close(of_cells.mean(), part.errors([penalty], GENES).mean())


@pytest.mark.parametrize("sparse", [True, False], ids=["one regulator a gene", "many small slopes"])
def test_the_logarithm_is_taken_where_it_predicts_better_by_more_than_chance(make_table, sparse):
    """Twelve regulators: each gene has a large slope of one of them, or small slopes of all."""
    generator, regulators, genes = np.random.default_rng(3), 12, 60
    x = generator.normal(size=(CELLS, regulators))
    slopes = generator.normal(size=(regulators, genes)) / regulators**0.5
    if sparse:
        slopes = np.eye(regulators)[generator.integers(0, regulators, genes)].T
    values = np.concatenate([x, x @ slopes + generator.normal(size=(CELLS, genes))], 1) + 6
    chosen = best_penalties(make_table(values, np.zeros(CELLS, int), range(12)), fold(), False)
    assert all(bool(each.t) == sparse for each in chosen[:-1])


@pytest.mark.parametrize("states", [1, 2])
def test_a_curved_penalty_ends_near_the_least_loss(make_table, states):
    """Rounds of ridge regression with weighted penalties, against the loss that the blocks are
    trained with.
    """
    values, state = values_of(0.3, states=states, own=0.3)
    basal = np.random.default_rng(1).random(CELLS)
    part = Shadow(make_table(values, state, range(REGULATORS), basal=basal), fold(), 0)
    t, lam, rho, seen = 0.2, 20.0, 0.7, part.learned
    slopes = torch.zeros(1, states, GENES - REGULATORS, REGULATORS + 1).double().requires_grad_()
    penalty = Penalty(lam, rho, t).as_tensor()[None].double()
    optimizer = torch.optim.LBFGS([slopes], max_iter=200, line_search_fn="strong_wolfe")

    def predicted():
        return torch.einsum("cs,sij,cj->ci", part.share.double(), slopes[0], part.x)

    def loss():
        optimizer.zero_grad()
        total = (predicted() - part.y)[seen].square().sum() + penalty_of(slopes, penalty).sum()
        total.backward()
        return total

    optimizer.step(loss)
    expected = float((predicted() - part.y)[part.judged].square().mean().detach())
    found = part.errors([Penalty(lam, rho if states > 1 else 0.0, t)], GENES).mean()
    assert float(found) == pytest.approx(expected, rel=0.02)


def test_noise_is_penalised_more_than_what_regulators_explain(table_of):
    noise, signal = (
        [each.lam for each in choose_penalties_of_blocks(table_of(strength), fold(), False)[:-1]]
        for strength in (0.0, 1.0)
    )
    assert min(noise) > 10 * max(signal)


def test_no_penalty_is_so_large_that_the_optimiser_decides_the_signs(table_of):
    """Of pure noise, the larger the better; it is cut off in proportion to the cells."""
    table = table_of(0.0)
    best, chosen = (
        max(each.lam for each in choose(table, fold(), False))
        for choose in (best_penalties, choose_penalties_of_blocks)
    )
    assert best > MOST * CELLS == chosen


def test_of_many_cells_both_blocks_may_have_the_largest_penalty(make_table):
    """Of pure noise. With a smaller one, a block's edges would be larger than the other's by that
    alone.
    """
    cells = 6000
    values = np.random.default_rng(2).normal(size=(cells, 50)) + 6
    table = make_table(values, np.zeros(cells, int), range(40))
    found = choose_penalties_of_blocks(table, np.arange(cells) % 5, False)
    assert MOST * cells > RIDGE[-1] and {each.lam for each in found} == {MOST * cells}


def test_states_are_as_free_as_their_slopes_differ(table_of):
    """A deviation costs lambda / rho^2; rho 0: states share their slopes. They do where levels
    count, which slopes of single states would take up.
    """

    def best(own: float, **known) -> list[Penalty]:
        table = table_of(1.0, own=own, states=2, **known)
        return choose_penalties_of_blocks(table, fold(), False)[:-1]

    same, other = (
        each.lam / each.rho**2 if each.rho else np.inf for each in (best(0.0)[0], best(1.5)[0])
    )
    assert same > 10 * other
    assert all(each.rho > 0 for each in best(1.5))
    assert all(each.rho == 0 for each in best(1.5, levels=0.2))


@pytest.mark.parametrize("levels", [0.0, 0.4])
@pytest.mark.parametrize("helps", [True, False])
def test_where_comparing_forms_takes_too_long_one_is_compared_with_ridge(
    table_of, monkeypatch, levels, helps
):
    """Where levels count, with slopes that states share."""
    monkeypatch.setattr(module, "OPERATIONS", 1e4)
    monkeypatch.setattr(module, "CHANCE", -np.inf if helps else np.inf)
    first, among = best_penalties(table_of(1.0, states=2, levels=levels), fold(), True)
    rho, t, strength = module.USUAL
    assert (first.rho, first.t) == (0.0 if levels else rho, t if helps else 0.0)
    assert first.lam / (strength if helps else 1.0) in RIDGE or levels
    assert among.lam in RIDGE


@pytest.mark.parametrize("levels", [0.0, 0.3, 1.0])
def test_a_member_sees_cells_without_levels_of_states_of_the_cells_it_learns_from(table_of, levels):
    """As far as differences between states do not count."""
    table, genes = table_of(1.0, states=2, levels=levels), np.array([7, 4])
    part, seen, state = Shadow(table, fold(), 3, genes=genes), fold() != 3, np.arange(CELLS) % 2
    for found, of in ((part.x, table.inputs.numpy()), (part.y, table.targets(genes).numpy())):
        means = np.stack([of[seen & (state == each)].mean(0) for each in (0, 1)])
        left = (1 - levels) * means + levels * means.mean(0)  # as many are of each state
        np.testing.assert_allclose(found, of - left[state], atol=1e-4)
    assert part.learned.tolist() == np.flatnonzero(seen).tolist()
    assert part.judged.tolist() == np.flatnonzero(~seen).tolist()


def test_a_prior_weighs_penalties_by_pair(table_of):
    """A pair that is penalised a million times as much has no slope, and without weights all count
    alike.
    """
    part, penalty = Shadow(table_of(1.0), fold(), 0), [Penalty(10.0, 0.0)]
    weight = torch.ones(GENES - REGULATORS, REGULATORS)
    plain = part.errors(penalty, GENES)
    torch.testing.assert_close(part.errors(penalty, GENES, weight), plain)
    weight[0] = 1e6
    found = part.errors(penalty, GENES, weight)
    torch.testing.assert_close(found[:, 1:], plain[:, 1:])
    unexplained = float(part.y[part.judged, 0].square().mean())
    assert float(found[0, 0]) == pytest.approx(unexplained, rel=0.02)


def test_where_every_gene_regulates_none_is_predicted_from_itself(make_table):
    values = np.random.default_rng(0).normal(size=(CELLS, GENES)) + 6
    part = Shadow(make_table(values, np.zeros(CELLS, int), range(GENES)), fold(), 0)
    assert sorted(part.own.tolist()) == list(range(GENES))
    assert float(part.errors([Penalty(10.0, 0.0)], GENES).min()) > 0.7


def test_what_regulators_say_of_each_other_is_least_squares_on_the_others(make_table):
    """Block 1's start, and what block 2's shadow reads."""
    values = np.random.default_rng(0).normal(size=(CELLS, 5)) + 6
    values[:, 0] += values[:, 1] - values[:, 2]
    part = Shadow(make_table(values, np.arange(CELLS) % 2, range(4)), fold(), 1)
    shared = part.among(Penalty(10.0, 0.0)).shared
    assert shared.shape == (5, 4) and (shared.diagonal() == 0).all()
    x = part.x[part.learned, :-1]
    torch.testing.assert_close(x @ shared[:-1], by_others(x, x), rtol=1e-6, atol=1e-8)


def test_counting_s_share_is_that_of_what_the_others_leave(make_table):
    """Regulators with a common cause, of which the first is counted with noise: what the others say
    of it replaces a part of it, and the more of it the noisier it is.
    """
    generator, state = np.random.default_rng(0), np.zeros(CELLS, int)
    cause = generator.normal(size=(CELLS, 1))
    x = cause + 0.3 * generator.normal(size=(CELLS, REGULATORS)) + 8
    x[:, 0] += generator.normal(size=CELLS)
    noise = np.array([1.0, 0.0, 0.02])
    of_cells = sp.csr_matrix(np.tile(noise, (CELLS, 1)).astype(np.float32))
    share, unit = shares_of_counting(make_table(x, state, range(REGULATORS), noise=of_cells))
    z = (x - x.mean(0)) / x.std(0)
    hat = np.empty_like(z)
    for gene in range(REGULATORS):
        others = np.delete(z, gene, 1)
        fit = Ridge(alpha=10.0, fit_intercept=False).fit(others, z[:, gene])
        hat[:, gene] = fit.predict(others)
    expected = np.clip(noise / x.var(0) / (z - hat).var(0, ddof=1), 0, COUNTED)
    np.testing.assert_allclose(share, expected, rtol=1e-3, atol=1e-6)
    assert share[0] > 0.7 and share[1] == 0 and 0 < share[2] < 0.5
    np.testing.assert_allclose(unit[:-1], (z + expected * (hat - z)).std(0, ddof=1), rtol=1e-3)
    assert unit[-1] == 1
    none, ones = shares_of_counting(make_table(x, state, range(REGULATORS)))
    assert (none == 0).all() and (ones == 1).all(), "without counts, nothing is counted"
