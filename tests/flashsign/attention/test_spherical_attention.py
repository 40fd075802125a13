"""Spherical attention is its definition, by torch and by every kernel, and has the definition's
laws.

Triton's kernels run on a GPU where there is one, else in Triton's interpreter.
"""

from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from kernel_cases import (
    DEVICE,
    assert_accurate,
    doubled,
    draw,
    errors,
    exact,
    one_by_one,
    packed,
    poison,  # noqa: F401
    with_gradients,
)

from flashsign import edge_weights, spherical_attention
from flashsign.attention import dispatch
from flashsign.attention.reference import reference_spherical_attention
from flashsign.tuning.accuracy import TENSORS


@dataclass(frozen=True)
class Way:
    """One way to compute it, in torch and float64 or by a kernel, and no other."""

    kernel: str

    @property
    def in_torch(self):
        return self.kernel.startswith("torch")

    def draw(self, **options):
        own = {"dtype": torch.float64, "device": "cpu"} if self.in_torch else {}
        return draw(**own | options)

    def __call__(self, *tensors, **options):
        backend, method = dispatch.KERNELS[self.kernel]
        with dispatch.only(self.kernel):
            return spherical_attention(*tensors, method=method, backend=backend, **options)


def ways(*names):
    without = pytest.mark.skipif(not find_spec("triton"), reason="there is no Triton here")
    marked = [pytest.param(name, marks=without) if "triton" in name else name for name in names]
    return pytest.mark.parametrize("way", marked, indirect=True)


@pytest.fixture
def way(request):
    return Way(request.param)


every_way = ways(
    "torch_stream", "torch_moments", "triton_stream", "triton_small_bags", "triton_moments"
)
in_torch = ways("torch_stream", "torch_moments")
one_operator_each = ways("triton_stream", "triton_moments")


def assert_same(found, true, bar=1e-6):
    within = 1e-10 if found[0].dtype == torch.float64 else bar
    assert max(errors(found, true).values()) < within


SIZES = [
    {},
    {"queries": 67, "keys": 19, "heads": 2, "key_heads": 1},
    {"width": 20, "keys": 33, "cells": 1, "per_head": True},
    {"queries": 1, "keys": 7},
    {"width": 16, "values": 1},
    {"width": 16, "values": 24},
    {"width": 32, "queries": 9, "keys": 33, "cells": 1, "values": 2},
]
# In the interpreter dtypes differ by their rounding alone, and products of bfloat16 are wrong; a
# compiler makes another kernel of each.
HALVES = (
    [(sizes, dtype) for sizes in SIZES for dtype in (torch.float16, torch.bfloat16)]
    if DEVICE.type == "cuda"
    else [(sizes, torch.float16) for sizes in SIZES[1:3]]
)


@every_way
@pytest.mark.parametrize(("sizes", "dtype"), [(each, None) for each in SIZES] + HALVES, ids=str)
def test_it_is_the_definition_with_its_gradients(way, sizes, dtype):
    """Some genes are absent, and have the true derivative for their multiplicity."""
    *tensors, grad = way.draw(**sizes | ({"dtype": dtype} if dtype else {}))
    tensors[3][..., ::5] = 0
    assert_accurate(way, tensors, grad)


@every_way
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_eps_counts_forward_and_backward(way, eps):
    *tensors, grad = way.draw()
    assert_accurate(way, tensors, grad, eps=eps)


@one_operator_each
@pytest.mark.parametrize(("dtype", "values"), [(torch.float32, 64), (torch.float16, 16)])
def test_long_bags_and_wide_heads(way, dtype, values):
    *tensors, grad = way.draw(dtype=dtype, width=64, queries=9, keys=130, cells=1, values=values)
    assert_accurate(way, tensors, grad)


@every_way
@pytest.mark.parametrize("value", [5.0, float("nan"), float("inf")])
def test_multiplicity_zero_is_dropping_the_gene(way, value):
    q, k, v, m, grad = way.draw(cells=1)
    absent = torch.arange(40, device=q.device) % 9 == 5
    m[:, absent], k[:, :, absent], v[:, :, absent] = 0, value, -value
    o, dq, dk, dv, dm = with_gradients(way, (q, k, v, m), grad)
    assert not dk[:, :, absent].any() and not dv[:, :, absent].any() and dm.isfinite().all()
    kept = q, k[:, :, ~absent], v[:, :, ~absent], m[:, ~absent]
    found = o, dq, dk[:, :, ~absent], dv[:, :, ~absent], dm[:, ~absent]
    assert_same(found, with_gradients(exact, doubled(kept), grad))


@every_way
def test_a_broken_number_of_a_present_key_is_not_hidden(way):
    q, k, v, m, _ = way.draw()
    v[0, 0, 3, 2] = torch.nan
    assert way(q, k, v, m)[0, 0, :, 2].isnan().all()


@every_way
@pytest.mark.parametrize(
    "sizes",
    [{"width": 20, "per_head": True}, {"dtype": torch.float16}, {"values": 5}, {"values": 20}],
    ids=str,
)
def test_packed_bags_are_the_bags_one_by_one(way, sizes):
    tensors, grad, cut = packed(*way.draw(cells=1, **sizes))
    found = with_gradients(lambda *x: way(*x, **cut), tensors, grad)
    true = with_gradients(lambda *x: one_by_one(*x, **cut), doubled(tensors), grad)
    assert_same(found, true, 4 * max(torch.finfo(grad.dtype).eps, 2.5e-7))


@every_way
def test_offsets_that_change_are_read_again(way):
    tensors, _, cut = packed(*way.draw(cells=1))
    way(*tensors, **cut)
    cut["offsets"][1:3] = 12
    again = {name: bounds.clone() for name, bounds in cut.items()}
    assert torch.equal(way(*tensors, **cut), way(*tensors, **again))


@every_way
def test_a_broken_bag_leaves_its_neighbours_alone(way):
    (q, k, v, m), grad, cut = packed(*way.draw(cells=1))
    clean = with_gradients(lambda *x: way(*x, **cut), (q, k, v, m), grad)
    k[33:], v[33:], q[29:], grad[29:] = (torch.nan,) * 4
    broken = with_gradients(lambda *x: way(*x, **cut), (q, k, v, m), grad)
    for name, x, y, end in zip(TENSORS, broken, clean, (29, 29, 33, 33, 33), strict=True):
        torch.testing.assert_close(x[:end], y[:end], msg=name)


@every_way
@pytest.mark.parametrize("layout", ["heads beside each other", "rows at any byte"])
def test_any_layout_gives_the_same_results(way, layout):
    q, k, v, m, grad = way.draw()
    if layout == "rows at any byte":
        q, k = (torch.cat([x, x], -1)[..., 1:17] for x in (q, k))
    else:
        q, k, v, grad = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, grad))
    assert_accurate(way, (q, k, v, m), grad)


@every_way
@pytest.mark.parametrize("power", [-6, 5])
def test_the_unit_of_queries_and_of_all_multiplicities_changes_no_bit(way, power):
    q, k, v, m, _ = way.draw(cells=1, dtype=torch.float32)
    output = way(q, k, v, m)
    assert torch.equal(way(q * 2.0**power, k, v, m), output)
    # far from one they neither overflow nor vanish
    for unit in (4 * power, 20 * power) if way.in_torch else (4 * power,):
        assert torch.equal(way(q, k, v, m * 2.0**unit), output)


@every_way
def test_a_multiplicity_of_100000_beside_one_of_1(way):
    *tensors, grad = way.draw(dtype=torch.float16)
    tensors[3][:, ::5] = 1e5
    found = with_gradients(way, tensors, grad)
    assert_same(found, with_gradients(exact, doubled(tensors), grad), 2e-3)


@every_way
@pytest.mark.parametrize("size", [3e3, 1.6e4])
def test_gradients_of_a_large_key_alone_are_in_the_range_of_16_bits(way, size):
    q, k, v, m, grad = way.draw(keys=1, queries=20, width=64, dtype=torch.float16)
    tensors = q / size, k.sign() * size, v, torch.ones_like(m)  # m k is exact
    found, true = (
        with_gradients(attend, x, grad)[3]
        for attend, x in ((way, tensors), (exact, doubled(tensors)))
    )
    assert (found - true).norm() < 2e-3 * true.norm()


@every_way
@pytest.mark.parametrize("zero", ["multiplicity", "queries", "keys", "values"])
def test_bags_of_zeros_give_zeros_forward_and_backward(way, zero):
    *tensors, grad = way.draw(cells=1)
    tensors[("queries", "keys", "values", "multiplicity").index(zero)].zero_()
    o, *gradients = with_gradients(way, tensors, grad)
    assert not o.any() and all(x.isfinite().all() for x in gradients)
    assert zero == "values" or not any(x.any() for x in gradients)


@every_way
def test_a_packed_bag_of_absent_keys_gives_zeros_forward_and_backward(way):
    tensors, grad, cut = packed(*way.draw(cells=1))
    tensors[3][5:33] = 0
    o, dq, *of_keys = with_gradients(lambda *x: way(*x, **cut), tensors, grad)
    assert not o[10:29].any() and not dq[10:29].any() and o[:10].any()
    assert not any(x[5:33].any() for x in of_keys) and of_keys[0][:5].any()


@in_torch
@pytest.mark.parametrize("form", ["dense", "packed"])
def test_calls_without_keys_queries_or_cells_are_zeros_of_the_right_shape(way, form):
    for cells, queries, keys in ((2, 3, 0), (2, 0, 3), (0, 3, 3)):
        *tensors, _ = way.draw(cells=cells, queries=queries, keys=keys)
        cut = {}
        if form == "packed":
            rows = (x.transpose(1, 2).flatten(0, 1) for x in tensors[:3])
            tensors = *rows, tensors[3].flatten()
            of_bags = torch.arange(cells + 1)
            cut = {"offsets": of_bags * keys, "query_offsets": of_bags * queries}
        leaves = [x.requires_grad_() for x in tensors]
        output = way(*leaves, **cut)
        gradients = torch.autograd.grad(
            output.sum(), leaves, allow_unused=True, materialize_grads=True
        )
        assert output.shape == tensors[0].shape
        assert not any(x.any() for x in (output, *gradients))


@ways("triton_stream")
def test_the_same_call_twice_gives_the_same_bits(way):
    *tensors, grad = way.draw(cells=1, dtype=torch.float16, keys=150)
    first, second = (with_gradients(way, tensors, grad) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@every_way
def test_a_batched_backward_and_one_under_autocast(way):
    *tensors, _ = way.draw(cells=1, queries=9, keys=11)
    q, *others = (x.requires_grad_() for x in tensors)
    output = way(q, *others)
    grads = torch.randn(3, *output.shape, device=q.device, dtype=q.dtype)

    def dq(grad, **options):
        return torch.autograd.grad(output, q, grad, retain_graph=True, **options)[0]

    batched = dq(grads, is_grads_batched=True)
    torch.testing.assert_close(batched, torch.stack([dq(grad) for grad in grads]))
    with torch.autocast(q.device.type, torch.bfloat16):
        cast = dq(grads[0], create_graph=True)
    torch.testing.assert_close(cast, dq(grads[0], create_graph=True))


@one_operator_each
def test_second_derivatives_of_kernels_are_those_of_torch(way):
    *tensors, grad = way.draw(cells=1, queries=5, keys=6)

    def norm_of_gradients(attend):
        leaves = [x.detach().clone().requires_grad_() for x in tensors]
        first = torch.autograd.grad(attend(*leaves), leaves, grad, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

    for x, y in zip(norm_of_gradients(way), norm_of_gradients(exact), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def small(way):
    """Leaves of a call that can be differentiated number by number."""
    *tensors, _ = way.draw(heads=2, key_heads=1, queries=3, keys=4, width=2)
    return [x.requires_grad_() for x in tensors]


@in_torch
@pytest.mark.parametrize("eps", [1e-6, 0.3])
def test_first_and_second_derivatives_are_finite_differences(way, eps):
    def attend(*leaves):
        return way(*leaves, eps=eps)

    every = ("batched_grad", "forward_ad", "batched_forward_grad")
    assert torch.autograd.gradcheck(attend, small(way), **{f"check_{name}": True for name in every})
    assert torch.autograd.gradgradcheck(attend, small(way))


@in_torch
@pytest.mark.parametrize("form", ["dense", "packed"])
def test_forward_mode_is_the_finite_difference_and_not_silently_zero(way, form):
    leaves = tuple(x.detach() for x in small(way))
    tangents, step = tuple(map(torch.randn_like, leaves)), 1e-6

    def attend(q, k, v, m):
        if form == "dense":
            return way(q, k, v, m)
        rows = (y.transpose(1, 2).flatten(0, 1) for y in (q, k, v))
        cut = {"offsets": torch.arange(3) * 4, "query_offsets": torch.arange(3) * 3}
        return way(*rows, m.flatten(), **cut)

    def moved(by):
        return attend(*(x + by * t for x, t in zip(leaves, tangents, strict=True)))

    output, found = torch.func.jvp(attend, leaves, tangents)
    torch.testing.assert_close(output, attend(*leaves))
    expected = (moved(step) - moved(-step)) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert found.abs().max() > 1e-2
    with torch.autograd.forward_ad.dual_level():
        dual = attend(*map(torch.autograd.forward_ad.make_dual, leaves, tangents))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, found)


@in_torch
def test_the_backward_keeps_nothing_of_size_queries_times_keys(way):
    *tensors, _ = way.draw(cells=1, heads=1, key_heads=1, queries=60, keys=70, width=2)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        way(*(x.requires_grad_() for x in tensors))
    assert kept and max(kept) <= 70 * 2


def test_multiplicities_below_the_smallest_normal_number_are_as_good_as_any():
    q, k, m = torch.randn(1, 1, 5, 4), torch.randn(1, 1, 7, 4), torch.arange(1.0, 8.0)[None]
    found, expected = (spherical_attention(q, k, k, each) for each in (m * 1e-40, m))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# --- laws of the definition, which every way has that computes it


def test_any_positive_scale_of_queries_and_multiplicities_is_invisible(bag):
    q, k, v, m, _ = bag
    scaled = spherical_attention(3.3 * q, k, v, 0.7 * m)
    torch.testing.assert_close(scaled, spherical_attention(q, k, v, m))


def test_permuting_keys_changes_nothing_and_permuting_queries_permutes_rows(bag):
    q, k, v, m, _ = bag
    output = spherical_attention(q, k, v, m)
    keys, queries = torch.randperm(9), torch.randperm(7)
    found = spherical_attention(q[:, :, queries], k[:, :, keys], v[:, :, keys], m[:, keys])
    torch.testing.assert_close(found, output[:, :, queries])


@pytest.mark.parametrize(
    ("flipped", "weights_flip"), [("qo", True), ("kv", True), ("vo", False)], ids=str
)
def test_flips_of_two_projections_leave_the_layers_output_unchanged(bag, flipped, weights_flip):
    o = torch.randn(4, 3, 5, dtype=torch.float64)

    def layer(flipped):
        q, k, v, last = (
            -x if name in flipped else x
            for name, x in zip("qkvo", (bag.q, bag.k, bag.v, o), strict=True)
        )
        mixed = spherical_attention(q, k, v, bag.m)
        return torch.einsum("chne,hed->cnd", mixed, last), edge_weights(q, k, bag.m)

    (output, weights), (same, others) = layer(""), layer(flipped)
    torch.testing.assert_close(same, output)
    torch.testing.assert_close(others, -weights if weights_flip else weights)


def test_edge_weights_times_values_are_the_attention_also_where_absent_keys_are_nan(bag):
    q, k, v, m, _ = bag
    v = v.repeat_interleave(2, 1)
    torch.testing.assert_close(edge_weights(q, k, m) @ v, spherical_attention(*bag[:4]))
    k[:, :, 3], m[:, 3] = torch.nan, 0
    weights = edge_weights(q, k, m)
    assert weights.isfinite().all() and not weights[..., 3].any() and weights[..., :3].all()
    expected = reference_spherical_attention(q, k, bag.v, m)
    torch.testing.assert_close(spherical_attention(q, k, bag.v, m), expected)
