"""The one rule of accuracy: right kernels are far within its bounds, and every sabotage of a kernel
is refused.
"""

import functools

import pytest
import torch
from kernel_cases import doubled, ill_conditioned, with_gradients

from flashsign.tuning.accuracy import TENSORS, Bag, Case, table

EPS = 1e-6


def judged(tensors, grad, attend, wide=False):
    """Verdicts on attend's output and gradients; wide: attend gets the inputs in float64."""
    found = with_gradients(attend, doubled(tensors) if wide else tensors, grad)
    return Case(*tensors, grad).judge(dict(zip(TENSORS, found, strict=True)))


def worst(verdicts):
    """The largest error in units of its bound."""
    return max(verdict.of_bound for verdict in verdicts.values())


# --- sabotage: attention in float64 with one thing wrong, so that all of the error is the
# sabotage's ------------------


def replaced(x, by):
    """`by` forward, and x's derivative backward."""
    return x + (by - x).detach()


def to_16_bits(x, dtype):
    """Rounded, after division by a power of two that keeps float16 in range."""
    power = torch.exp2(x.detach().abs().amax().clamp_min(1e-30).log2().floor())
    return replaced(x, (x / power).to(dtype).to(x.dtype) * power)


def to_tf32(x):
    """10 bits behind the point, as tensor cores read float32."""
    bits = x.detach().float().view(torch.int32)
    return replaced(x, ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(x.dtype))


def sabotaged(q, k, v, m, what=""):
    """Attention as in kernels/README.md, but for one thing."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    if what == "one key left out":
        m = torch.cat([m[:, :-1], 0 * m[:, -1:]], 1)
    scaled = m[:, None, :, None] * k
    if what.startswith("m k rounded to"):
        scaled = to_16_bits(scaled, getattr(torch, what.split()[-1]))
    scores = (
        to_tf32(q) @ to_tf32(scaled).mT if what == "scores by one TF32 product" else q @ scaled.mT
    )
    t = scaled.square().sum((-2, -1), keepdim=True)
    if what == "the trace term's derivative left out":
        t = t.detach()
    eps = 0 if what == "the eps term left out" else EPS
    floor = eps * q.square().sum(-1, keepdim=True) * t
    inverse = (
        scores.square().sum(-1, keepdim=True) + floor + torch.finfo(torch.float64).tiny
    ).rsqrt()
    if what == "the delta term left out":
        inverse = inverse.detach()  # the norm's derivative
    if what.startswith("normaliser rounded to"):
        inverse = replaced(inverse, inverse.to(getattr(torch, what.split()[-1])).double())
    if what == "values by one TF32 product":
        return to_tf32(scores * inverse) @ to_tf32(v)
    return scores * inverse @ v


SABOTAGES = [
    ("one key left out", torch.float32, 1.0),
    ("one key left out", torch.float16, 1.0),
    ("the eps term left out", torch.float32, 1e2),
    ("the eps term left out", torch.float16, 1e3),
    ("the delta term left out", torch.float32, 1.0),
    ("the delta term left out", torch.float32, 1e3),
    ("the trace term's derivative left out", torch.float32, 1e2),
    ("scores by one TF32 product", torch.float32, 1e3),
    ("values by one TF32 product", torch.float32, 1e3),
    ("m k rounded to float16", torch.float16, 1e3),
    ("m k rounded to bfloat16", torch.float16, 1e2),
    ("normaliser rounded to bfloat16", torch.float32, 1.0),
    ("normaliser rounded to float16", torch.float32, 1e2),
]
"""What is wrong, in a kernel of which dtype, and the condition number of the keys where it must be
seen.
"""


@pytest.mark.parametrize(("what", "dtype", "condition"), SABOTAGES, ids=str)
def test_a_sabotage_is_refused(what, dtype, condition):
    """By twice the bound at least, though nothing else is rounded."""
    verdicts = judged(
        *ill_conditioned(condition, dtype), functools.partial(sabotaged, what=what), wide=True
    )
    assert worst(verdicts) > 2, table(verdicts)
    assert not all(verdict.good for verdict in verdicts.values())


def test_an_error_is_good_up_to_the_bound_and_no_further():
    bag = Bag(40, 16, torch.float32, "cpu")
    for name, bound in bag.bounds.items():
        assert 1e-7 < bound < 1e-5
        assert bag.judge({name: bag.true[name] * (1 + 0.99 * bound)})[name].good
        assert not bag.judge({name: bag.true[name] * (1 + 1.01 * bound)})[name].good
    assert bag.m[:, 3].eq(0).all(), "some genes are absent"
