"""Edge sums: what they add up to, in any order, form and memory."""

import pytest
import torch
from peak_bytes import PeakBytes

import flashsign
from flashsign import EdgeSums, ShapeMismatch, edge_weights, top_edges
from flashsign.edges import edge_sums, parts

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def sums(call, *, targets=7, regulators=9, kept=None, **options) -> EdgeSums:
    return EdgeSums(targets, regulators, dtype=torch.float64, **(kept or {})).add(
        call.q, call.k, call.m, **options
    )


def assert_same(found: EdgeSums, expected: EdgeSums) -> None:
    for name in ("signed", "absolute", "pairs", "listed"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **EXACT, msg=name)


def pack(call, seed=0, genes=12):
    """Every bag's queries and keys under gene numbers of its own, as a packed call; the dense
    tables beside it.
    """
    random = torch.Generator().manual_seed(seed)
    cells, _, queries, _ = call.q.shape
    keys = call.k.shape[2]
    chosen = [torch.randperm(genes, generator=random) for _ in range(2 * cells)]
    targets = torch.stack(chosen[:cells])[:, :queries]
    regulators = torch.stack(chosen[cells:])[:, :keys]
    packed = {
        "q": call.q.transpose(1, 2).flatten(0, 1),
        "k": call.k.transpose(1, 2).flatten(0, 1),
        "multiplicity": call.m.flatten(0, 1) if call.m.ndim == 2 else call.m.mT.flatten(0, 1),
        "offsets": torch.arange(cells + 1) * keys,
        "query_offsets": torch.arange(cells + 1) * queries,
        "targets": targets.flatten(),
        "regulators": regulators.flatten(),
    }
    return packed, targets, regulators


def literal_means(call, targets, regulators, genes=12):
    """Means over the cells in which a pair occurs, one pair at a time."""
    weights = edge_weights(call.q, call.k, call.m).detach().mean(1)
    signed, absolute, counts = torch.zeros(3, genes, genes, dtype=torch.float64)
    sizes = edge_weights(call.q, call.k, call.m).detach().abs().mean(1)
    for cell in range(len(call.q)):
        for i, target in enumerate(targets[cell].tolist()):
            for j, regulator in enumerate(regulators[cell].tolist()):
                if call.m[cell, ..., j].any():
                    signed[target, regulator] += weights[cell, i, j]
                    absolute[target, regulator] += sizes[cell, i, j]
                    counts[target, regulator] += 1
    return signed / counts, absolute / counts, counts


def test_means_are_those_of_the_weights(bag):
    weights = edge_weights(bag.q, bag.k, bag.m).detach()
    for over in ("pairs", "targets"):
        means = sums(bag).mean(over=over)
        torch.testing.assert_close(means.signed, weights.mean((0, 1)), **EXACT)
        torch.testing.assert_close(means.absolute, weights.abs().mean((0, 1)), **EXACT)


@pytest.mark.parametrize("cut", [[5], [1, 4], [2, 2, 1], [1, 1, 1, 1, 1]])
def test_batches_add_up_however_they_are_cut(draw, cut):
    call = draw(cells=5)
    whole = sums(call)
    one_by_one = EdgeSums(7, 9, dtype=torch.float64)
    merged = EdgeSums(7, 9, dtype=torch.float64)
    for q, k, m in zip(*(x.split(cut) for x in (call.q, call.k, call.m)), strict=True):
        one_by_one.add(q, k, m)
        merged = EdgeSums(7, 9, dtype=torch.float64).add(q, k, m).plus(merged)
    assert_same(one_by_one, whole)
    assert_same(merged, whole)


def test_multiplicity_zero_is_absent(draw):
    """It adds no weight, is no pair, and whatever the key holds does no harm; the target was listed
    all the same.
    """
    call = draw()
    m = call.m.detach().clone()
    m[:, 2], m[0, 5] = 0, 0
    k = call.k.detach().clone()
    k[:, :, 2] = torch.nan
    found = EdgeSums(7, 9, dtype=torch.float64).add(call.q, k, m)
    assert (
        found.pairs[0].tolist() == [2, 2, 0, 2, 2, 1, 2, 2, 2] and found.listed.tolist() == [2] * 7
    )
    assert (
        found.mean().signed[:, 2].isnan().all()
        and (found.mean(over="targets").signed[:, 2] == 0).all()
    )
    torch.testing.assert_close(
        found.mean().signed[:, 5], 2 * found.mean(over="targets").signed[:, 5], **EXACT
    )
    rest = [0, 1, 3, 4, 5, 6, 7, 8]
    dropped = EdgeSums(7, 9, dtype=torch.float64)
    dropped.add(call.q, call.k[:, :, rest], m[:, rest], regulators=torch.tensor(rest))
    assert_same(found, dropped)


def test_what_has_no_number_in_the_sums_counts_in_the_norms_only(bag):
    targets = torch.tensor([3, -1, 0, 8, 1, 2, 4])
    regulators = torch.tensor([1, 0, 2, 9, -1, 3, 7, 5, 4])
    found = EdgeSums(5, 6, dtype=torch.float64)
    found.add(bag.q, bag.k, bag.m, targets=targets, regulators=regulators)
    weights = edge_weights(bag.q, bag.k, bag.m).detach().mean((0, 1))
    expected = weights[[2, 4, 5, 0, 6]][:, [1, 0, 2, 5, 8, 7]]
    torch.testing.assert_close(found.mean().signed, expected, **EXACT)


@pytest.mark.parametrize("per_head", [False, True])
def test_packed_bags_are_averaged_over_the_cells_in_which_a_pair_occurs(draw, per_head):
    call = draw(cells=4)
    if per_head:
        call = type(call)(
            call.q, call.k, call.v, torch.stack([call.m, call.m.flip(1)], 1).detach(), call.grad
        )
    call.m.data[..., 1, 3] = 0
    packed, targets, regulators = pack(call)
    found = EdgeSums(12, 12, dtype=torch.float64).add(**packed)
    signed, absolute, counts = literal_means(call, targets, regulators)
    torch.testing.assert_close(found.mean().signed, signed, **EXACT, equal_nan=True)
    torch.testing.assert_close(found.mean().absolute, absolute, **EXACT, equal_nan=True)
    assert found.pairs.tolist() == counts.tolist()
    assert found.listed.tolist() == torch.bincount(targets.flatten(), minlength=12).tolist()


def test_packed_bags_of_any_sizes_are_the_bags_one_by_one(draw):
    call = draw(cells=1, queries=30, keys=40)
    offsets, query_offsets = torch.tensor([0, 5, 5, 33, 40]), torch.tensor([0, 3, 10, 29, 30])
    q, k, m = call.q[0].transpose(0, 1), call.k[0].transpose(0, 1), call.m[0]
    random = torch.Generator().manual_seed(1)
    targets, regulators = (
        torch.cat([torch.randperm(30, generator=random)[:n] for n in x.diff().tolist()])
        for x in (query_offsets, offsets)
    )
    found = EdgeSums(30, 30, dtype=torch.float64)
    found.add(
        q,
        k,
        m,
        offsets=offsets,
        query_offsets=query_offsets,
        targets=targets,
        regulators=regulators,
    )
    expected = EdgeSums(30, 30, dtype=torch.float64)
    for bag in range(4):
        rows = slice(*query_offsets[bag : bag + 2].tolist())
        keys = slice(*offsets[bag : bag + 2].tolist())
        dense = (q[rows].transpose(0, 1)[None], k[keys].transpose(0, 1)[None], m[keys][None])
        expected.add(*dense, targets=targets[rows], regulators=regulators[keys])
    assert_same(found, expected)


def test_heads_count_by_their_weights(bag):
    heads = torch.tensor([3.0, 0.0, 1.0, 0.0])
    weights = edge_weights(bag.q, bag.k, bag.m).detach()
    found = sums(bag, heads=heads).mean()
    torch.testing.assert_close(
        found.signed, (3 * weights[:, 0] + weights[:, 2]).mean(0) / 4, **EXACT
    )
    sizes = weights.abs()
    torch.testing.assert_close(found.absolute, (3 * sizes[:, 0] + sizes[:, 2]).mean(0) / 4, **EXACT)
    for wrong in ([1.0, -1.0, 1.0, 1.0], [0.0] * 4, [torch.nan] * 4):
        with pytest.raises(ValueError):
            sums(bag, heads=torch.tensor(wrong))


def test_norms_that_are_known_are_taken(bag):
    inverse = parts.inverse_norms(bag.q, bag.m[:, None, :, None] * bag.k, 1e-6).detach()
    assert_same(sums(bag, inverse=inverse), sums(bag))
    torch.testing.assert_close(sums(bag, inverse=3 * inverse).signed, 3 * sums(bag).signed, **EXACT)
    packed, _, _ = pack(bag)
    known = EdgeSums(12, 12, dtype=torch.float64).add(
        **packed, inverse=inverse.transpose(1, 2).flatten(0, 1)
    )
    assert_same(known, EdgeSums(12, 12, dtype=torch.float64).add(**packed))


def test_rows_are_normalised_where_float32_moments_would_cancel(draw):
    """Queries along a direction that the keys hardly have."""
    call = draw(cells=1, keys=50, width=4)
    k, q = call.k.detach().clone(), call.q.detach() * 1e-6
    k[..., 0] *= 1e-3
    q[..., 0] = 1
    weights = edge_weights(q, k, call.m).detach()
    found = EdgeSums(7, 50, pairs=False).add(q.float(), k.float(), call.m.float())
    torch.testing.assert_close(
        found.absolute.double(), weights.abs().mean((0, 1)), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("by", ["absolute", "signed"])
def test_the_top_are_those_of_the_whole_table(draw, by):
    call = draw(cells=3, queries=20, keys=15)
    found = sums(call, targets=20, regulators=15)
    means = found.mean()
    ranked = getattr(means, by).abs().sort(1, descending=True).indices[:, :4]
    top = found.top(4, by=by)
    assert top.regulator.tolist() == ranked.tolist()
    assert torch.equal(top.signed, means.signed.gather(1, ranked))
    assert torch.equal(top.absolute, means.absolute.gather(1, ranked))


def test_pairs_that_no_bag_has_are_never_among_the_top(draw):
    call = draw(cells=1)
    call.m.data[:, 3:] = 0
    top = sums(call).top(5)
    assert (top.regulator[:, :3] >= 0).all() and (top.regulator[:, 3:] == -1).all()
    assert not top.signed[:, 3:].any() and not top.absolute[:, 3:].any()


def test_no_target_is_its_own_regulator(bag):
    same = torch.tensor([4, -1, 0, 6, -1, -1, 1, 2, 3])
    top = sums(bag).top(9, same=same)
    for target, regulators in enumerate(top.regulator.tolist()):
        own = (same == target).nonzero()[:, 0].tolist()
        assert sorted(regulators) == [-1] * len(own) + [j for j in range(9) if j not in own]


@pytest.mark.parametrize("rows", [1, 3, 20, None])
@pytest.mark.parametrize("over", ["pairs", "targets"])
def test_the_top_tile_by_tile_are_the_top(draw, rows, over):
    call = draw(cells=4)
    packed, _, _ = pack(call)
    same = torch.arange(12)

    def replay(sums: EdgeSums) -> None:
        assert len(sums.targets) <= (rows or 12)
        sums.add(**packed)

    whole = EdgeSums(12, 12)
    replay_all = whole.add(**packed).top(3, over=over, same=same)
    found = top_edges(replay, 12, 12, 3, rows=rows, over=over, same=same)
    for a, b in zip(found, replay_all, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("form", ["dense", "packed"])
def test_no_more_is_in_memory_than_a_table_and_a_tile(draw, form, monkeypatch):
    """6 cells x 4 heads x 60 x 80 weights would be eighteen tables."""
    monkeypatch.setattr(edge_sums, "WEIGHTS", 400)
    monkeypatch.setattr(parts, "NUMBERS", 500)
    call = draw(cells=6, queries=60, keys=80)
    packed, _, _ = pack(call, genes=80)
    kept = EdgeSums(80 if form == "packed" else 60, 80, dtype=torch.float64)
    dense = {"q": call.q, "k": call.k, "multiplicity": call.m}
    with PeakBytes() as memory:
        kept.add(**packed if form == "packed" else dense)
    assert memory.peak < 1.25 * 8 * 80 * 80
    with PeakBytes() as memory:
        top_edges(lambda sums: sums.add(**packed), 80, 80, 5, rows=4)
    assert memory.peak < 1.25 * 8 * 80 * 80


@pytest.mark.parametrize("weights", [1, 100, 2**20])
def test_tiles_do_not_matter(draw, weights, monkeypatch):
    call = draw(cells=3)
    packed, _, _ = pack(call)
    whole, whole_packed = sums(call), EdgeSums(12, 12, dtype=torch.float64).add(**packed)
    monkeypatch.setattr(edge_sums, "WEIGHTS", weights)
    monkeypatch.setattr(parts, "NUMBERS", weights)
    assert_same(sums(call), whole)
    assert_same(EdgeSums(12, 12, dtype=torch.float64).add(**packed), whole_packed)
    assert torch.equal(sums(call).top(3).regulator, whole.top(3).regulator)


def test_bags_without_genes_or_queries_add_nothing(draw):
    call = draw(keys=0)
    found = sums(call)
    assert not found.signed.any() and not found.pairs.any() and found.listed.tolist() == [2] * 7
    assert not sums(draw(queries=0), regulators=9).pairs.any()
    assert not sums(draw(cells=0)).listed.any()


def test_what_does_not_fit_is_refused(bag):
    packed, _, _ = pack(bag)
    table = EdgeSums(12, 12, dtype=torch.float64)
    twice = torch.tensor([4, 0, 1, 2, 3, 4, 5, 6, 7])
    for wrong in (
        lambda: table.add(**{**packed, "targets": None}),
        lambda: table.add(bag.q, bag.k, targets=torch.arange(3)),
        lambda: table.add(bag.q, bag.k, regulators=twice),
        lambda: table.add(**{**packed, "targets": packed["targets"] * 0}),
        lambda: table.add(bag.q, bag.k, inverse=bag.m),
        lambda: table.add(bag.q, bag.k, heads=torch.ones(3)),
        lambda: EdgeSums(range(0, 9, 2), 5),
    ):
        with pytest.raises(ShapeMismatch):
            wrong()
    with pytest.raises(flashsign.BackendUnavailable):
        table.add(bag.q, bag.k, backend="triton")
