"""The penalty on slopes, against its formula."""

import math

import pytest
import torch

from flashsign import slope_penalty
from flashsign.tables.slope_penalty import penalty_of
from grn.model.penalty import Penalty


def slopes(states: int) -> torch.Tensor:
    return torch.randn(
        2, states, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )


@pytest.mark.parametrize("t", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("states", [1, 3])
def test_it_is_the_formula_written_out(states, t):
    """Each member has a penalty of its own; t = 0 is that of ridge regression; the depth's shared
    slope is free.
    """
    given = [Penalty(3.0, 0.5, t), Penalty(0.7, 2.0, t)]
    found = penalty_of(slopes(states), torch.stack([each.as_tensor() for each in given]).double())
    for member, penalty in enumerate(given):
        expected = 0.0
        for gene in range(4):
            for regulator in range(3):
                own = slopes(states)[member, :, gene, regulator].tolist()
                shared = sum(own) / states
                size = shared**2 * (regulator < 2) + sum(
                    ((one - shared) / penalty.rho) ** 2 for one in own
                )
                expected += penalty.lam * (t**2 * math.log1p(size / t**2) if t else size)
        assert float(found[member]) == pytest.approx(expected, rel=1e-6)


def test_its_gradient_is_finite_where_slopes_are_zero():
    zero = torch.zeros(2, 3, 1, 1).double().requires_grad_()
    penalty_of(
        zero, torch.stack([Penalty(1, 0, 0).as_tensor(), Penalty(1, 1, 1e-3).as_tensor()])
    ).sum().backward()
    assert (zero.grad == 0).all()


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("states", [1, 3])
def test_of_scores_it_is_that_of_their_slopes_and_so_are_its_gradients(states, prior):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 2, states, 4, 3, generator=generator, dtype=torch.float64)
    amount, gain, basal, square = (
        torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
        for shape in ((2, 2, 3), (2, 2, 4), (2, 2, 4), (2, states, 3))
    )
    factor = torch.rand(4, 3, generator=generator, dtype=torch.float64) + 0.2 if prior else None
    penalty = torch.stack(
        [Penalty(0.3, 0.5, 0.4).as_tensor(), Penalty(0.7, 2.0, 0.0).as_tensor()]
    ).double()

    def written_out(scores, amount, gain, basal):
        norm = (
            scores.square() @ square[:, None, :, :, None] + basal.square()[:, :, None, :, None]
        ).sqrt()
        slope = (scores * amount[:, :, None, None] * gain[:, :, None, :, None] / norm).sum(1)
        return penalty_of(slope if factor is None else slope / factor, penalty)

    def of_scores(scores, amount, gain, basal):
        return slope_penalty(scores, amount, gain, basal, square, penalty, factor)

    given = [each.requires_grad_() for each in (scores, amount, gain, basal)]
    torch.testing.assert_close(of_scores(*given), written_out(*given))
    assert torch.autograd.gradcheck(of_scores, given)
