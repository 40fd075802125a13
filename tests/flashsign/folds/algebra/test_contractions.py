import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from flashsign.folds.algebra.fold import fold
from flashsign.folds.algebra.monoids.contractions import SOFTMAX, normalised_contraction
from flashsign.folds.algebra.monoids.exponentials import log_add, relative_weight


def attend(call, m):
    items, shared = (call.k[0, 0], call.v[0, 0], m), (call.q[0, 0] / math.sqrt(3),)
    return SOFTMAX.finish(fold(SOFTMAX, items, shared, chunk=4), shared)


def test_the_fold_is_torchs_attention_with_its_gradients(draw):
    call = draw(cells=1, heads=1, key_heads=1)
    found = attend(call, torch.ones(9))
    expected = scaled_dot_product_attention(call.q, call.k, call.v)[0, 0]
    torch.testing.assert_close(found, expected)
    leaves = call.leaves[:3]
    grads = (torch.autograd.grad(output, leaves, call.grad[0, 0]) for output in (found, expected))
    torch.testing.assert_close(*grads)


def test_the_fold_is_the_reference_with_multiplicities(draw):
    call = draw(cells=1, heads=1, key_heads=1)
    m = call.m.detach().clone()
    m[0, 3] = 0
    # weights are softmax_j(q k_j / sqrt(E) + log m_j)
    scores = call.q[0, 0] @ call.k[0, 0].T / math.sqrt(3) + m.log()
    torch.testing.assert_close(attend(call, m[0]), scores.softmax(-1) @ call.v[0, 0])


def test_multiplicity_is_repetition(draw):
    call = draw(cells=1, heads=1, key_heads=1, keys=2)
    twice = [0, 1, 1, 1]
    repeated = scaled_dot_product_attention(call.q, call.k[:, :, twice], call.v[:, :, twice])[0, 0]
    torch.testing.assert_close(
        attend(call, torch.tensor([1.0, 3.0], dtype=torch.float64)), repeated
    )


def test_scores_of_hundreds_neither_overflow_nor_vanish(draw):
    call = draw(cells=1, heads=1, key_heads=1)
    call.q.data.mul_(1e3)
    expected = scaled_dot_product_attention(call.q, call.k, call.v)[0, 0]
    torch.testing.assert_close(attend(call, torch.ones(9)), expected)


@pytest.mark.parametrize(
    ("a", "b"), [(-math.inf, -math.inf), (-math.inf, 1.0), (700.0, -700.0), (0.5, 0.25)]
)
def test_log_add_is_logaddexp_with_a_gradient_even_for_nothing_and_nothing(a, b):
    x, y = (torch.tensor(z, dtype=torch.float64, requires_grad=True) for z in (a, b))
    total = log_add(x, y)
    torch.testing.assert_close(total, torch.logaddexp(x, y))
    gradients = torch.autograd.grad(total, (x, y))
    torch.testing.assert_close(
        gradients, (relative_weight(x, total).detach(), relative_weight(y, total).detach())
    )
    assert sum(gradients) == (0 if total == -math.inf else 1)


def absolute_eps(eps):
    """Spherical attention with an eps that does not scale."""
    return normalised_contraction(
        "spherical", lambda s: s, torch.square, lambda z: (z + eps).sqrt()
    )


@pytest.mark.parametrize("eps", [0.01, 1.0])
def test_an_absolute_eps_measures_how_far_the_gradients_are_from_orthogonal(draw, eps):
    """q . dq = eps delta / n^2 and sum_j m_j dm_j = sum_i eps delta_i / n_i^2."""
    call = draw(cells=1, heads=1, key_heads=1)
    monoid, grad, shared = absolute_eps(eps), call.grad[0, 0], (call.q[0, 0],)
    output = monoid.finish(fold(monoid, (call.k[0, 0], call.v[0, 0], call.m[0]), shared), shared)
    dq, _, _, dm = call.gradients(output, grad)
    square = (call.q[0, 0] @ (call.m[0][:, None] * call.k[0, 0]).mT).square().sum(-1) + eps
    expected = eps * (grad * output).sum(-1) / square
    torch.testing.assert_close((call.q * dq)[0, 0].sum(-1), expected)
    torch.testing.assert_close((call.m * dm).sum(), expected.sum())
