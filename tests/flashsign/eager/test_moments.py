"""What moments, packed bags and the stream have of their own in torch; laws of all: test_attention.py."""

import pytest
import torch

from flashsign import spherical_attention
from flashsign.algebra.fold import fold
from flashsign.algebra.rows.attention import spherical_monoid
from flashsign.eager import streaming
from flashsign.eager.moments import Moments, moment_attention
from flashsign.eager.packing import Slots, similar_bags
from flashsign.eager.streaming import inverse_norm, stream_attention
from flashsign.reference import reference_spherical_attention
from flashsign.tuning.accuracy import TENSORS, Case, table


def tensors(bags=3, queries=6, keys=20, width=4, dtype=torch.float64, seed=0):
    random = torch.Generator().manual_seed(seed)
    shapes = (bags, queries, width), (bags, keys, width), (bags, keys, width)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]


def ill_conditioned_call(condition=1e3, dtype=torch.float32):
    """Keys with one direction `condition` times weaker than the rest; every third query points along it."""
    q, k, v = tensors(queries=30, keys=200, width=8)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64))[0]
    spread = torch.ones(8, dtype=torch.float64)
    spread[-1] = 1 / condition
    k = k * spread @ rotation
    q[:, ::3] = q[:, ::3, -1:] * rotation[-1]
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def exact(q, k, v):
    """The definition in float64 on the same rounded inputs, with fresh leaves."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    dense = [x[:, None] for x in leaves]
    return reference_spherical_attention(*dense, torch.ones(1, dtype=torch.float64).expand(k.shape[:2]))[:, 0], leaves


def relative(found, true):
    return float((found.detach().double() - true.detach()).norm() / true.detach().norm())


def test_moments_of_parts_add_up_to_moments_of_the_whole():
    q, k, v = tensors()
    parts = Moments.of(k[:, :7], v[:, :7]).plus(Moments.of(k[:, 7:], v[:, 7:]))
    whole = Moments.of(k, v)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(whole.trace, k.square().sum((-2, -1)))
    torch.testing.assert_close(parts.attend(q, 0.1), whole.attend(q, 0.1))


def test_random_queries_are_never_ill_conditioned():
    q, k, v = tensors(queries=5000, keys=500, width=64, dtype=torch.float32)
    assert not Moments.of(k, v).attend(q, 1e-6)[2].any()


def test_queries_along_a_direction_that_keys_hardly_have_are_ill_conditioned_and_no_others():
    q, k, v = (x.detach() for x in ill_conditioned_call())
    ill_conditioned = Moments.of(k, v).attend(q, 1e-6)[2]
    assert ill_conditioned[:, ::3].all()
    assert ill_conditioned.sum() == ill_conditioned[:, ::3].numel()


def test_a_sum_of_squares_that_cancels_below_zero_counts_as_zero():
    q, k, v = (x.detach() for x in ill_conditioned_call(condition=1e6))
    eps = 1e-9
    moments = Moments.of(k, v)
    assert ((q @ moments.g * q).sum(-1) < 0).any()
    floor = eps * q.square().sum(-1) * moments.trace[:, None]
    _, inverse, _ = moments.attend(q, eps)
    assert (inverse[..., 0].square() * floor <= 1 + 1e-5).all()
    assert (inverse > 0).all()


def test_float64_moments_are_accurate_for_rows_that_are_ill_conditioned_in_float32():
    q, k, v = (x.detach() for x in ill_conditioned_call(dtype=torch.float64))
    assert not Moments.of(k, v).attend(q, 1e-6)[2].any()


@pytest.mark.parametrize("condition", [1e2, 1e3])
def test_ill_conditioned_rows_are_recomputed_to_the_accuracy_of_the_stream(condition):
    q, k, v = ill_conditioned_call(condition)
    grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(1))
    case = Case(*(x[:, None] for x in (q, k, v)), torch.ones(k.shape[:2]), grad[:, None])
    for attend in (moment_attention, stream_attention):
        output = attend(q, k, v, 1e-6)
        found = (output.detach(), *torch.autograd.grad(output, (q, k, v), grad))
        verdicts = case.judge({name: x[:, None] for name, x in zip(TENSORS, found, strict=False)})
        assert all(verdict.good for verdict in verdicts.values()), table(verdicts)


def test_ill_conditioned_rows_keep_their_accuracy_where_a_second_derivative_may_follow():
    q, k, v = ill_conditioned_call(1e3)
    true, leaves = exact(q, k, v)
    expected = torch.autograd.grad(true.sum(), leaves)
    found = torch.autograd.grad(moment_attention(q, k, v, 1e-6).sum(), (q, k, v), create_graph=True)
    assert max(relative(ours, truth) for ours, truth in zip(found, expected, strict=True)) < 2e-5


def test_without_recomputation_ill_conditioned_rows_would_be_wrong():
    """What the test above guards against is there: float32 moments alone lose three digits more."""
    q, k, v = ill_conditioned_call(1e3)
    true, _ = exact(q, k, v)
    rows = slice(None, None, 3)
    streamed = relative(moment_attention(q, k, v, 1e-6)[:, rows], true[:, rows])
    assert relative(Moments.of(k, v).attend(q, 1e-6)[0][:, rows], true[:, rows]) > 100 * streamed


def test_ill_conditioned_rows_of_a_call_with_fewer_keys_than_width_are_right():
    call = tensors(queries=40, keys=2, width=16, dtype=torch.float32)
    q, k, v = (x.requires_grad_() for x in call)
    q.data[:, 0] -= (q[:, 0] @ torch.linalg.pinv(k.detach()) @ k.detach())[:, 0] * (1 - 1e-3)
    true, leaves = exact(q, k, v)
    output = moment_attention(q, k, v, 1e-6)
    grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(1))
    assert relative(output, true) < 1e-5
    gradients = torch.autograd.grad(output, (q, k, v), grad)
    expected = torch.autograd.grad(true, leaves, grad.double())
    assert max(relative(found, truth) for found, truth in zip(gradients, expected, strict=True)) < 1e-4


def test_a_batched_backward_handles_ill_conditioned_rows():
    q, k, v = ill_conditioned_call()
    output = moment_attention(q, k, v, 1e-6)
    grads = torch.randn(4, *q.shape, generator=torch.Generator().manual_seed(1))
    batched = torch.autograd.grad(output, (q, k, v), grads, is_grads_batched=True, retain_graph=True)
    for i, grad in enumerate(grads):
        for found, expected in zip(
            batched, torch.autograd.grad(output, (q, k, v), grad, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(found[i], expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_moments_of_long_bags_match_the_stream():
    q, k, v = (x[:, None] for x in tensors(bags=1, queries=300, keys=3000, width=16, dtype=torch.float32))
    moments, stream = (spherical_attention(q, k, v, method=method) for method in ("moments", "stream"))
    assert relative(moments, stream.double()) < 1e-5


def test_padding_and_unpadding_give_the_rows_back():
    rows = torch.randn(9, 2)
    slots = Slots.of(torch.tensor([5, 0, 3]), torch.tensor([4, 3, 0]))
    padded = slots.pad(rows)
    assert padded.shape == (3, 4, 2)
    assert not padded[1, 3].any()
    assert not padded[2].any()
    torch.testing.assert_close(slots.unpad(padded), torch.cat((rows[5:9], rows[0:3])))


def test_what_lies_in_other_bags_never_enters_the_padding():
    rows = torch.full((3, 1), torch.nan)
    rows[1:] = 1
    assert Slots.of(torch.tensor([1]), torch.tensor([1])).pad(rows).tolist() == [[[1.0]]]
    assert Slots.of(torch.tensor([1, 1]), torch.tensor([1, 2])).pad(rows)[0].flatten().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("seed", range(3))
def test_similar_bags_hold_every_bag_once_and_pad_by_less_than_half(seed):
    random = torch.Generator().manual_seed(seed)
    sizes, query_sizes = (torch.randint(0, 3000, (40,), generator=random) for _ in range(2))
    groups = list(similar_bags(sizes, query_sizes))
    assert sorted(torch.cat(groups).tolist()) == list(range(40))
    for group in groups:
        for of_group in (sizes[group], query_sizes[group]):
            assert of_group.max() + 1 <= 2**0.5 * (of_group.min() + 1)


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
