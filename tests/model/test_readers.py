"""What both readers promise: members by themselves, cells by themselves, what is hidden and what
counts.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from grn.model.linear_reader import LinearReader
from grn.model.reader import HIDDEN, Reader, ReaderShape
from grn.model.transformer import Transformer

SHAPE = ReaderShape(members=3, classes=3, summary=8, hidden=7, embedding=4)
CELLS, GENES = 8, 12


def drawn(kind: type[Reader], shape: ReaderShape = SHAPE) -> Reader:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        found = kind(GENES, shape).double().requires_grad_(False)
        for tensor in (*found.parameters(), found.mean, found.axes, found.centre):
            tensor.add_(0.3 * torch.randn_like(tensor))
        found.sd.add_(torch.rand(GENES))
        found.importance.copy_(torch.tensor([0.7, 0.2, 0.4])[: shape.members])
    return found


@pytest.fixture(params=[LinearReader, Transformer])
def reader(request) -> Reader:
    return drawn(request.param)


@pytest.fixture
def cells() -> Tensor:
    """Of which about a third of the genes are absent."""
    generator = torch.Generator().manual_seed(1)
    found = 3 * torch.rand(CELLS, GENES, generator=generator, dtype=torch.float64)
    return found * (torch.rand(CELLS, GENES, generator=generator) > 0.3)


def read(reader: Reader, cells: Tensor) -> Tensor:
    return reader.summaries(cells, reader.standardised(cells))


def test_each_member_is_what_it_would_be_alone(reader, cells):
    together, own = read(reader, cells), dict(reader.named_parameters())
    for member in range(SHAPE.members):
        alone = drawn(type(reader), replace(SHAPE, members=1))
        for name, parameter in alone.named_parameters():
            parameter.copy_(own[name][member : member + 1])
        alone.mean, alone.sd = reader.mean, reader.sd
        torch.testing.assert_close(read(alone, cells)[0], together[member])
        assert (together[member] - together[member - 1]).abs().mean() > 0.1


def test_a_cell_is_read_alike_among_any_others(reader, cells):
    whole, order = read(reader, cells), [2, 0, 7]
    torch.testing.assert_close(read(reader, cells[order]), whole[:, order])


def test_members_count_by_their_importance(reader, cells):
    cell, logits = reader(cells)
    summaries, expected = read(reader, cells), 0.0
    for member, importance in enumerate(reader.importance):
        own = summaries[member] @ reader.head[member] + reader.head_bias[member]
        expected = expected + importance * own.log_softmax(-1)
    torch.testing.assert_close(logits, expected)
    every = summaries.transpose(0, 1).flatten(1)
    torch.testing.assert_close(cell, (every - reader.centre) @ reader.axes)


def test_without_each_gene_is_the_forward_pass_with_that_gene_hidden(reader, cells):
    z = reader.standardised(cells[3])
    found = reader.without_each(cells[3], z)
    for gene in range(GENES):
        kept = (torch.arange(GENES) != gene).double()
        summaries = reader.summaries(cells[3:4] * kept, z[None] * kept)
        torch.testing.assert_close(found[gene], reader.logits(summaries)[0])


def test_what_is_hidden_is_not_read(reader, cells):
    """The keys of guides, which have this sd: cells with them and without are the same."""
    reader.sd[3] = HIDDEN
    others = cells.clone()
    others[:, 3] = 1 - others[:, 3].clamp(max=1)
    torch.testing.assert_close(reader(cells)[0], reader(others)[0])
    others[:, 4] += 1
    assert not torch.allclose(reader(cells)[0], reader(others)[0])


@pytest.mark.parametrize(("error", "kept"), [(0.5, 10), (0.29, 8), (0.2, 5), (0.1, 0)])
def test_the_threshold_keeps_its_error_on_held_out_cells(error, kept):
    """Five sure cells are right; of the five unsure ones two are wrong. One more may be wrong than
    was seen to be.
    """
    reader = drawn(LinearReader)
    reader.confidence = torch.tensor([0.99, 0.98, 0.97, 0.96, 0.95, 0.8, 0.7, 0.65, 0.6, 0.5])
    reader.right = torch.tensor([True] * 5 + [False, True, True, False, True])
    found = reader.threshold(error)
    assert int((reader.confidence >= found).sum()) == kept
    assert math.isinf(found) == (kept == 0)
