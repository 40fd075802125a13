"""Edge sums: what they add up to, in any order, form and memory, in torch and by their kernel.

The kernel runs on a GPU where there is one, else in Triton's interpreter.
"""

from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import pytest
import torch
from kernel_cases import (
    DEVICE,
    poison,  # noqa: F401
)
from kernel_cases import draw as drawn
from kernel_cases import packed as uneven
from peak_bytes import PeakBytes
from torch import Tensor

import flashsign
from flashsign import EdgeSums, ShapeMismatch, edge_weights, top_edges
from flashsign.edges import edge_sums, parts
from flashsign.tuning.accuracy import error

EXACT = {"rtol": 1e-9, "atol": 1e-12}
in_float64 = partial(EdgeSums, dtype=torch.float64)


class Expected(NamedTuple):
    """What EdgeSums holds."""

    signed: Tensor
    absolute: Tensor
    pairs: Tensor
    listed: Tensor


def expected(q, k, m, targets, regulators, genes) -> Expected:
    """Sums over cells, a cell at a time; targets [C, N] and regulators [C, M] in [0, genes)."""
    q, k, m = (x.detach().double() for x in (q, k, m))
    every = edge_weights(q, k, m)
    found = Expected(*q.new_zeros(3, genes, genes), q.new_zeros(genes))
    present = (m if m.ndim == 2 else m.amax(1)) != 0
    for cell, weights in enumerate(every):
        at = targets[cell][:, None], regulators[cell]
        found.signed[at] += weights.mean(0)
        found.absolute[at] += weights.abs().mean(0)
        found.pairs[at] += present[cell].to(q)
        found.listed[targets[cell]] += 1
    return found


def assert_same(found, expected, **tolerance):
    for name in Expected._fields:
        of_both = (getattr(each, name).double() for each in (found, expected))
        torch.testing.assert_close(*of_both, **(tolerance or EXACT), msg=name)


def sums(call, *, targets=7, regulators=9, **options):
    return in_float64(targets, regulators).add(call.q, call.k, call.m, **options)


def pack(call, seed=0, genes=12):
    """Every bag's queries and keys under gene numbers of its own, as a packed call; the dense
    tables beside it.
    """
    random = torch.Generator().manual_seed(seed)
    cells, _, queries, _ = call.q.shape
    keys = call.k.shape[2]
    chosen = torch.stack([torch.randperm(genes, generator=random) for _ in range(2 * cells)])
    chosen = chosen.to(call.q.device)
    targets, regulators = chosen[:cells, :queries], chosen[cells:, :keys]
    bags = torch.arange(cells + 1, device=call.q.device)
    packed = {
        "q": call.q.transpose(1, 2).flatten(0, 1),
        "k": call.k.transpose(1, 2).flatten(0, 1),
        "multiplicity": call.m.flatten(0, 1) if call.m.ndim == 2 else call.m.mT.flatten(0, 1),
        "offsets": bags * keys,
        "query_offsets": bags * queries,
        "targets": targets.flatten(),
        "regulators": regulators.flatten(),
    }
    return packed, targets, regulators


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("form", ["dense", "packed"])
def test_sums_are_those_of_the_weights_over_the_cells_in_which_a_pair_occurs(draw, form, per_head):
    """Multiplicity zero adds no weight, is no pair, and does no harm whatever its key holds; its
    target is listed all the same.
    """
    call = draw(cells=4, per_head=per_head)
    call.m[..., 2], call.m[0, ..., 5], call.k[:, :, 2] = 0, 0, torch.nan
    if form == "packed":
        packed, targets, regulators = pack(call)
        found = in_float64(12, 12).add(**packed)
    else:
        targets, regulators = (torch.arange(n).expand(4, -1) for n in (7, 9))
        found = in_float64(12, 12).add(
            call.q, call.k, call.m, targets=targets[0], regulators=regulators[0]
        )
    whole = expected(call.q, call.k, call.m, targets, regulators, 12)
    assert_same(found, whole)
    means, of_targets = found.mean(), found.mean(over="targets")
    torch.testing.assert_close(means.signed, whole.signed / whole.pairs, **EXACT, equal_nan=True)
    torch.testing.assert_close(means.absolute, whole.absolute / whole.pairs, equal_nan=True)
    listed = whole.signed / whole.listed[:, None]
    torch.testing.assert_close(of_targets.signed, listed, **EXACT, equal_nan=True)


@pytest.mark.parametrize("cut", [[5], [1, 4], [1, 1, 1, 1, 1]])
def test_batches_add_up_however_they_are_cut(draw, cut):
    call = draw(cells=5)
    one_by_one, merged = in_float64(7, 9), in_float64(7, 9)
    for part in zip(*(x.split(cut) for x in (call.q, call.k, call.m)), strict=True):
        one_by_one.add(*part)
        merged = in_float64(7, 9).add(*part).plus(merged)
    assert_same(one_by_one, sums(call))
    assert_same(merged, sums(call))


def test_what_has_no_number_in_the_sums_counts_in_the_norms_only(bag):
    targets = torch.tensor([3, -1, 0, 8, 1, 2, 4])
    regulators = torch.tensor([1, 0, 2, 9, -1, 3, 7, 5, 4])
    found = in_float64(5, 6).add(bag.q, bag.k, bag.m, targets=targets, regulators=regulators)
    weights = edge_weights(bag.q, bag.k, bag.m).mean((0, 1))
    own = weights[[2, 4, 5, 0, 6]][:, [1, 0, 2, 5, 8, 7]]
    torch.testing.assert_close(found.mean().signed, own, **EXACT)


def test_packed_bags_of_any_sizes_are_the_bags_one_by_one(draw):
    (q, k, _, m), _, cut = uneven(*draw(cells=1, queries=30, keys=40))
    random, ends = torch.Generator().manual_seed(1), (cut["query_offsets"], cut["offsets"])
    targets, regulators = (
        torch.cat([torch.randperm(30, generator=random)[:n] for n in x.diff().tolist()])
        for x in ends
    )
    found = in_float64(30, 30).add(q, k, m, **cut, targets=targets, regulators=regulators)
    alone = in_float64(30, 30)
    for bag in range(4):
        rows, keys = (slice(*each[bag : bag + 2].tolist()) for each in ends)
        dense = (q[rows].transpose(0, 1)[None], k[keys].transpose(0, 1)[None], m[keys][None])
        alone.add(*dense, targets=targets[rows], regulators=regulators[keys])
    assert_same(found, alone)


def test_rows_are_normalised_where_float32_moments_would_cancel(draw):
    """Queries along a direction that the keys hardly have."""
    q, k, _, m, _ = draw(cells=1, keys=50, width=4)
    q *= 1e-6
    q[..., 0], k[..., 0] = 1, 1e-3 * k[..., 0]
    found = EdgeSums(7, 50, pairs=False).add(q.float(), k.float(), m.float())
    sizes = edge_weights(q, k, m).abs().mean((0, 1))
    torch.testing.assert_close(found.absolute.double(), sizes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("by", ["absolute", "signed"])
def test_the_top_are_those_of_the_whole_table(draw, by):
    found = sums(draw(cells=3, queries=20, keys=15), targets=20, regulators=15)
    means = found.mean()
    ranked = getattr(means, by).abs().sort(1, descending=True).indices[:, :4]
    top = found.top(4, by=by)
    assert top.regulator.tolist() == ranked.tolist()
    assert torch.equal(top.signed, means.signed.gather(1, ranked))
    assert torch.equal(top.absolute, means.absolute.gather(1, ranked))


def test_pairs_that_no_bag_has_and_a_targets_own_gene_are_never_among_the_top(draw):
    call = draw(cells=1)
    call.m[:, 3:] = 0
    top = sums(call).top(5)
    assert (top.regulator[:, :3] >= 0).all() and (top.regulator[:, 3:] == -1).all()
    assert not top.signed[:, 3:].any() and not top.absolute[:, 3:].any()
    same = torch.tensor([4, -1, 0, 6, -1, -1, 1, 2, 3])
    top = sums(draw()).top(9, same=same)
    for target, regulators in enumerate(top.regulator.tolist()):
        own = (same == target).nonzero()[:, 0].tolist()
        assert sorted(regulators) == [-1] * len(own) + [j for j in range(9) if j not in own]


@pytest.mark.parametrize("rows", [1, 3, None])
@pytest.mark.parametrize("over", ["pairs", "targets"])
def test_the_top_tile_by_tile_are_the_top(draw, rows, over):
    packed, _, _ = pack(draw(cells=4))
    options = {"over": over, "same": torch.arange(12)}

    def replay(sums: EdgeSums) -> None:
        assert len(sums.targets) <= (rows or 12)
        sums.add(**packed)

    whole = EdgeSums(12, 12).add(**packed).top(3, **options)
    torch.testing.assert_close(
        tuple(top_edges(replay, 12, 12, 3, rows=rows, **options)), tuple(whole)
    )


@pytest.mark.parametrize("weights", [1, 100])
def test_tiles_do_not_matter(draw, weights, monkeypatch):
    call = draw(cells=3)
    packed, _, _ = pack(call)
    whole, whole_packed = sums(call), in_float64(12, 12).add(**packed)
    monkeypatch.setattr(edge_sums, "WEIGHTS", weights)
    monkeypatch.setattr(parts, "NUMBERS", weights)
    assert_same(sums(call), whole)
    assert_same(in_float64(12, 12).add(**packed), whole_packed)
    assert torch.equal(sums(call).top(3).regulator, whole.top(3).regulator)


def test_no_more_is_in_memory_than_a_table_and_a_tile(draw, monkeypatch):
    """6 cells x 4 heads x 60 x 80 weights would be eighteen tables."""
    monkeypatch.setattr(edge_sums, "WEIGHTS", 400)
    monkeypatch.setattr(parts, "NUMBERS", 500)
    packed, _, _ = pack(draw(cells=6, queries=60, keys=80), genes=80)
    kept = in_float64(80, 80)
    with PeakBytes() as memory:
        kept.add(**packed)
    assert memory.peak < 1.25 * 8 * 80 * 80
    with PeakBytes() as memory:
        top_edges(lambda sums: sums.add(**packed), 80, 80, 5, rows=4)
    assert memory.peak < 1.25 * 8 * 80 * 80


def test_bags_without_genes_or_queries_add_nothing(draw):
    found = sums(draw(keys=0))
    assert not found.signed.any() and not found.pairs.any() and found.listed.tolist() == [2] * 7
    assert not sums(draw(queries=0)).pairs.any() and not sums(draw(cells=0)).listed.any()


def test_what_does_not_fit_is_refused(bag):
    packed, _, _ = pack(bag)
    table = in_float64(12, 12)
    twice = torch.tensor([4, 0, 1, 2, 3, 4, 5, 6, 7])
    for wrong in (
        lambda: table.add(**{**packed, "targets": None}),
        lambda: table.add(bag.q, bag.k, targets=torch.arange(3)),
        lambda: table.add(bag.q, bag.k, regulators=twice),
        lambda: table.add(**{**packed, "targets": packed["targets"] * 0}),
        lambda: EdgeSums(range(0, 9, 2), 5),
    ):
        with pytest.raises(ShapeMismatch):
            wrong()
    with pytest.raises(flashsign.BackendUnavailable):
        table.add(bag.q, bag.k, backend="triton")


# --- the kernel

needs_triton = pytest.mark.skipif(not find_spec("triton"), reason="there is no Triton here")


def by_kernel(call):
    table = EdgeSums(call.q.shape[2], call.k.shape[2], device=call.q.device)
    return table.add(call.q, call.k, call.m, backend="triton")


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 2), (torch.float16, 2), (torch.float16, 1e5)]
)
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"queries": 1, "keys": 7},
        {"queries": 67, "keys": 3, "heads": 2, "key_heads": 1},
        {"width": 20, "keys": 33},
        {"width": 64, "queries": 9, "keys": 150, "cells": 1},
        {"queries": 140, "keys": 140, "cells": 1, "heads": 2},
    ],
    ids=str,
)
def test_sums_of_the_kernel_are_those_of_the_weights(sizes, dtype, most):
    """Signed means cancel, so errors count for more: a few units in the last place."""
    call = drawn(dtype=dtype, **sizes)
    call.m[:, 3::7], call.k[:, :, 3::7] = 0, torch.nan
    call.m[:, 1] = most
    weights = edge_weights(call.q.double(), call.k.double(), call.m.double())
    true = weights.mean((0, 1)), weights.abs().mean((0, 1))
    found = by_kernel(call)
    for table, exact in zip(found.mean(over="targets"), true, strict=True):
        assert error(table, exact) < 4 * torch.finfo(dtype).eps
    again = by_kernel(call)
    assert torch.equal(found.signed, again.signed) and torch.equal(found.absolute, again.absolute)


@needs_triton
def test_the_kernel_adds_to_existing_sums_and_takes_packed_bags():
    call = drawn(cells=3, queries=20, keys=30, width=20)
    dense, packed = (call.q, call.k, call.m), pack(call, genes=35)[0]
    by_both = EdgeSums(35, 33, device=DEVICE), EdgeSums(35, 33, device=DEVICE)
    for found, backend in zip(by_both, ("triton", "torch"), strict=True):
        found.add(
            *dense,
            targets=torch.arange(20, device=DEVICE),
            regulators=torch.arange(30, device=DEVICE),
            backend="torch",
        )
        found.add(**packed, backend=backend)
        found.add(**packed, backend=backend)
    assert_same(*by_both, rtol=1e-4, atol=1e-5)
