"""Bags and batches: one thing in two forms."""

from dataclasses import replace

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
