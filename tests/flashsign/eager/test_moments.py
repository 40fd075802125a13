"""What moments, packed bags and the stream have of their own in torch; laws of all:
test_spherical_attention.py.
"""

from functools import partial

import pytest
import torch
from kernel_cases import assert_accurate, with_gradients
from seeded import normal

from flashsign.eager import streaming
from flashsign.eager.moments import Moments, moment_attention
from flashsign.eager.streaming import stream_attention


def ill_conditioned_call(condition=1e3, dtype=torch.float32):
    """Keys with one direction `condition` times weaker than the rest; every third query points
    along it.
    """
    q, k, v = (normal(3, rows, 8, seed=rows + at) for at, rows in enumerate((30, 200, 200)))
    rotation = torch.linalg.qr(
        torch.randn(8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    )[0]
    spread = torch.ones(8, dtype=torch.float64)
    spread[-1] = 1 / condition
    k = k * spread @ rotation
    q[:, ::3] = q[:, ::3, -1:] * rotation[-1]
    return [x.to(dtype) for x in (q, k, v)]


def test_a_sum_of_squares_that_cancels_below_zero_counts_as_zero():
    q, k, v = ill_conditioned_call(condition=1e6)
    eps = 1e-9
    moments = Moments.of(k, v)
    assert ((q @ moments.g * q).sum(-1) < 0).any()
    floor = eps * q.square().sum(-1) * moments.trace[:, None]
    _, inverse, _ = moments.attend(q, eps)
    assert (inverse[..., 0].square() * floor <= 1 + 1e-5).all()
    assert (inverse > 0).all()


@pytest.mark.parametrize("condition", [1e2, 1e3])
def test_ill_conditioned_rows_are_recomputed_to_the_accuracy_of_the_stream(condition):
    q, k, v = ill_conditioned_call(condition)
    grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(1))
    dense = [x[:, None] for x in (q, k, v)]
    for attend in (moment_attention, stream_attention):

        def call(q, k, v, m, attend=attend):
            return attend(q[:, 0], m[:, :, None] * k[:, 0], v[:, 0], 1e-6)[:, None]

        assert_accurate(call, [*dense, torch.ones(k.shape[:2])], grad[:, None])


@pytest.mark.parametrize("scores", [1, 20, 50])
def test_a_stream_in_chunks_of_keys_is_the_stream_in_one_go(draw, monkeypatch, scores):
    call = draw(cells=1, heads=1, key_heads=1)
    *rows, grad = (x[:, 0] for x in (call.q, call.k, call.v, call.grad))
    attend = partial(stream_attention, eps=0.1)
    whole = with_gradients(attend, rows, grad)
    monkeypatch.setattr(streaming, "CHUNK_SCORES", scores)
    assert len(list(streaming.key_chunks(7, 9))) > 1
    torch.testing.assert_close(with_gradients(attend, rows, grad), whole)
