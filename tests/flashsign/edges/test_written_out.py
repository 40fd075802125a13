"""Edge sums of other normalisers: the means of their weights written out, for dense and packed bags."""

import pytest
import torch

from flashsign import EdgeSums, ShapeMismatch
from flashsign.edges.written_out import WrittenOutSums
from flashsign.reference import normalised_weights

NORMALISERS = ["softmax", "l1", "squared_relu"]
FORMS = ("signed", "absolute", "pairs", "listed")


def drawn(cells=3, heads=4, key_heads=2, queries=5, keys=6, width=3):
    generator = torch.Generator().manual_seed(0)
    shapes = (cells, heads, queries, width), (cells, key_heads, keys, width)
    q, k = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    m = torch.rand(cells, keys, generator=generator, dtype=torch.float64)
    m[0, 1] = m[1] = 0
    return q, k, m


def sums(normaliser, targets=5, regulators=6):
    return WrittenOutSums(targets, regulators, normaliser=normaliser, dtype=torch.float64)


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("per_head", [False, True])
def test_means_are_those_of_the_weights(normaliser, per_head):
    q, k, m = drawn()
    given = torch.stack([m, 2 * m], 1) if per_head else m
    weights = normalised_weights(q, k, given, normaliser)
    heads = torch.tensor([1.0, 0, 2, 1])
    means = sums(normaliser).add(q, k, given, heads=heads).mean(over="targets")
    share = (heads / 4).double()[:, None, None]
    torch.testing.assert_close(means.signed, (share * weights).sum(1).mean(0))
    torch.testing.assert_close(means.absolute, (share * weights.abs()).sum(1).mean(0))


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("per_head", [False, True])
def test_packed_bags_add_up_as_dense_ones(normaliser, per_head):
    """Under numbers of their own, of which some are not in the sums."""
    q, k, m = drawn()
    m = torch.stack([m, 2 * m], 1) if per_head else m
    targets, regulators = torch.tensor([4, 9, 2, 6, 3]), torch.tensor([-1, 1, 0, 3, 2, 4])
    numbers = {"targets": targets, "regulators": regulators}
    dense = sums(normaliser, range(2, 7), 4).add(q, k, m, **numbers)
    packed = sums(normaliser, range(2, 7), 4).add(
        q.transpose(1, 2).flatten(0, 1),
        k.transpose(1, 2).flatten(0, 1),
        m.mT.flatten(0, 1) if per_head else m.flatten(),
        offsets=torch.arange(4) * 6,
        query_offsets=torch.arange(4) * 5,
        targets=targets.repeat(3),
        regulators=regulators.repeat(3),
    )
    for name in FORMS:
        torch.testing.assert_close(getattr(packed, name), getattr(dense, name))
    weights = normalised_weights(q, k, m, normaliser).mean(1).sum(0)
    expected = torch.zeros(5, 4, dtype=torch.float64)
    expected[[2, 0, 4, 1]] = weights[[0, 2, 3, 4]][:, [2, 1, 4, 3]]
    torch.testing.assert_close(dense.signed, expected)
    assert dense.listed.tolist() == [3, 3, 3, 0, 3] and dense.pairs[0].tolist() == [2, 1, 2, 2]


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_bags_add_up_and_tables_may_be_left_out(normaliser):
    q, k, m = drawn()
    whole = sums(normaliser).add(q, k, m)
    merged = sums(normaliser).add(q[:1], k[:1], m[:1]).plus(sums(normaliser).add(q[1:], k[1:], m[1:]))
    for name in FORMS:
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name))
    few = WrittenOutSums(5, 6, normaliser=normaliser, absolute=False, pairs=False, dtype=torch.float64).add(q, k, m)
    torch.testing.assert_close(few.signed, whole.signed)


def test_the_weights_are_not_spherical_ones_and_tensors_that_do_not_fit_are_refused():
    q, k, m = drawn()
    assert not torch.allclose(sums("l1").add(q, k, m).signed, EdgeSums(5, 6, dtype=torch.float64).add(q, k, m).signed)
    with pytest.raises(ShapeMismatch, match="targets must be integers"):
        sums("l1").add(q, k, m, targets=torch.arange(4))
