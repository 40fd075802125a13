"""The linear reader: members as one batch, what is hidden, and a threshold for an error."""

import math
from dataclasses import replace

import pytest
import torch

from grn.model.linear_reader import LinearReader
from grn.model.reader import HIDDEN, ReaderShape

SHAPE = ReaderShape(members=3, classes=3, summary=6, hidden=7, embedding=4)
CELLS, GENES = 8, 12


@pytest.fixture
def token() -> LinearReader:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        found = LinearReader(GENES, SHAPE).double().requires_grad_(False)
        for tensor in (*found.parameters(), found.mean, found.axes, found.centre):
            tensor.add_(0.3 * torch.randn_like(tensor))
        found.sd.add_(torch.rand(GENES))
        found.importance.copy_(torch.tensor([0.7, 0.2, 0.4]))
    return found


@pytest.fixture
def cells() -> torch.Tensor:
    return (
        torch.rand(CELLS, GENES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        * 3
    )


def test_each_member_is_what_it_would_be_alone(token, cells):
    together = token.summaries(cells, token.standardised(cells))
    names = dict(token.named_parameters())
    for member in range(SHAPE.members):
        alone = LinearReader(GENES, replace(SHAPE, members=1)).double()
        for name, parameter in alone.named_parameters():
            parameter.data.copy_(names[name][member : member + 1])
        found = alone.summaries(cells, token.standardised(cells))[0]
        torch.testing.assert_close(found, together[member])
        assert (together[member] - together[member - 1]).abs().mean() > 0.1


def test_members_count_by_their_importance(token, cells):
    cell, logits = token(cells)
    summaries = token.summaries(cells, token.standardised(cells))
    of_members = torch.stack(
        [(summaries[p] @ token.head[p] + token.head_bias[p]).log_softmax(-1) for p in range(3)]
    )
    torch.testing.assert_close(logits, torch.einsum("p,pck->ck", token.importance, of_members))
    torch.testing.assert_close(cell, (torch.cat(list(summaries), 1) - token.centre) @ token.axes)


def test_without_each_gene_is_the_forward_pass_with_that_gene_hidden(token, cells):
    z = token.standardised(cells[3])
    found = token.without_each(cells[3], z)
    for gene in range(GENES):
        kept = torch.ones(GENES).double()
        kept[gene] = 0
        summaries = token.summaries(cells[3:4] * kept, z[None] * kept)
        torch.testing.assert_close(found[gene], token.logits(summaries)[0])


@pytest.mark.parametrize(("error", "kept"), [(0.5, 10), (0.29, 8), (0.2, 5), (0.1, 0)])
def test_the_threshold_keeps_its_error_on_held_out_cells(token, error, kept):
    """Five sure cells are right; of the five unsure ones two are wrong. One more may be wrong than
    was seen to be.
    """
    token.confidence = torch.tensor([0.99, 0.98, 0.97, 0.96, 0.95, 0.8, 0.7, 0.65, 0.6, 0.5])
    token.right = torch.tensor([True] * 5 + [False, True, True, False, True])
    found = token.threshold(error)
    assert int((token.confidence >= found).sum()) == kept
    assert math.isinf(found) == (kept == 0)


def test_what_is_hidden_is_not_read(token, cells):
    """The keys of guides, which have this sd: cells with them and without are the same to the
    token.
    """
    token.sd[3] = HIDDEN
    others = cells.clone()
    others[:, 3] = 1 - others[:, 3]
    torch.testing.assert_close(token(cells)[0], token(others)[0])
    cells[:, 4], others[:, 4] = 0.0, 1.0
    assert not torch.allclose(token(cells)[0], token(others)[0])
