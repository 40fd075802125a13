"""Bags and batches: dense and packed forms hold the same cells, and parts of the genes are parts of them."""

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


def test_to_moves_every_tensor_and_leaves_none_as_none(make_bags):
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


@pytest.mark.parametrize("packed", [False, True])
def test_unmasking_a_batch_hides_nothing_and_leaves_the_batch_alone(make_bags, packed):
    whole = make_bags(cells=3).pack() if packed else make_bags(cells=3)
    masked = torch.arange(whole.multiplicity.numel()).reshape(whole.multiplicity.shape) % 3 == 0
    bags = replace(whole, multiplicity=whole.multiplicity.masked_fill(masked, 0))
    of_cells = torch.zeros(3)
    batch = Batch(bags, whole.multiplicity, masked, of_cells.long(), of_cells.long(), of_cells)
    found = batch.unmasked()
    assert torch.equal(found.bags.multiplicity, whole.multiplicity) and not found.masked.any()
    assert found.bags.genes is whole.genes and found.bags.offsets is whole.offsets
    assert batch.bags is bags and batch.masked is masked


def genes_of_cells(several: list[Bags]) -> list[list[list[tuple[int, float]]]]:
    """For each of several bags and each of their cells, its genes with their multiplicities."""
    packed = [bags.pack() for bags in several]
    rows = [list(zip(bags.genes.tolist(), bags.multiplicity.tolist(), strict=True)) for bags in packed]
    cuts = [list(pairwise(bags.offsets.tolist())) for bags in packed]
    return [[own[a:b] for a, b in cut] for own, cut in zip(rows, cuts, strict=True)]


@pytest.mark.parametrize("parts", [1, 2, 3, 20])
@pytest.mark.parametrize("packed", [False, True])
def test_part_k_of_p_has_every_p_th_gene_of_each_cell_from_the_k_th_on(make_bags, packed, parts):
    bags = replace(make_bags(), regulators=torch.rand(5, 3))
    if packed:
        listed = bags.multiplicity > 0
        listed[1] = False  # a cell without genes
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), listed.sum(1).cumsum(0)])
        bags = replace(bags, genes=listed.nonzero()[:, 1], multiplicity=bags.multiplicity[listed], offsets=offsets)
    split = [bags.part_of_genes(part, parts) for part in range(parts)]
    [whole], found = genes_of_cells([bags]), genes_of_cells(split)
    for cell, genes in enumerate(whole):
        assert [part[cell] for part in found] == [genes[part::parts] for part in range(parts)]
    for part in split:
        assert part.cells == 5 and part.packed == packed
        assert torch.equal(part.basal, bags.basal) and torch.equal(part.regulators, bags.regulators)


@pytest.mark.parametrize("packed", [False, True])
def test_a_part_of_the_genes_of_a_batch_has_all_of_its_cells(make_bags, packed):
    bags = make_bags().pack() if packed else make_bags()
    shape = bags.multiplicity.shape
    marks = torch.arange(bags.multiplicity.numel()).reshape(shape)
    batch = Batch(bags, marks, marks % 2 == 0, torch.arange(5), torch.arange(5), torch.rand(5), marks * 2)
    for number in range(2):
        part = batch.part_of_genes(number, 2)
        own = bags.part_positions(number, 2)
        assert torch.equal(part.multiplicity, marks[..., own]) and torch.equal(part.importance, 2 * marks[..., own])
        assert torch.equal(part.masked, batch.masked[..., own])
        assert torch.equal(part.bags.multiplicity, bags.multiplicity[..., own])
        assert part.cells is batch.cells and part.labels is batch.labels
    assert replace(batch, importance=None).part_of_genes(0, 2).importance is None
