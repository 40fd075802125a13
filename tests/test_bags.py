"""Bags and batches: one thing in two forms."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from grn.bags import Bags, Batch


def test_packing_keeps_every_gene_of_every_cell(make_bags):
    dense = make_bags(cells=4, genes=7)
    packed = dense.pack()
    assert (dense.packed, packed.packed) == (False, True)
    assert dense.cells == packed.cells == 4
    assert torch.equal(packed.basal, dense.basal) and packed.regulators is None
    assert torch.equal(replace(dense, regulators=dense.basal[:, None]).pack().regulators, dense.basal[:, None])
    for cell in range(4):
        own = slice(packed.offsets[cell], packed.offsets[cell + 1])
        assert packed.genes[own].tolist() == dense.genes.tolist()
        assert packed.multiplicity[own].tolist() == dense.multiplicity[cell].tolist()


def test_packing_keeps_the_gene_list_in_its_own_order():
    packed = Bags(torch.tensor([5, 2]), torch.tensor([[1.0, 0.0], [3.0, 4.0]])).pack()
    assert packed.genes.tolist() == [5, 2, 5, 2]
    assert packed.multiplicity.tolist() == [1, 0, 3, 4]
    assert packed.offsets.tolist() == [0, 2, 4]


def test_packed_bags_are_packed_already(make_bags):
    packed = make_bags().pack()
    assert packed.pack() is packed


def test_packed_bags_count_their_empty_cells():
    assert Bags(torch.tensor([1]), torch.ones(1), torch.tensor([0, 0, 1, 1])).cells == 3


def test_to_moves_every_tensor_and_leaves_what_is_none(make_bags):
    """The meta device: a tensor that is left behind shows, with no GPU needed."""
    dense = make_bags(cells=2)
    of_cells = torch.zeros(2)
    batch = Batch(dense, dense.multiplicity, dense.multiplicity > 1, of_cells.long(), of_cells.long(), of_cells)
    moved = batch.to("meta")
    assert isinstance(moved, Batch) and isinstance(moved.bags, Bags)
    tensors = [moved.multiplicity, moved.masked, moved.cells, moved.labels, moved.property]
    tensors += [moved.bags.genes, moved.bags.multiplicity, moved.bags.basal]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.bags.offsets is None and moved.importance is None
    assert dense.pack().to("meta").offsets.device.type == "meta"
    assert batch.bags.genes.device.type == "cpu", "the batch itself stays where it is"


def dealt_back(shares: list[Bags]) -> list[list[list[tuple[int, float]]]]:
    """The genes of each bag of each share, with their multiplicities."""
    packed = [share.pack() for share in shares]
    rows = [list(zip(bags.genes.tolist(), bags.multiplicity.tolist(), strict=True)) for bags in packed]
    cuts = [list(pairwise(bags.offsets.tolist())) for bags in packed]
    return [[own[a:b] for a, b in cut] for own, cut in zip(rows, cuts, strict=True)]


@pytest.mark.parametrize("parts", [1, 2, 3, 20])
@pytest.mark.parametrize("packed", [False, True])
def test_genes_are_dealt_out_like_cards(make_bags, packed, parts):
    bags = replace(make_bags(), regulators=torch.rand(5, 3))
    if packed:
        listed = bags.multiplicity > 0
        listed[1] = False  # a cell without genes
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), listed.sum(1).cumsum(0)])
        bags = replace(bags, genes=listed.nonzero()[:, 1], multiplicity=bags.multiplicity[listed], offsets=offsets)
    shares = [bags.share(part, parts) for part in range(parts)]
    [whole], dealt = dealt_back([bags]), dealt_back(shares)
    for cell, genes in enumerate(whole):
        assert [share[cell] for share in dealt] == [genes[part::parts] for part in range(parts)]
    for share in shares:
        assert share.cells == 5 and share.packed == packed
        assert torch.equal(share.basal, bags.basal) and torch.equal(share.regulators, bags.regulators)


@pytest.mark.parametrize("packed", [False, True])
def test_a_share_of_a_batch_keeps_the_cells(make_bags, packed):
    bags = make_bags().pack() if packed else make_bags()
    shape = bags.multiplicity.shape
    marks = torch.arange(bags.multiplicity.numel()).reshape(shape)
    batch = Batch(bags, marks, marks % 2 == 0, torch.arange(5), torch.arange(5), torch.rand(5), marks * 2)
    for part in range(2):
        share = batch.share(part, 2)
        mine = bags.places(part, 2)
        assert torch.equal(share.multiplicity, marks[..., mine]) and torch.equal(share.importance, 2 * marks[..., mine])
        assert torch.equal(share.masked, batch.masked[..., mine])
        assert torch.equal(share.bags.multiplicity, bags.multiplicity[..., mine])
        assert share.cells is batch.cells and share.labels is batch.labels
    assert replace(batch, importance=None).share(0, 2).importance is None
