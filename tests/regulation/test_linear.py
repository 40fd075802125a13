"""The linear fit: planted slopes are found, shared and of single states, and the penalties fit the noise."""

import numpy as np
import pytest
import torch

from grn.regulation import linear, ridge
from grn.regulation.linear import Penalties, choose_penalties, slopes_of_states, without

CELLS, REGULATORS, GENES = 400, 5, 25
OWN = torch.arange(REGULATORS)  # the first genes regulate the others
GRID = [10.0, 30.0, 100.0, 300.0]


def states_of(sizes: list[int]) -> torch.Tensor:
    """One-hot states [C, K], in blocks."""
    return torch.eye(len(sizes), dtype=torch.float64).repeat_interleave(torch.tensor(sizes), 0)


def planted(
    sizes: list[int], deviation: float, *, noise: float = 1.0, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [C, R], y [C, N], states [C, K] and the true slopes [K, N, R]; every state has levels of its own.

    deviation: sd of the slopes of a state around the shared ones.
    """
    generator = np.random.default_rng(seed)
    states = states_of(sizes)
    count = len(states)
    slopes = generator.normal(size=(GENES, REGULATORS)) * (generator.random((GENES, REGULATORS)) < 0.5)
    slopes = slopes + deviation * generator.normal(size=(len(sizes), GENES, REGULATORS))
    slopes[:, :REGULATORS] = 0
    x = generator.normal(size=(count, REGULATORS)) + states.numpy() @ generator.normal(size=(len(sizes), REGULATORS))
    y = np.einsum("ck,kir,cr->ci", states.numpy(), slopes, x) + noise * generator.normal(size=(count, GENES))
    y += states.numpy() @ generator.normal(size=(len(sizes), GENES)) * 3
    y[:, :REGULATORS] = x
    return torch.as_tensor(x), torch.as_tensor(y), states, torch.as_tensor(slopes)


def taken_out(values: torch.Tensor, covariates: torch.Tensor) -> torch.Tensor:
    return without(covariates)(values)


def folds_of(cells: int) -> torch.Tensor:
    return torch.randperm(cells, generator=torch.Generator().manual_seed(0)) % 5


def chosen(x, y, states, grid=GRID) -> Penalties:
    return choose_penalties(x, y, states, OWN, folds_of(len(x)), grid)


@pytest.mark.parametrize("seed", [0, 1])
def test_shared_slopes_are_found_and_states_are_not_told_apart_by_much(seed):
    x, y, states, truth = planted([130, 130, 140], 0.0, seed=seed)
    found = chosen(x, y, states)
    slopes = slopes_of_states(x, y, states, None, OWN, found)
    targets = slice(REGULATORS, None)
    assert found.ratio == 0
    assert (slopes - truth)[:, targets].abs().mean() < 0.08
    assert (slopes - slopes.mean(0)).std() < 0.1 * slopes.std()


@pytest.mark.parametrize("seed", [0, 1])
def test_slopes_that_differ_between_states_are_found(monkeypatch, seed):
    x, y, states, truth = planted([130, 130, 140], 0.7, seed=seed)
    found = chosen(x, y, states)
    assert found.ratio >= 0.7
    slopes = slopes_of_states(x, y, states, None, OWN, found)
    differences, expected = slopes - slopes.mean(0), truth - truth.mean(0)
    targets = slice(REGULATORS, None)
    correlation = np.corrcoef(differences[:, targets].ravel(), expected[:, targets].ravel())[0, 1]
    assert correlation > 0.95
    monkeypatch.setattr(linear, "RATIOS", (0.0,))
    shared = chosen(x, y, states)
    assert shared.ratio == 0 and found.error < 0.8 * shared.error


@pytest.mark.parametrize("grid", [[1000.0, 3000.0], [0.01, 0.03]])
def test_the_grid_is_widened_where_its_end_is_best(monkeypatch, grid):
    """Clean data want a weak penalty, noise a strong one, wherever the grid begins."""
    monkeypatch.setattr(linear, "RATIOS", (0.0,))
    x, y, states, _ = planted([150, 150], 0.3, noise=0.3)
    rest = chosen(x, torch.cat([x, torch.randn(300, GENES - REGULATORS).double()], 1), states, grid)
    clean = chosen(x, y, states, grid)
    wide = chosen(x, y, states, np.logspace(-3, 5, 17).tolist())
    assert clean.error == pytest.approx(wide.error, rel=0.01)
    assert clean.penalty.max() < 999 if grid[0] == 1000 else clean.penalty.max() > 0.03
    assert rest.penalty[REGULATORS:].median() > 5 * clean.penalty[REGULATORS:].median()
    assert rest.penalty[REGULATORS:].median() > 30


def test_a_state_with_few_cells_is_drawn_to_the_shared_slopes():
    """The same deviation counts less, the fewer the cells that show it."""
    pulled = []
    for few in (8, 40, 200):
        x, y, states, truth = planted([200, 200, few], 0.0, noise=0.3)
        last = states[:, 2] > 0
        y[last, REGULATORS:] -= 2 * x[last] @ truth[2, REGULATORS:].mT  # the opposite signs
        penalty = torch.full((GENES,), 10.0).double()  # of deviations: 40
        slopes = slopes_of_states(x, y, states, None, OWN, Penalties(penalty, 0.5, 1.0))
        targets = slice(REGULATORS, None)
        others = slopes[:2].mean(0)
        difference, expected = (slopes[2] - others)[targets].ravel(), (-2 * truth[2, targets]).ravel()
        pulled.append(float(difference @ expected / expected.square().sum()))
    assert 0 < pulled[0] < pulled[1] < pulled[2] < 1.05
    assert pulled[0] < 0.3 and pulled[2] > 0.7


def test_the_depth_takes_what_follows_it_and_is_not_penalised():
    """Regulators and targets follow it, and no regulator does anything."""
    generator = torch.Generator().manual_seed(3)
    states = states_of([200, 200])
    depth = taken_out(torch.randn(400, 1, generator=generator).double(), states)[:, 0]
    x = taken_out(torch.randn(400, REGULATORS, generator=generator).double(), states) + 3 * depth[:, None]
    y = (
        2 * depth[:, None]
        + 0.1 * torch.randn(400, GENES, generator=generator).double()
        + states @ torch.ones(2, 1).double()
    )
    found = Penalties(torch.full((GENES,), 1e-3), 0.0, 1.0)
    with_depth, alone = (slopes_of_states(x, y, states, each, OWN, found) for each in (depth, None))
    assert with_depth.abs().max() < 0.05 and alone.abs().mean() > 0.1


def test_what_the_slopes_leave_over_is_noise():
    x, y, states, _ = planted([70, 80, 50], 0.5)
    slopes = slopes_of_states(x, y, states, None, OWN, Penalties(torch.ones(GENES), 0.7, 1.0))
    rest = taken_out(y - torch.einsum("ck,kir,cr->ci", states, slopes, x), states)
    assert rest[:, REGULATORS:].square().mean() < 1.2 < 2 < taken_out(y, states)[:, REGULATORS:].square().mean()


@pytest.mark.parametrize("cells", [[5, 6], [70, 80, 50]])  # fewer than features, and more
@pytest.mark.parametrize("ratio", [0.0, 0.7])
def test_the_fit_is_the_same_in_blocks_of_targets(monkeypatch, cells, ratio):
    x, y, states, _ = planted(cells, 0.5)
    depth = torch.randn(len(x), generator=torch.Generator().manual_seed(0)).double()
    found = Penalties(torch.logspace(-1, 1, GENES).double(), ratio, 1.0)
    whole = slopes_of_states(x, y, states, depth, OWN, found)
    penalties = chosen(x, y, states)
    monkeypatch.setattr(ridge, "COLUMNS", 3)
    monkeypatch.setattr(ridge, "CELLS", 40)
    in_blocks = slopes_of_states(x, ridge.Columns.of(y), states, depth, OWN, found)
    torch.testing.assert_close(in_blocks, whole)
    again = chosen(x, ridge.Columns.of(y), states)
    assert torch.equal(again.penalty, penalties.penalty) and again.ratio == penalties.ratio
    assert again.error == pytest.approx(penalties.error, rel=1e-9)
