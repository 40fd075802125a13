import pytest
import torch

from flashsign.algebra.fold import fold
from flashsign.algebra.rows.attention import spherical_monoid
from flashsign.eager import streaming
from flashsign.eager.streaming import inverse_norm, stream_attention


def one_bag(draw, **sizes):
    call = draw(cells=1, heads=1, key_heads=1, **sizes)
    return call, call.q[:, 0], call.m[:, None].mT * call.k[:, 0], call.v[:, 0]


@pytest.mark.parametrize("scores", [1, 20, 50])
def test_a_stream_in_chunks_of_keys_is_the_stream_in_one_go(draw, monkeypatch, scores):
    call, q, k, v = one_bag(draw)
    whole = stream_attention(q, k, v, 0.1)
    expected = call.gradients(whole, call.grad[:, 0])
    monkeypatch.setattr(streaming, "CHUNK_SCORES", scores)
    assert len(list(streaming.key_chunks(7, 9))) > 1
    chunked = stream_attention(q, k, v, 0.1)
    torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close(call.gradients(chunked, call.grad[:, 0]), expected)


@pytest.mark.parametrize("eps", [1e-6, 0.3])
def test_the_stream_is_the_fold_of_its_monoid_with_its_gradients(draw, eps):
    call, q, k, v = one_bag(draw)
    monoid = spherical_monoid(eps)
    items, shared = (call.k[0, 0], call.v[0, 0], call.m[0]), (call.q[0, 0],)
    folded = monoid.finish(fold(monoid, items, shared, chunk=4), shared)
    streamed = stream_attention(q, k, v, eps)[0]
    torch.testing.assert_close(streamed, folded)
    torch.testing.assert_close(call.gradients(streamed, call.grad[0, 0]), call.gradients(folded, call.grad[0, 0]))


def test_chunks_of_keys_cover_every_key_once():
    for keys in (0, 1, 5, 12):
        covered = [key for chunk in streaming.key_chunks(3_000_000, keys) for key in range(keys)[chunk]]
        assert covered == list(range(keys))


def test_a_row_without_a_norm_has_no_weight():
    z = torch.tensor([0.0, 4.0])
    assert inverse_norm(z, torch.zeros(2)).tolist() == [0.0, 0.5]
