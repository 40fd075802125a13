"""Split keys: which tiles have their keys split, that the splits' sums are those of all keys, and
NaN repair.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    DEVICE,
    draw,
    ill_conditioned,
    poison,  # noqa: F401
)
from torch.nn import functional as F

from flashsign.attention.call import AttentionCall
from flashsign.tuning import tables
from flashsign.tuning.accuracy import Case, error
from flashsign.tuning.block_sizes import BlockSizes
from flashsign.tuning.split_keys import MOST_SPLITS, SplitKeys

pytest.importorskip("triton")
from flashsign.triton.common.layout import TileAssignment
from flashsign.triton.streaming import stream_launches as stream
from flashsign.triton.streaming.nan_repair import repair_rows
from flashsign.triton.streaming.scaled_keys import ScaledKeys
from flashsign.triton.streaming.split_keys import add_split_keys


def called(q, k, v, m, offsets=None, query_offsets=None):
    m = m[:, None] if m.ndim == 2 else m
    return AttentionCall(q, k, v, m, offsets, query_offsets, 1e-6)


TALL, SHORT = BlockSizes(256, 64, 8, 5), BlockSizes(128, 64, 8, 5)


@given(st.integers(1, 10_000), st.integers(0, 100_000), st.integers(1, 200))
def test_every_tile_is_done_once_and_splitting_never_costs_more(tiles, keys, multiprocessors):
    plan = SplitKeys.of(tiles, keys, TALL, multiprocessors)
    assert plan.whole_tiles + plan.split_tiles == tiles
    assert plan.whole_tiles % multiprocessors == 0 or plan.split_tiles == 0
    assert (plan.splits > 1) == (plan.split_tiles > 0) and plan.splits <= MOST_SPLITS
    assert plan.cost <= -(-tiles // multiprocessors) * keys * TALL.own


@pytest.mark.parametrize(
    ("dtype", "values"), [(torch.float32, 32), (torch.float16, 32), (torch.float16, 16)]
)
def test_sums_of_splits_are_the_output(dtype, values):
    """Of tiles of 32 queries from the third on, in three splits;
    the other tiles stay as they were.
    """
    q, k, v, m, grad = draw(queries=50, keys=40, width=32, values=values, dtype=dtype)
    call = called(q, k, v, m)
    expected, inverse = stream.forward(call, tiles={"forward": BlockSizes(32, 16, 4, 1)})
    keys = ScaledKeys.of(call)
    tiles, own, splits = 2, 32, (16, 16, 8)
    plan = SplitKeys(2, 2 * 4 * tiles - 2, 3, 0.0)

    def of_tiles(x):
        return x.float().repeat_interleave(2 * tiles, 1).flatten(0, 1)[plan.whole_tiles :]

    rows = F.pad(q, (0, 0, 0, tiles * own - 50)).float().unflatten(2, (tiles, own)).flatten(0, 2)
    scores = (rows[plan.whole_tiles :] @ of_tiles(keys.rows).mT).split(splits, -1)
    parts = zip(scores, of_tiles(v).split(splits, 1), strict=True)
    sums = torch.stack([s @ x for s, x in parts], 1)
    squares = torch.stack([s.square().sum(-1) for s in scores], 1)
    sums[1, 0, 5] = torch.nan  # the second tile's first split, query 5
    o, norms = torch.full_like(expected, 7), torch.full_like(inverse, 7)
    add_split_keys(call, keys, sums.flatten(0, 2), squares.flatten(), tiles, own, plan, o, norms)
    assert (o[0, 0] == 7).all() and (norms[0, 0] == 7).all()
    o[0, 0], norms[0, 0] = expected[0, 0], inverse[0, 0]
    # That row stays marked for nan_repair.
    assert o[0, 1, 37].isnan().all() and torch.equal(norms < 0, o.isnan().any(-1))
    o[0, 1, 37] = expected[0, 1, 37]
    norms = norms.abs()
    assert Case(q, k, v, m, grad).judge({"o": o})["o"].good
    torch.testing.assert_close(norms, inverse, rtol=1e-5, atol=0)


@pytest.mark.parametrize("form", ["dense", "packed"])
def test_marked_rows_are_repaired_and_no_others(form):
    q, k, v, m, _ = draw(cells=1, queries=300, keys=40, width=16)
    cut = (None, None)
    if form == "packed":
        cut = tuple(torch.tensor(x, device=DEVICE) for x in ([0, 25, 40], [0, 20, 300]))
    m[..., 3], m[..., 30] = 0, 0
    call = called(q, k, v, m, *cut)
    o, inverse = stream.forward(call, tiles={"forward": BlockSizes(32, 16, 4, 1)})
    v[:, :, 3], v[:, :, 30] = torch.nan, torch.inf
    broken, marked = o.clone(), inverse.clone()
    inverse[0, 1, 200] = 0  # of a query that sees nothing
    o[0, 1, 200] = 0
    marked[0, 1, 200] = -0.0
    broken[0, 1, 200] = torch.nan
    broken[0, 2, 160], marked[0, 2, 160] = torch.nan, -marked[0, 2, 160]
    broken[0, 3, 5], marked[0, 3, 5] = 7, marked[0, 3, 5]  # of a tile without a mark
    repair_rows(call, ScaledKeys.of(call), broken, marked)
    torch.testing.assert_close(marked, inverse, rtol=0, atol=0)
    assert (broken[0, 3, 5] == 7).all()
    broken[0, 3, 5] = o[0, 3, 5]
    torch.testing.assert_close(broken, o)


@pytest.mark.parametrize("condition", [1e2, 1e3])
def test_queries_along_directions_that_keys_hardly_have_get_an_accurate_dq(condition):
    """Moments have lost such directions to rounding, so these tiles are streamed."""
    (q, k, v, m), grad = ill_conditioned(condition, torch.float32, width=16, keys=90)
    call = called(q, k, v, m)
    dq = stream.backward(call, grad, *stream.forward(call), from_moments=True)[0][:, :, ::3]
    true = Case(q, k, v, m, grad).true["dq"][:, :, ::3]
    assert error(dq, true) < 1e-3


# --- the kernel written for Hopper, which no interpreter has

hopper = pytest.mark.skipif(
    DEVICE.type != "cuda" or torch.cuda.get_device_capability() != (9, 0) or stream.hopper is None,
    reason="needs a Hopper GPU and the release of Triton that Gluon's kernel was written for",
)


def by_hopper(call, sizes, splits):
    q = call.q
    o, inverse = call.empty_output().fill_(torch.nan), call.empty_rows().fill_(torch.nan)
    tiles = TileAssignment.of(q.shape[2], q.shape[0], sizes.own, call.query_offsets).grid(
        q.shape[1]
    )[0]
    split_tiles = 0 if splits == 1 else min(tiles, 3)
    plan = SplitKeys(tiles - split_tiles, split_tiles, splits, 0.0)
    stream.hopper.forward(call, ScaledKeys.of(call), sizes, plan, o, inverse)
    return o, inverse


@hopper
@pytest.mark.gpu
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("form", ["dense", "packed"])
@pytest.mark.parametrize(
    "row", [(key, sizes) for key, row in tables.HOPPER.items() for sizes in row], ids=str
)
@pytest.mark.parametrize(
    ("dtype", "values"),
    [(torch.float16, None), (torch.bfloat16, None), (torch.float16, 16), (torch.bfloat16, 48)],
)
def test_the_kernel_for_hopper_has_the_sums_of_the_plain_one(
    dtype, values, row, form, splits, broken
):
    (_, width), sizes = row
    if form == "packed" and splits > 1:
        pytest.skip("the keys of packed bags are never split")
    queries, keys = 1025, 777
    cells = 1 if form == "packed" else 2
    q, k, v, m, _ = draw(
        cells=cells, queries=queries, keys=keys, width=width, values=values, dtype=dtype
    )
    m[..., 3:9] = 0
    cut = None, None
    if form == "packed":
        cut = tuple(
            torch.tensor(x, device=DEVICE)
            for x in ([0, 5, 5, 400, keys], [0, 300, 309, 309, queries])
        )
    call = called(q, k, v, m, *cut)
    plain = stream.forward(call, tiles={"forward": BlockSizes(64, 64, 4, 2)})
    if broken:  # an absent key, whatever it holds
        k[:, :, 4], v[:, :, 5], v[:, :, 6] = torch.nan, torch.nan, torch.inf
    found = by_hopper(call, sizes, splits)
    for x, y in zip(found, plain, strict=True):
        assert float((x.double() - y.double()).norm() / y.double().norm()) < torch.finfo(dtype).eps
    again = by_hopper(call, sizes, splits)
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("form", ["dense", "packed"])
def test_the_hopper_launch_has_all_that_its_kernels_take(form, splits, monkeypatch):
    """Without a GPU: every launch of the kernel and of those after it, checked and not run."""
    forward_hopper = pytest.importorskip("flashsign.triton.streaming.forward_hopper")
    from flashsign.triton.common import launch
    from flashsign.triton.streaming import nan_repair, split_keys

    if form == "packed" and splits > 1:
        pytest.skip("the keys of packed bags are never split")
    seen = []

    def check(kernel, grid, arguments, **options):
        assert set(kernel.arg_names) <= set(arguments)
        seen.append(kernel.fn.__name__)

    q, k, v, m, _ = draw(cells=1, queries=300, keys=800, width=64, dtype=torch.float16)
    cut = (
        (None, None)
        if form == "dense"
        else tuple(torch.tensor(x, device=DEVICE) for x in ([0, 800], [0, 300]))
    )
    call = called(q, k, v, m, *cut)
    keys = ScaledKeys.of(call)
    for module in (launch, nan_repair, split_keys):
        monkeypatch.setattr(module, "start", check)
    plan = SplitKeys(8, 0, 1, 0.0) if splits == 1 else SplitKeys(4, 4, splits, 0.0)
    o, inverse = torch.empty_like(q), torch.empty(q.shape[:3])
    forward_hopper.forward(call, keys, SHORT, plan, o, inverse)
    assert seen == (
        ["stream_forward", "stream_forward", "add_splits"] if splits > 1 else ["stream_forward"]
    ) + ["repair_tiles"]
