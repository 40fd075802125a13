"""What spherical attention is, theorem by theorem, through the public entry point."""

import pytest
import torch

from flashsign import edge_weights, spherical_attention
from flashsign.attention.reference import reference_spherical_attention
from flashsign.tuning.accuracy import TENSORS, Case, table


def close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.3])
def test_every_method_is_the_definition_with_its_gradients(bag, method, eps):
    found = spherical_attention(*bag.leaves, eps=eps, method=method)
    expected = reference_spherical_attention(*bag.leaves, eps=eps)
    close(found, expected)
    close(bag.gradients(found), bag.gradients(expected))


def test_one_multiplicity_per_key_head_is_the_definition(bag, method):
    m = torch.rand(2, 2, 9, dtype=torch.float64)
    m[:, 0, :3] = 0
    found = spherical_attention(bag.q, bag.k, bag.v, m, method=method)
    close(found, reference_spherical_attention(bag.q, bag.k, bag.v, m))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_values_may_be_narrower_or_wider_than_keys(bag, method, width):
    v = torch.randn(
        2, 2, 9, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    leaves = (bag.q, bag.k, v, bag.m)
    found = spherical_attention(*leaves, eps=0.1, method=method)
    expected = reference_spherical_attention(*leaves, eps=0.1)
    assert found.shape == (2, 4, 7, width)
    close(found, expected)
    grad = torch.randn_like(found)
    gradients = torch.autograd.grad(found, leaves, grad)
    close(gradients, torch.autograd.grad(expected, leaves, grad))
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (bag.q, bag.k, v))
    offsets, query_offsets = torch.tensor([0, 9, 18]), torch.tensor([0, 7, 14])
    packing = {"offsets": offsets, "query_offsets": query_offsets, "eps": 0.1, "method": method}
    close(
        spherical_attention(q, k, v, bag.m.flatten(), **packing)
        .unflatten(0, (2, 7))
        .transpose(1, 2),
        expected,
    )
    none = torch.tensor([0])
    empty = spherical_attention(q[:0], k[:0], v[:0], offsets=none, method=method)
    assert empty.shape == (0, 4, width)


@pytest.mark.parametrize("power", [-20, -3, 1, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_unit_of_queries_and_of_all_multiplicities_changes_no_bit(draw, method, power, dtype):
    q, k, v, m = draw(dtype=dtype).leaves
    output = spherical_attention(q, k, v, m, method=method)
    assert torch.equal(spherical_attention(q * 2.0**power, k, v, m, method=method), output)
    for unit in (power, -110, 110):  # far from one they neither overflow nor vanish
        assert torch.equal(spherical_attention(q, k, v, m * 2.0**unit, method=method), output)


def test_any_positive_scale_of_queries_and_multiplicities_is_invisible(bag, method):
    q, k, v, m = bag.leaves
    close(
        spherical_attention(3.3 * q, k, v, 0.7 * m, method=method),
        spherical_attention(q, k, v, m, method=method),
    )


@pytest.mark.parametrize("value", [5.0, float("nan"), float("inf")])
def test_multiplicity_zero_is_dropping_the_gene(bag, method, value):
    q, k, v, m = (x.detach().clone() for x in bag.leaves)
    absent = [1, 4, 8]
    present = [0, 2, 3, 5, 6, 7]
    m[:, absent] = 0
    k[:, :, absent] = value
    v[:, :, absent] = -value
    leaves = [x.requires_grad_() for x in (q, k, v, m)]
    output = spherical_attention(*leaves, method=method)
    dropped = spherical_attention(
        q, k[:, :, present], v[:, :, present], m[:, present], method=method
    )
    close(output, dropped)
    gradients = torch.autograd.grad(output, leaves, bag.grad)
    expected = torch.autograd.grad(dropped, leaves, bag.grad)
    assert all(gradient.isfinite().all() for gradient in gradients)
    close(gradients[:3], expected[:3])
    close(gradients[3][:, present], expected[3][:, present])
    assert not gradients[1][:, :, absent].any()
    assert not gradients[2][:, :, absent].any()


def test_an_absent_gene_still_has_the_true_derivative_for_its_multiplicity(bag, method):
    m = bag.m.detach().clone()
    m[:, 2] = 0
    m.requires_grad_()
    found, expected = (
        torch.autograd.grad(attend(bag.q, bag.k, bag.v, m), m, bag.grad)[0]
        for attend in (
            lambda *call: spherical_attention(*call, method=method),
            reference_spherical_attention,
        )
    )
    close(found, expected)
    assert found[:, 2].abs().min() > 1e-3


def test_permuting_keys_changes_nothing_and_permuting_queries_permutes_rows(bag, method):
    q, k, v, m = bag.leaves
    output = spherical_attention(q, k, v, m, method=method)
    keys, queries = torch.randperm(9), torch.randperm(7)
    close(spherical_attention(q, k[:, :, keys], v[:, :, keys], m[:, keys], method=method), output)
    close(spherical_attention(q[:, :, queries], k, v, m, method=method), output[:, :, queries])


@pytest.mark.parametrize("zero", ["everything", "multiplicity", "queries", "keys", "values"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_bag_of_zeros_gives_zeros_forward_and_backward(draw, method, zero, dtype):
    call = draw(dtype=dtype)
    names = {"queries": "q", "keys": "k", "values": "v", "multiplicity": "m"}
    for name, letter in names.items():
        if zero in (name, "everything"):
            getattr(call, letter).data.zero_()
    output = spherical_attention(*call.leaves, method=method)
    assert torch.equal(output, torch.zeros_like(output))
    gradients = call.gradients(output)
    assert all(gradient.isfinite().all() for gradient in gradients)
    if zero != "values":
        assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize(
    ("flipped", "weights_flip"),
    [("qo", True), ("kv", True), ("vo", False)],
    ids=["q and o", "k and v", "v and o"],
)
def test_flips_of_two_projections_leave_the_layers_output_unchanged(
    draw, method, flipped, weights_flip
):
    call = draw(heads=2, key_heads=2)
    o = torch.randn(2, 3, 5, dtype=torch.float64)
    signs = {name: -1.0 if name in flipped else 1.0 for name in "qkvo"}

    def layer(signs):
        q, k, v = signs["q"] * call.q, signs["k"] * call.k, signs["v"] * call.v
        mixed = spherical_attention(q, k, v, call.m, method=method)
        return torch.einsum("chne,hed->cnd", mixed, signs["o"] * o), edge_weights(q, k, call.m)

    (output, weights), (flipped_output, flipped_weights) = (
        layer(dict.fromkeys("qkvo", 1.0)),
        layer(signs),
    )
    close(flipped_output, output)
    close(flipped_weights, -weights if weights_flip else weights)


def test_grouped_heads_are_repeated_keys_and_values(bag, method):
    k, v = bag.k.repeat_interleave(2, 1), bag.v.repeat_interleave(2, 1)
    grouped = spherical_attention(*bag.leaves, method=method)
    repeated = spherical_attention(bag.q, k, v, bag.m, method=method)
    close(grouped, repeated)
    close(bag.gradients(grouped), bag.gradients(repeated))


def pack(rows, sizes):
    """[C, heads, L, E] -> [T, heads, E], the first sizes[c] rows of every cell."""
    return torch.cat([cell.transpose(0, 1)[:size] for cell, size in zip(rows, sizes, strict=True)])


def offsets_of(sizes):
    return torch.tensor([0, *sizes]).cumsum(0)


@pytest.mark.parametrize("per_head", [False, True])
def test_packed_bags_are_dense_bags_with_their_gradients(draw, method, per_head):
    call = draw(cells=5, keys=9, queries=7)
    sizes, query_sizes = [9, 1, 0, 8, 3], [7, 7, 2, 0, 6]
    packed_m = pack(call.m[:, None, :, None].expand(5, 2, 9, 1), sizes).squeeze(-1)
    packed_m = packed_m if per_head else packed_m[:, 0]
    packed = spherical_attention(
        pack(call.q, query_sizes),
        pack(call.k, sizes),
        pack(call.v, sizes),
        packed_m,
        offsets=offsets_of(sizes),
        query_offsets=offsets_of(query_sizes),
        method=method,
    )
    mask = (torch.arange(9) < torch.tensor(sizes)[:, None]).double()
    dense = spherical_attention(call.q, call.k, call.v, call.m * mask, method=method)
    close(packed, pack(dense, query_sizes))
    close(
        call.gradients(packed, pack(call.grad, query_sizes)),
        call.gradients(pack(dense, query_sizes), pack(call.grad, query_sizes)),
    )


def zero_gradients(output, leaves):
    return torch.autograd.grad(output.sum(), leaves, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("form", ["dense", "packed"])
def test_calls_without_keys_queries_or_cells_are_zeros_of_the_right_shape(draw, method, form):
    for cells, queries, keys in ((2, 3, 0), (2, 0, 3), (0, 3, 3)):
        call = draw(cells=cells, queries=queries, keys=keys)
        if form == "dense":
            output = spherical_attention(*call.leaves, method=method)
            assert output.shape == call.q.shape
        else:
            q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (call.q, call.k, call.v))
            offsets = {
                "offsets": torch.arange(cells + 1) * keys,
                "query_offsets": torch.arange(cells + 1) * queries,
            }
            output = spherical_attention(q, k, v, call.m.flatten(), method=method, **offsets)
            assert output.shape == q.shape
        assert not output.any()
        assert not any(gradient.any() for gradient in zero_gradients(output, call.leaves))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_forward_and_backward_are_as_accurate_as_the_dtype_allows(draw, method, dtype):
    call = draw(queries=64, keys=80, width=16, dtype=dtype)
    output = spherical_attention(*call.leaves, method=method)
    assert output.dtype == dtype
    found = dict(zip(TENSORS, (output.detach(), *call.gradients(output)), strict=True))
    verdicts = Case(*call.leaves, call.grad).judge(found)
    assert all(verdict.good for verdict in verdicts.values()), table(verdicts)


def small(draw):
    return draw(cells=2, heads=2, key_heads=1, queries=3, keys=4, width=2)


@pytest.mark.parametrize("eps", [1e-6, 0.3])
def test_gradients_forward_batched_and_second_derivatives_against_finite_differences(
    draw, method, eps
):
    call = small(draw)

    def attend(*leaves):
        return spherical_attention(*leaves, eps=eps, method=method)

    assert torch.autograd.gradcheck(
        attend,
        call.leaves,
        check_batched_grad=True,
        check_forward_ad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(attend, call.leaves)


@pytest.mark.parametrize("argument", range(4))
@pytest.mark.parametrize("form", ["dense", "packed"])
def test_jvp_is_the_finite_difference_and_not_silently_zero(draw, method, form, argument):
    call = small(draw)
    leaves = [x.detach() for x in call.leaves]
    tangent, step = torch.randn_like(leaves[argument]), 1e-6

    def attend(x):
        q, k, v, m = (*leaves[:argument], x, *leaves[argument + 1 :])
        if form == "dense":
            return spherical_attention(q, k, v, m, method=method)
        rows = (y.transpose(1, 2).flatten(0, 1) for y in (q, k, v))
        offsets = {"offsets": torch.arange(3) * 4, "query_offsets": torch.arange(3) * 3}
        return spherical_attention(*rows, m.flatten(), method=method, **offsets)

    output, found = torch.func.jvp(attend, (leaves[argument],), (tangent,))
    expected = (
        attend(leaves[argument] + step * tangent) - attend(leaves[argument] - step * tangent)
    ) / (2 * step)
    close(output, attend(leaves[argument]))
    close(found, expected, 1e-6)
    assert found.abs().max() > 1e-2
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(leaves[argument], tangent)
        close(torch.autograd.forward_ad.unpack_dual(attend(dual)).tangent, found)


def test_the_backward_keeps_nothing_of_size_queries_times_keys(draw, method):
    call = draw(cells=1, heads=1, key_heads=1, queries=60, keys=70, width=2)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        spherical_attention(*call.leaves, method=method)
    assert kept
    assert max(kept) <= 70 * 2


def test_multiplicities_below_the_smallest_normal_number_are_as_good_as_any():
    q, k, m = torch.randn(1, 1, 5, 4), torch.randn(1, 1, 7, 4), torch.arange(1.0, 8.0)[None]
    torch.testing.assert_close(
        spherical_attention(q, k, k, m * 1e-40),
        spherical_attention(q, k, k, m),
        rtol=1e-4,
        atol=1e-5,
    )


def test_edge_weights_times_values_are_the_attention(bag, method):
    weights = edge_weights(bag.q, bag.k, bag.m)
    output = spherical_attention(*bag.leaves, method=method)
    torch.testing.assert_close(weights @ bag.v.repeat_interleave(2, 1), output)


def test_edge_weights_of_absent_keys_are_zero_even_where_keys_are_nan(bag):
    m, k = bag.m.detach().clone(), bag.k.detach().clone()
    m[:, 3], k[:, :, 3] = 0, torch.nan
    weights = edge_weights(bag.q, k, m)
    assert weights.isfinite().all()
    assert not weights[..., 3].any()
    assert weights[..., :3].abs().min() > 0
