"""Ridge regression of genes on regulators: the same as a direct solve for each target by itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grn.regulation import ridge as module
from grn.regulation.ridge import Columns, Features, HeldOutError, Ridge

close = {"rtol": 1e-8, "atol": 1e-10}
GENES, OWN = 9, torch.tensor([0, 3, 4, 8])


def problem(
    cells: int, states: int = 2, copies: int = 1, ratio: float = 0.8, seed: int = 0
) -> tuple[Features, torch.Tensor]:
    """Features of four regulators (and their copies) and targets [C, N], float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(cells, copies * len(OWN), generator=generator, dtype=torch.float64)
    x = x + torch.randn(cells, 1, generator=generator, dtype=torch.float64)
    membership = torch.rand(cells, states, generator=generator, dtype=torch.float64)
    y = torch.randn(cells, GENES, generator=generator, dtype=torch.float64) + x[:, [0, 1, 2, 3, 0, 1, 2, 3, 0]]
    return Features(x, membership / membership.sum(1, keepdim=True), ratio, OWN, copies), y


def own_features(features: Features, target: int) -> list[int]:
    """Columns of the feature matrix that are made of the target itself, counted out one by one."""
    if target not in OWN:
        return []
    width, number = features.x.shape[1], OWN.tolist().index(target)
    copies = range(number, width, len(OWN))
    return [block * width + column for block in range(features.blocks) for column in copies]


def direct(features: Features, y: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """The coefficients [F, N], every target solved by itself from the features that it may have."""
    matrix = features.matrix()
    coefficients = torch.zeros(matrix.shape[1], y.shape[1], dtype=y.dtype)
    for target in range(y.shape[1]):
        forbidden = own_features(features, target)
        kept = [column for column in range(matrix.shape[1]) if column not in forbidden]
        z = matrix[:, kept]
        normal = z.mT @ z + penalty[target] * torch.eye(len(kept), dtype=y.dtype)
        coefficients[kept, target] = torch.linalg.solve(normal, z.mT @ y[:, target])
    return coefficients


def solved(features: Features, y: torch.Tensor) -> Ridge:
    return Ridge(features.matrix(), y, OWN, features.of_regulators(y.device))


PENALTY = torch.logspace(-1, 2, GENES, dtype=torch.float64)  # each target has its own


@given(st.integers(0, 1000), st.integers(4, 40), st.integers(1, 3), st.integers(1, 2), st.sampled_from([0, 0.3, 2]))
def test_they_are_so_for_every_number_of_cells_states_and_copies(seed, cells, states, copies, ratio):
    features, y = problem(cells, states, copies, ratio, seed)
    torch.testing.assert_close(solved(features, y).coefficients(PENALTY), direct(features, y, PENALTY), **close)


@pytest.mark.parametrize("cells", [6, 60])
@pytest.mark.parametrize("copies", [1, 2])
def test_no_gene_is_predicted_from_itself_nor_from_its_copy(cells, copies):
    """Exactly 0, in every state; and nothing else is."""
    features, y = problem(cells, copies=copies)
    found = solved(features, y).coefficients(PENALTY)
    zero = torch.zeros(found.shape, dtype=torch.bool)
    for target in OWN.tolist():
        zero[own_features(features, target), target] = True
    assert torch.equal(found == 0, zero)


@pytest.mark.parametrize("cells", [6, 60])
@pytest.mark.parametrize("ratio", [0.0, 0.8])
def test_predictions_are_features_times_coefficients(cells, ratio):
    features, y = problem(cells, ratio=ratio)
    others = problem(13, ratio=ratio, seed=1)[0].matrix()
    ridge = solved(features, y)
    found = ridge.predictions(ridge.for_prediction(others), others, PENALTY)
    torch.testing.assert_close(found, others @ ridge.coefficients(PENALTY), **close)
    assert found.std() > 0.1


def test_the_ratio_divides_the_penalty_of_deviations_by_its_square():
    """beta under lambda and delta under lambda / rho^2, in the features x and x p_z, unscaled."""
    features, y = problem(50)
    shared, deviations = features.slopes(solved(features, y).coefficients(PENALTY))
    assert shared.shape == (GENES, 4) and deviations.shape == (2, GENES, 4)
    z = torch.cat([features.x, features.x * features.states[:, :1], features.x * features.states[:, 1:]], 1)
    for target in (1, 5):  # no regulators
        strength = PENALTY[target] * torch.tensor([1.0, *[1 / 0.8**2] * 2], dtype=torch.float64).repeat_interleave(4)
        expected = torch.linalg.solve(z.mT @ z + strength.diag(), z.mT @ y[:, target])
        torch.testing.assert_close(torch.cat([shared[target], *deviations[:, target]]), expected, **close)


@pytest.mark.parametrize("cells", [10, 60])  # of training: dual and primal
def test_the_held_out_error_is_that_of_the_other_folds_solutions(cells):
    features, y = problem(3 * cells // 2)
    folds = torch.arange(len(y)) % 3
    error_of = HeldOutError(features, y, folds, OWN, torch.arange(4))
    for penalty in (0.5, 40.0):
        expected = torch.zeros(GENES, dtype=torch.float64)
        for fold in range(3):
            training, held_out = folds != fold, folds == fold
            part = Features(features.x[training], features.states[training], features.ratio, OWN)
            coefficients = direct(part, y[training], torch.full((GENES,), penalty, dtype=torch.float64))
            expected += (y[held_out] - features.matrix(held_out) @ coefficients).square().sum(0)
        torch.testing.assert_close(error_of([penalty])[0], expected / y.square().sum(0), **close)


def test_cells_of_no_fold_are_trained_on_and_never_held_out():
    """Where one fold must do: fold 0 against all others."""
    features, y = problem(60)
    folds = torch.where(torch.arange(60) % 5 == 0, 0, -1)
    training = folds != 0
    part = Features(features.x[training], features.states[training], features.ratio, OWN)
    coefficients = direct(part, y[training], torch.full((GENES,), 3.0, dtype=torch.float64))
    expected = (y[~training] - features.matrix(~training) @ coefficients).square().sum(0) / y[~training].square().sum(0)
    torch.testing.assert_close(HeldOutError(features, y, folds, OWN, torch.arange(4))([3.0])[0], expected, **close)


@pytest.mark.parametrize("ratio", [0.0, 0.8])
@pytest.mark.parametrize("cells", [9, 17, 30, 90])  # fewer than features, in all folds or one; small folds; large ones
def test_the_held_out_error_is_the_same_in_blocks_of_targets_and_of_cells(monkeypatch, cells, ratio):
    features, y = problem(cells, ratio=ratio)
    own, regulated = OWN[[3, 1]], torch.tensor([3, 1])  # targets need not be in the order of the regulators
    folds = (torch.arange(cells) % 5 - 1).clamp(max=2)  # the last is twice as large
    whole = HeldOutError(features, y, folds, own, regulated)([0.5, 40.0])
    monkeypatch.setattr(module, "COLUMNS", 2)
    monkeypatch.setattr(module, "CELLS", 7)
    error_of = HeldOutError(features, Columns.of(y), folds, own, regulated)
    torch.testing.assert_close(error_of([0.5, 40.0]), whole, **close)
    torch.testing.assert_close(error_of([40.0]), whole[1:], **close)
    assert whole.std() > 0.01
