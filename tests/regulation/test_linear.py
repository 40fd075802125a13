"""The linear fit: planted slopes are found, and the penalties fit the noise."""

import numpy as np
import pytest
import torch

from grn.regulation import ridge
from grn.regulation.linear import choose_penalties, slopes_on, without

REGULATORS, GENES = 5, 25
OWN = torch.arange(REGULATORS)  # the first genes regulate the others


def planted(cells: int, noise: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [C, R] and y [C, N], with mean 0, and the true slopes [N, R]."""
    generator = np.random.default_rng(seed)
    slopes = generator.normal(size=(GENES, REGULATORS)) * (generator.random((GENES, REGULATORS)) < 0.5)
    slopes[:REGULATORS] = 0
    x = generator.normal(size=(cells, REGULATORS))
    y = x @ slopes.T + noise * generator.normal(size=(cells, GENES))
    y[:, :REGULATORS] = x
    x, y = x - x.mean(0), y - y.mean(0)
    return torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(slopes)


def chosen(x, y, grid=(10.0, 30.0, 100.0, 300.0)):
    folds = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)) % 5
    return choose_penalties(x, y, OWN, folds, list(grid))


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_slopes_are_found(seed):
    x, y, truth = planted(400, seed=seed)
    slopes = slopes_on(x, y, OWN, chosen(x, y)[0])
    assert (slopes - truth)[REGULATORS:].abs().mean() < 0.08
    assert (slopes[OWN, OWN] == 0).all()


@pytest.mark.parametrize("grid", [[1000.0, 3000.0], [0.01, 0.03]])
def test_the_grid_is_widened_where_its_end_is_best(grid):
    """Clean data want a weak penalty, noise a strong one, wherever the grid begins."""
    x, y, _ = planted(300, noise=0.3)
    rest = chosen(x, torch.cat([x, torch.randn(300, GENES - REGULATORS).double()], 1), grid)[0]
    penalty, error = chosen(x, y, grid)
    wide = chosen(x, y, np.logspace(-3, 5, 17))[1]
    assert float(error.mean()) == pytest.approx(float(wide.mean()), rel=0.01)
    assert penalty.max() < 999 if grid[0] == 1000 else penalty.max() > 0.03
    assert rest[REGULATORS:].median() > 5 * penalty[REGULATORS:].median()
    assert rest[REGULATORS:].median() > 30


def test_what_covariates_predict_is_taken_out_in_any_precision():
    """Also where they depend on each other."""
    generator = torch.Generator().manual_seed(3)
    strata = torch.eye(3)[torch.arange(60) % 3]
    covariates = torch.cat([strata, strata.sum(1, keepdim=True), torch.randn(60, 1, generator=generator)], 1)
    values = covariates @ torch.randn(5, 4, generator=generator) + 0.1 * torch.randn(60, 4, generator=generator)
    for kind in (torch.float32, torch.float64):
        rest = without(covariates.to(kind))(values.to(kind))
        assert (covariates.to(kind).mT @ rest).abs().max() < 1e-3
        assert 0.05 < rest.std() < 0.15


@pytest.mark.parametrize("cells", [11, 200])  # fewer than features, and more
def test_the_fit_is_the_same_in_blocks_of_targets(monkeypatch, cells):
    x, y, _ = planted(cells)
    both, penalty = torch.cat([x, x.flip(0), x.roll(1, 0)], 1), torch.logspace(-1, 1, GENES).double()
    whole, found = slopes_on(both, y, OWN, penalty), chosen(x, y)
    monkeypatch.setattr(ridge, "COLUMNS", 3)
    monkeypatch.setattr(ridge, "CELLS", 40)
    torch.testing.assert_close(slopes_on(both, ridge.Columns.of(y), OWN, penalty), whole)
    again = chosen(x, ridge.Columns.of(y))
    assert torch.equal(again[0], found[0])
    torch.testing.assert_close(again[1], found[1])
