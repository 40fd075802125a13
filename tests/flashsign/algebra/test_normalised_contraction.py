import pytest
import torch

from flashsign.algebra.fold import fold
from flashsign.algebra.rows.attention import normalised_contraction


def absolute_eps(eps):
    """Spherical attention with an eps that does not scale."""
    return normalised_contraction("spherical", lambda s: s, torch.square, lambda z: (z + eps).sqrt())


def attend(monoid, call):
    items, shared = (call.k[0, 0], call.v[0, 0], call.m[0]), (call.q[0, 0],)
    return monoid.finish(fold(monoid, items, shared), shared)


def test_exponentials_over_their_sum_are_softmax_attention(draw):
    call = draw(cells=1, heads=1, key_heads=1)
    monoid = normalised_contraction("softmax", torch.exp, torch.exp, lambda z: z)
    scores = call.q[0, 0] @ (call.m[0][:, None] * call.k[0, 0]).mT
    torch.testing.assert_close(attend(monoid, call), torch.softmax(scores, -1) @ call.v[0, 0])


@pytest.mark.parametrize("eps", [0.01, 1.0])
def test_an_absolute_eps_measures_how_far_the_gradients_are_from_orthogonal(draw, eps):
    """q . dq = eps delta / n^2 and sum_j m_j dm_j = sum_i eps delta_i / n_i^2."""
    call = draw(cells=1, heads=1, key_heads=1)
    output, grad = attend(absolute_eps(eps), call), call.grad[0, 0]
    dq, _, _, dm = call.gradients(output, grad)
    square = (call.q[0, 0] @ (call.m[0][:, None] * call.k[0, 0]).mT).square().sum(-1) + eps
    expected = eps * (grad * output).sum(-1) / square
    torch.testing.assert_close((call.q * dq)[0, 0].sum(-1), expected)
    torch.testing.assert_close((call.m * dm).sum(), expected.sum())
