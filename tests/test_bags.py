"""Bags and batches: what moves with them, and what they leave alone."""

from dataclasses import replace

import torch

from grn.bags import Bags, Batch


def test_to_moves_every_tensor_and_leaves_none_as_none(make_bags):
    """The meta device: a tensor that is left behind shows, with no GPU needed."""
    bags, of_cells = make_bags(cells=2), torch.zeros(2)
    batch = Batch(bags, *[of_cells.long()] * 3, seen=bags, kept=bags.multiplicity > 1)
    moved = batch.to("meta")
    assert isinstance(moved, Batch) and isinstance(moved.bags, Bags) and len(moved.bags) == 2
    tensors = [moved.kept, moved.cells, moved.labels, moved.fold]
    for each in (moved.bags, moved.seen):
        tensors += [each.multiplicity, each.basal, each.states]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert batch.bags.multiplicity.device.type == "cpu", "the batch itself stays where it is"
    bare = replace(batch, bags=Bags(bags.multiplicity), seen=None, kept=None).to("meta")
    assert bare.seen is bare.kept is bare.bags.basal is bare.bags.states is None
