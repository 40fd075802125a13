"""The exact solution of the linear problem behind a signed block: laws of its sums, and that
nothing is better.
"""

import pytest
import torch
from torch import Tensor

from grn.evidence import exact as module
from grn.evidence.exact import FREE, Moments, solve
from grn.model.penalty import Penalty

CELLS, KEYS, STATES, TARGETS = 400, 7, 3, 5  # the last key is the depth
OWN = torch.tensor([0, -1, 2, -1, -1])
close = {"rtol": 1e-9, "atol": 1e-9}


def problem(soft: bool, states: int = STATES, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x [C, K], y [C, n] and memberships [C, S], of one state each or soft; slopes differ between
    states.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(CELLS, KEYS, generator=generator).double() + 0.3
    state = torch.randint(states, (CELLS,), generator=generator)
    share = (
        torch.rand(CELLS, states, generator=generator).double() ** 3
        if soft
        else torch.eye(states).double()[state]
    )
    share = share / share.sum(1, keepdim=True)
    slopes = torch.randn(states, KEYS, TARGETS, generator=generator).double() * 0.5 + 0.3
    y = torch.einsum("cs,ck,skn->cn", share, x, slopes)
    return x, y + torch.randn(CELLS, TARGETS, generator=generator), share


@pytest.fixture
def to_the_end(monkeypatch):
    """Conjugate gradients go on until nothing is left, in float64."""
    monkeypatch.setattr(module, "ITERATED", torch.float64)
    monkeypatch.setattr(module, "TOLERANCE", 1e-12)
    monkeypatch.setattr(module, "ON_THE_WAY", 1e-12)


def error_of(slopes: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """Squared errors by slopes [S, K, n], cell by cell."""
    return (y - torch.einsum("cs,ck,skn->cn", share, x, slopes)).square()


def loss_of(w: Tensor, deviations: Tensor | None, penalty: Penalty, weight, x, y, share) -> Tensor:
    """What `solve` minimises, as exact.py writes it: the shared slope of the depth is hardly
    penalised.
    """
    size = torch.cat([w[:-1].square(), torch.zeros_like(w[-1:])])
    slopes = w.expand(share.shape[1], -1, -1)
    if deviations is not None:
        slopes, size = slopes + deviations, size + (deviations / penalty.rho).square().sum(0)
    size = size * (1.0 if weight is None else weight)
    size = penalty.t**2 * torch.log1p(size / penalty.t**2) if penalty.t else size
    shrink = penalty.lam * size.sum() + FREE * w[-1].square().sum()
    return error_of(slopes, x, y, share).sum() + shrink


def assert_same(one: Moments, other: Moments) -> None:
    assert one.pairs == other.pairs and one.cells == other.cells
    for name in ("gram", "cross", "square"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), **close)


@pytest.mark.parametrize("soft", [False, True])
def test_moments_of_parts_of_the_cells_add_up_in_any_order_and_are_taken_off_again(soft):
    """Over all states they are those of one; a gram that is known is taken."""
    x, y, share = problem(soft)
    one, two, three = (
        Moments.of(x, y, share, rows) for rows in torch.arange(CELLS).split([150, 90, 160])
    )
    whole = Moments.of(x, y, share)
    assert len(whole.pairs) == (6 if soft else 3)
    assert_same(one + two + three, whole)
    assert_same(three + (two + one), whole)
    assert_same(whole - three, one + two)
    together = Moments.of(x, y, torch.ones(CELLS, 1))
    assert_same(whole.together(), together)
    assert together.together() is together
    assert_same(Moments.of(x, y[:, :2], share, gram=whole.gram), whole.some(2))


def test_moments_are_the_same_in_blocks_of_cells_and_of_float32_targets(monkeypatch):
    x, y, share = problem(True)
    y = y.float()  # targets of many cells are held in float32, the sums are not
    whole = Moments.of(x, y, share)
    monkeypatch.setattr(module, "CELLS", 33)
    assert_same(Moments.of(x, y, share), whole)
    torch.testing.assert_close(whole.cross.sum(0), x.mT @ y.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("soft", [False, True])
def test_errors_by_moments_are_those_cell_by_cell(soft):
    x, y, share = problem(soft)
    slopes = torch.randn(STATES, KEYS, TARGETS, generator=torch.Generator().manual_seed(1)).double()
    rows = torch.arange(0, CELLS, 3)
    expected = error_of(slopes, x[rows], y[rows], share[rows]).mean(0)
    torch.testing.assert_close(Moments.of(x, y, share, rows).errors(slopes), expected, **close)


FORMS = [Penalty(30.0, 1.0), Penalty(30.0, 0.5, 0.1), Penalty(30.0, 0.0, 0.1), Penalty(30.0, 0.0)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("own", [None, OWN], ids=["every key", "own keys"])
@pytest.mark.parametrize("penalty", FORMS, ids=lambda each: f"rho {each.rho} t {each.t}")
@pytest.mark.parametrize("soft", [False, True])
def test_the_loss_written_out_has_no_slope_at_the_solution(
    monkeypatch, to_the_end, soft, penalty, own, weighted
):
    """By autograd. With a logarithm, a few rounds end close to it, and many there."""
    x, y, share = problem(soft)
    weight = torch.ones(KEYS, TARGETS).double()
    weight[:-1] += 3 * torch.rand(KEYS - 1, TARGETS, generator=torch.Generator().manual_seed(2))
    weight = weight if weighted else None
    moments = Moments.of(x, y, share)

    def steepest(rounds: int) -> float:
        monkeypatch.setattr(module, "REWEIGHTED", rounds)
        found = solve(moments, penalty, self_key=own, weight=weight)
        assert (found.deviations is None) == (penalty.rho == 0)
        parts = [
            each.clone().requires_grad_()
            for each in (found.shared, found.deviations)
            if each is not None
        ]
        loss = loss_of(parts[0], parts[1] if penalty.rho else None, penalty, weight, x, y, share)
        slopes = torch.autograd.grad(loss, parts)
        if own is not None:
            for target, key in ((0, 0), (2, 2)):
                for part, slope in zip(parts, slopes, strict=True):
                    assert (part[..., key, target] == 0).all(), "no gene is predicted from itself"
                    slope[..., key, target] = 0
        return max(float(each.abs().max()) for each in slopes) / float(moments.cross.abs().max())

    assert steepest(module.REWEIGHTED) < (0.05 if penalty.t else 1e-4)
    assert steepest(60) < 1e-4


@pytest.mark.parametrize("penalty", FORMS, ids=lambda each: f"rho {each.rho} t {each.t}")
def test_it_ends_close_to_the_solution(penalty, request):
    moments = Moments.of(*problem(True))
    soon = solve(moments, penalty, self_key=OWN).of_states(STATES)
    request.getfixturevalue("to_the_end")
    last = solve(moments, penalty, self_key=OWN).of_states(STATES)
    assert (soon - last).norm() < 5e-3 * last.norm()


@pytest.mark.parametrize(("states", "rho"), [(STATES, 0.0), (1, 0.0), (1, 1.0)])
def test_without_states_it_is_ridge_regression_by_scikit_learn(states, rho):
    """rho 0 and one state are the same problem."""
    from sklearn.linear_model import Ridge

    x, y, share = problem(False)
    moments = Moments.of(x, y, share if states > 1 else torch.ones(CELLS, 1))
    for own, keys, targets in ((None, slice(None), slice(None)), (OWN, slice(1, None), slice(1))):
        ridge = Ridge(alpha=20.0, fit_intercept=False).fit(x[:, keys], y[:, targets])
        found = solve(moments, Penalty(20.0, rho), self_key=own, free=False)
        slopes = found.shared[keys, targets]
        expected = torch.as_tensor(ridge.coef_.T).view_as(slopes)
        torch.testing.assert_close(slopes, expected, rtol=1e-6, atol=1e-8)
        assert found.of_states(3).shape == (3, KEYS, TARGETS)
