import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from flashsign.folds.algebra.fold import fold
from flashsign.folds.algebra.monoids.contractions import SOFTMAX
from flashsign.folds.algebra.monoids.exponentials import log_add, relative_weight


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_softmax_folds_to_attention_and_multiplicity_is_repetition(draw, scale):
    """Scores of hundreds neither overflow nor vanish."""
    q, k, v, _, _ = (x[0, 0] for x in draw(cells=1, heads=1, key_heads=1, keys=3))
    m, listed = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64), [0, 1, 1, 1]
    found = SOFTMAX.finish(fold(SOFTMAX, (k, v, m), (scale * q,), chunk=2), (q,))
    expected = scaled_dot_product_attention(scale * q, k[listed], v[listed], scale=1.0)
    torch.testing.assert_close(found, expected)


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
