"""The statistic, beside the same by plain least squares; and that no gene explains itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grn.analysis.compare_slopes import SlopeFit

KAPPA = 7.0


@pytest.fixture
def drawn():
    """x [80, 5], y [80, 9] (the regulators are targets 1, 3, 4, 6, 8) and the sign of each cell."""
    generator = torch.Generator().manual_seed(2)
    y = torch.randn(80, 9, generator=generator, dtype=torch.float64)
    y += y[:, :1] + 0.5 * torch.randn(80, 1, generator=generator, dtype=torch.float64)
    sign = torch.where(torch.rand(80, generator=generator) < 0.4, -1.0, 1.0).double()
    own = torch.tensor([1, 3, 4, 6, 8])
    return y[:, own].clone(), y, own, sign


def literal(x, y, sign, own, donor, target):
    """effect, error and score of one target: least squares with a penalty on the differences, without the target."""
    kept = np.array([regulator for regulator in range(len(own)) if own[regulator] != target])
    x, y, sign = x.numpy()[:, kept], y.numpy()[:, target], sign.numpy()
    u = sign[:, None] * x / 2
    projection = x @ np.linalg.solve(x.T @ x, x.T)
    rest, left = y - projection @ y, u - projection @ u
    operator = np.linalg.solve(u.T @ left + KAPPA * np.eye(len(kept)), left.T)
    delta = operator @ y
    gain = np.diag(operator @ u)

    def error(residual):
        part = operator * residual
        if donor is not None:
            part = np.stack([part[:, donor.numpy() == number].sum(1) for number in range(int(donor.max()) + 1)], 1)
        return np.sqrt((part**2).sum(1))

    return kept, delta / gain, error(rest), delta / error(rest)


@pytest.mark.parametrize("donors", [False, True])
def test_differences_are_those_of_least_squares(drawn, donors):
    x, y, own, sign = drawn
    donor = torch.arange(80) % 7 if donors else None
    fit = SlopeFit(x, y, sign, own, donor, KAPPA)
    found = fit.differences()
    for target in range(9):
        kept, effect, _, score = literal(x, y, sign, own, donor, target)
        np.testing.assert_allclose(found.effect[kept, target], effect, rtol=1e-4)
        np.testing.assert_allclose(found.score[kept, target], score, rtol=1e-4)
        assert found.effect[:, target].isnan().sum() == 5 - len(kept)
    torch.testing.assert_close(fit.scores(), found.score, equal_nan=True)


def test_a_shared_slope_leaves_no_difference_however_a_regulator_varies(drawn):
    """Without errors the difference is 0, although the regulators vary four times as much where sign is +1."""
    x, y, own, sign = drawn
    x = torch.where(sign[:, None] > 0, 4 * x, x)
    y = torch.cat([x, x @ torch.ones(5, 2, dtype=torch.float64)], 1)
    own = torch.arange(5)
    effect = SlopeFit(x, y, sign, own, None, KAPPA).differences().effect[:, 5:]
    assert effect.abs().max() < 1e-5


def test_a_difference_without_errors_is_found_whatever_the_penalty(drawn):
    x, _, _, sign = drawn
    y = torch.cat([x, (sign * x[:, 0] / 2)[:, None]], 1)
    for kappa in (1e-6, 7.0, 1e4):
        effect = SlopeFit(x, y, sign, torch.arange(5), None, kappa).differences().effect[:, 5]
        assert effect[0] == pytest.approx(1, abs=1e-2)
