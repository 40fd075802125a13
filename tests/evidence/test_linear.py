"""The linear fit: planted slopes are found, and the penalty fits the noise."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grn.evidence import linear as module
from grn.evidence.linear import GRID, Columns, choose_penalty, slopes_on, without

REGULATORS, GENES = 5, 25
OWN = torch.arange(REGULATORS)  # the first genes regulate the others
close = {"rtol": 1e-8, "atol": 1e-10}


def planted(cells: int, noise: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """x [C, R] and y [C, N], with mean 0, of genes that follow half of the regulators."""
    generator = np.random.default_rng(0)
    slopes = generator.normal(size=(GENES, REGULATORS))
    slopes *= generator.random(slopes.shape) < 0.5
    x = generator.normal(size=(cells, REGULATORS))
    y = x @ slopes.T + noise * generator.normal(size=(cells, GENES))
    y[:, :REGULATORS] = x
    return torch.as_tensor(x - x.mean(0)), torch.as_tensor(y - y.mean(0))


def folds_of(cells: int) -> torch.Tensor:
    return torch.randperm(cells, generator=torch.Generator().manual_seed(0)) % 5


def chosen(x, y) -> float:
    return choose_penalty(x, y, OWN, folds_of(len(x)))


def own_features(own: torch.Tensor, features: torch.Tensor, target: int) -> list[int]:
    """Columns of the features that are made of the target itself, counted out one by one."""
    regulators = own.tolist()
    return (
        list(range(regulators.index(target), features.shape[1], len(own)))
        if target in regulators
        else []
    )


def direct(
    features: torch.Tensor, y: torch.Tensor, own: torch.Tensor, penalty: float
) -> torch.Tensor:
    """The slopes [N, F], every target solved by itself from the features that it may have."""
    slopes = torch.zeros(y.shape[1], features.shape[1], dtype=y.dtype)
    for target in range(y.shape[1]):
        forbidden = own_features(own, features, target)
        kept = [column for column in range(features.shape[1]) if column not in forbidden]
        z = features[:, kept]
        normal = z.mT @ z + penalty * torch.eye(len(kept), dtype=y.dtype)
        slopes[target, kept] = torch.linalg.solve(normal, z.mT @ y[:, target])
    return slopes


@given(
    st.integers(0, 1000), st.integers(4, 40), st.integers(1, 3), st.sampled_from([0.1, 3.0, 100.0])
)
def test_slopes_are_those_of_ridge_regression_without_own_features(seed, cells, copies, penalty):
    """For more and for fewer cells than features, and regulators in any place and order; exactly 0
    on what is made of the gene itself.
    """
    generator, own = torch.Generator().manual_seed(seed), torch.tensor([3, 0, 8, 4])

    def normal(columns: int) -> torch.Tensor:
        return torch.randn(cells, columns, generator=generator).double()

    features = normal(copies * 4) + normal(1)
    y = normal(9) + features[:, [0, 1, 2, 3, 0, 1, 2, 3, 0]]
    found, expected = slopes_on(features, y, own, penalty), direct(features, y, own, penalty)
    torch.testing.assert_close(found, expected, **close)
    assert torch.equal(found == 0, expected == 0)


def test_the_penalty_is_near_that_with_the_least_held_out_error():
    """Written out, fold by fold: no penalty that is tried has an error that is lower by a
    hundredth.
    """
    x, y = planted(120, noise=3.0)
    folds = folds_of(len(x))

    def error(penalty: float) -> float:
        found = 0.0
        for fold in range(5):
            slopes = direct(x[folds != fold], y[folds != fold], OWN, penalty)
            found += (
                (y[folds == fold] - x[folds == fold] @ slopes.mT)[:, REGULATORS:].square().sum()
            )
        return float(found)

    errors = [error(penalty) for penalty in GRID]
    assert error(chosen(x, y)) < 1.01 * min(errors) < 0.95 * max(errors)


def test_what_covariates_predict_is_taken_out_in_any_precision():
    """Also where they depend on each other."""
    generator = torch.Generator().manual_seed(3)
    strata = torch.eye(3)[torch.arange(60) % 3]
    covariates = torch.cat(
        [strata, strata.sum(1, keepdim=True), torch.randn(60, 1, generator=generator)], 1
    )
    values = covariates @ torch.randn(5, 4, generator=generator) + 0.1 * torch.randn(
        60, 4, generator=generator
    )
    for kind in (torch.float32, torch.float64):
        rest = without(covariates.to(kind))(values.to(kind))
        assert (covariates.to(kind).mT @ rest).abs().max() < 1e-3
        assert 0.05 < rest.std() < 0.15


@pytest.mark.parametrize("cells", [11, 200])  # fewer than features, and more
def test_the_fit_is_the_same_in_blocks_of_targets(monkeypatch, cells):
    x, y = planted(cells)
    both = torch.cat([x, x.flip(0), x.roll(1, 0)], 1)
    whole, found = slopes_on(both, y, OWN, 3.0), chosen(x, y)
    monkeypatch.setattr(module, "COLUMNS", 3)
    assert len(list(Columns.of(y).blocks())) == 9
    torch.testing.assert_close(slopes_on(both, Columns.of(y), OWN, 3.0), whole)
    torch.testing.assert_close(slopes_on(both, y, OWN, 3.0, known=x.mT @ y), whole)
    assert chosen(x, Columns.of(y)) == pytest.approx(found, rel=1e-9)
