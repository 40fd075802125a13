"""The cell reader: members as one batch, two kinds of heads, calibrated probabilities, a threshold for an error."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from grn.bags import Bags
from grn.model.cell_reader import CellReader, ReaderShape

SHAPE = ReaderShape(members=3, heads=2, width=4, rank=5, summary=6, hidden=7, embedding=4, held_out=0)
CELLS, GENES, TYPES = 8, 12, 3


@pytest.fixture
def reader() -> CellReader:
    """Float64, with every parameter and buffer drawn at random."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        found = CellReader(GENES, TYPES, SHAPE).double()
        for parameter in found.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        found.mean.copy_(torch.rand(GENES))
        found.sd.copy_(0.5 + torch.rand(GENES))
        found.axes.copy_(torch.randn(18, 4))
    return found.requires_grad_(False)


@pytest.fixture
def cells() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    multiplicity = torch.rand(CELLS, GENES, generator=generator, dtype=torch.float64) * 3
    return multiplicity, 0.5 + torch.rand(CELLS, generator=generator, dtype=torch.float64)


def test_heads_are_spherical_attention_with_one_query_for_all_cells(reader, cells):
    x, basal = cells
    found = reader.present(x, basal).unflatten(-1, (SHAPE.heads, SHAPE.width))  # [P, C, H, E]
    part = reader.present
    for member in range(SHAPE.members):
        for head in range(SHAPE.heads):
            scores = torch.cat([x * part.score[member, head], basal[:, None] * part.basal_score[member, head]], 1)
            values = torch.cat([part.value[member, head], part.basal_value[member, head][None]])
            weights = scores / (scores.square().sum(1, keepdim=True) + 1e-6).sqrt()
            assert torch.allclose(found[member, :, head], weights @ values)


def test_each_member_is_what_it_would_be_alone(reader, cells):
    x, basal = cells
    together = reader.summaries(x, reader.standardised(x), basal)
    for member in range(SHAPE.members):
        alone = CellReader(GENES, TYPES, replace(SHAPE, members=1)).double()
        of_member = {
            name: value[member : member + 1] if name in dict(reader.named_parameters()) else value
            for name, value in reader.state_dict().items()
        }
        shapes = {name: value.shape for name, value in alone.state_dict().items()}
        alone.load_state_dict({name: value for name, value in of_member.items() if value.shape == shapes[name]}, False)
        assert torch.allclose(alone.summaries(x, alone.standardised(x), basal)[0], together[member])


def test_without_each_gene_is_the_forward_pass_with_that_gene_hidden(reader, cells):
    x, basal = cells
    found = reader.without_each(x[3], basal[3])
    for gene in range(GENES):
        kept = torch.ones(GENES, dtype=torch.float64)
        kept[gene] = 0
        summaries = reader.summaries(x[3:4] * kept, reader.standardised(x[3:4]) * kept, basal[3:4])
        assert torch.allclose(found[gene], (reader.importance[:, None, None] * reader.of_members(summaries)).sum(0)[0])


@pytest.mark.parametrize(("error", "kept"), [(0.5, 10), (0.29, 8), (0.2, 5), (0.1, 0)])
def test_the_threshold_keeps_its_error_on_held_out_cells(reader, error, kept):
    """Five sure cells are right; of the five unsure ones two are wrong. One more may be wrong than was seen to be."""
    reader.confidence = torch.tensor([0.99, 0.98, 0.97, 0.96, 0.95, 0.8, 0.7, 0.65, 0.6, 0.5])
    reader.right = torch.tensor([True] * 5 + [False, True, True, False, True])
    found = reader.threshold(error)
    assert int((reader.confidence >= found).sum()) == kept
    assert math.isinf(found) == (kept == 0)


def test_a_model_with_a_reader_reads_dense_and_packed_bags_alike(make_model, reader):
    model = make_model(genes=GENES, classes=0, property=False)
    model.reader = reader
    generator = torch.Generator().manual_seed(2)
    multiplicity = torch.rand(CELLS, GENES, generator=generator, dtype=torch.float64)
    bags = Bags(torch.arange(GENES), multiplicity, basal=torch.ones(CELLS, dtype=torch.float64))
    dense, packed = model(bags), model(bags.pack())
    assert model.classes == TYPES and torch.allclose(dense.logits, packed.logits)
    assert torch.equal(dense.logits, reader(multiplicity, bags.basal)[1])
    assert torch.allclose(dense.cell, packed.cell) and dense.cell.shape == (CELLS, 4)
    assert model.train()(bags).logits is None, "the reader is trained before the transformer, not with it"
