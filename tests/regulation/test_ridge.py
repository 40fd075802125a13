"""Ridge regression of genes on regulators: the same as a direct solve for each target by itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grn.regulation import ridge as module
from grn.regulation.ridge import Columns, HeldOutError, Ridge, of_regulators

close = {"rtol": 1e-8, "atol": 1e-10}
GENES, OWN = 9, torch.tensor([0, 3, 4, 8])


def problem(cells: int, copies: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [C, F], four regulators and their copies, and targets [C, N], float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(cells, copies * len(OWN), generator=generator, dtype=torch.float64)
    x = x + torch.randn(cells, 1, generator=generator, dtype=torch.float64)
    y = torch.randn(cells, GENES, generator=generator, dtype=torch.float64)
    return x, y + x[:, [0, 1, 2, 3, 0, 1, 2, 3, 0]]


def own_features(features: torch.Tensor, target: int) -> list[int]:
    """Columns of the features that are made of the target itself, counted out one by one."""
    return list(range(OWN.tolist().index(target), features.shape[1], len(OWN))) if target in OWN else []


def direct(features: torch.Tensor, y: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """The coefficients [F, N], every target solved by itself from the features that it may have."""
    coefficients = torch.zeros(features.shape[1], y.shape[1], dtype=y.dtype)
    for target in range(y.shape[1]):
        forbidden = own_features(features, target)
        kept = [column for column in range(features.shape[1]) if column not in forbidden]
        z = features[:, kept]
        normal = z.mT @ z + penalty[target] * torch.eye(len(kept), dtype=y.dtype)
        coefficients[kept, target] = torch.linalg.solve(normal, z.mT @ y[:, target])
    return coefficients


def solved(features: torch.Tensor, y: torch.Tensor) -> Ridge:
    return Ridge(features, y, OWN, of_regulators(features, OWN))


PENALTY = torch.logspace(-1, 2, GENES, dtype=torch.float64)  # each target has its own


@given(st.integers(0, 1000), st.integers(4, 40), st.integers(1, 3))
def test_they_are_so_for_every_number_of_cells_and_copies(seed, cells, copies):
    features, y = problem(cells, copies, seed)
    torch.testing.assert_close(solved(features, y).coefficients(PENALTY), direct(features, y, PENALTY), **close)


@pytest.mark.parametrize("cells", [6, 60])
@pytest.mark.parametrize("copies", [1, 2])
def test_no_gene_is_predicted_from_itself_nor_from_its_copy(cells, copies):
    """Exactly 0; and nothing else is."""
    features, y = problem(cells, copies)
    found = solved(features, y).coefficients(PENALTY)
    zero = torch.zeros(found.shape, dtype=torch.bool)
    for target in OWN.tolist():
        zero[own_features(features, target), target] = True
    assert torch.equal(found == 0, zero)


@pytest.mark.parametrize("cells", [6, 60])
def test_predictions_are_features_times_coefficients(cells):
    features, y = problem(cells)
    others, ridge = problem(13, seed=1)[0], solved(features, y)
    found = ridge.predictions(ridge.for_prediction(others), others, PENALTY)
    torch.testing.assert_close(found, others @ ridge.coefficients(PENALTY), **close)
    assert found.std() > 0.1


@pytest.mark.parametrize("cells", [7, 60])  # of training: dual and primal
def test_the_held_out_error_is_that_of_the_other_folds_solutions(cells):
    features, y = problem(3 * cells // 2)
    folds = torch.arange(len(y)) % 3
    error_of = HeldOutError(features, y, folds, OWN)
    for penalty in (0.5, 40.0):
        expected = torch.zeros(GENES, dtype=torch.float64)
        for fold in range(3):
            training, held_out = folds != fold, folds == fold
            coefficients = direct(features[training], y[training], torch.full((GENES,), penalty, dtype=torch.float64))
            expected += (y[held_out] - features[held_out] @ coefficients).square().sum(0)
        torch.testing.assert_close(error_of([penalty])[0], expected / y.square().sum(0), **close)


def test_cells_of_no_fold_are_trained_on_and_never_held_out():
    """Where one fold must do: fold 0 against all others."""
    features, y = problem(60)
    folds = torch.where(torch.arange(60) % 5 == 0, 0, -1)
    training = folds != 0
    coefficients = direct(features[training], y[training], torch.full((GENES,), 3.0, dtype=torch.float64))
    rest = y[~training] - features[~training] @ coefficients
    expected = rest.square().sum(0) / y[~training].square().sum(0)
    torch.testing.assert_close(HeldOutError(features, y, folds, OWN)([3.0])[0], expected, **close)


@pytest.mark.parametrize("cells", [6, 9, 30, 90])  # fewer than features, in all folds or one; small folds; large ones
def test_the_held_out_error_is_the_same_in_blocks_of_targets_and_of_cells(monkeypatch, cells):
    features, y = problem(cells)
    folds = (torch.arange(cells) % 5 - 1).clamp(max=2)  # the last is twice as large
    own = OWN[[3, 1, 0, 2]]  # targets need not be in the order of the regulators
    whole = HeldOutError(features, y, folds, own)([0.5, 40.0])
    monkeypatch.setattr(module, "COLUMNS", 2)
    monkeypatch.setattr(module, "CELLS", 7)
    error_of = HeldOutError(features, Columns.of(y), folds, own)
    torch.testing.assert_close(error_of([0.5, 40.0]), whole, **close)
    torch.testing.assert_close(error_of([40.0]), whole[1:], **close)
    assert whole.std() > 0.01
