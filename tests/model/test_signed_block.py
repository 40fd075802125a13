"""A signed block: what it computes, why its signs have a meaning, and its derivatives."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from grn.model import signed_block as module
from grn.model.signed_block import SignedBlock

OWN = torch.tensor([-1, 2, 0, -1, -1])  # gene 1 is regulator 2, gene 2 is regulator 0
MEMBERS, CELLS, REGULATORS = 2, 7, 4
EVERY = torch.arange(len(OWN))
close = {"rtol": 1e-10, "atol": 1e-12}


def some_block(states: int = 1, seed: int = 0, size: float = 0.7) -> SignedBlock:
    generator = torch.Generator().manual_seed(seed)
    block = SignedBlock(MEMBERS, OWN, REGULATORS, 4, 2, 3, states).double().requires_grad_(False)
    for parameter in block.parameters():
        parameter.add_(
            size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        )
    for buffer in (block.centre, block.square, block.level):
        buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.1)
    return block


def some_cells(seed: int = 1) -> torch.Tensor:
    return 3 * torch.rand(
        CELLS, REGULATORS + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def in_state(state: int, states: int) -> torch.Tensor:
    return torch.eye(states, dtype=torch.float64)[[state] * CELLS]


def mixed(states: int) -> torch.Tensor:
    share = torch.rand(
        CELLS, states, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    share[0] = torch.eye(states)[0]
    return share / share.sum(1, keepdim=True)


@pytest.mark.parametrize("states", [1, 3])
def test_it_is_the_formula_with_every_head_written_out(states):
    """A cell of several states is predicted by their mean; a member may read cells of its own."""
    block, m, share = some_block(states), torch.stack([some_cells(), some_cells(2)]), mixed(states)
    expected = share @ block.level + block.bias[:, None]
    for member, head, state in product(range(MEMBERS), range(4), range(states)):
        shared, read = head // 2, m[member]  # two query heads read each key head
        query = block.embedding.query[member, head]
        if states > 1:
            query = query + block.embedding.deviation[member, head, state]
        score = query @ block.embedding.key[member, shared].T
        score[1, 2] = score[2, 0] = 0
        amount = F.softplus(block.raw_amount[member, shared])
        gain = F.softplus(block.raw_gain[member, head])
        basal = block.log_basal[member, head].exp()
        norm = ((read[:, None] * score).square().sum(-1) + basal.square()).sqrt()
        change = (read[:, None] - block.centre[member, state]) * score
        part = gain * (change / norm[..., None] * amount).sum(-1)
        expected[member] += share[:, state, None] * part
    torch.testing.assert_close(block(m, share, EVERY), expected, **close)
    of_one = block(m[0], share, EVERY)
    torch.testing.assert_close(of_one[0], expected[0], **close)
    some = torch.tensor([3, 1])
    torch.testing.assert_close(block(m, share, some), expected[..., some], **close)


@pytest.mark.parametrize("states", [1, 3])
def test_scores_and_gradients_are_of_a_table_without_genes_on_themselves(states):
    block, pick = some_block(states).requires_grad_(), torch.tensor([4, 1, 2])
    (query, key), leaves = block.embedding(pick), list(block.embedding.parameters())
    itself = OWN[pick][:, None] == torch.arange(REGULATORS + 1)
    masked, found = (query @ key[:, :, None].mT).masked_fill(itself, 0.0), block.scores(pick)
    given = torch.linspace(-1, 1, masked.numel()).double().view_as(masked)
    ours, theirs = (
        torch.autograd.grad(table, leaves, given, allow_unused=True) for table in (found, masked)
    )
    for one, other in zip((found, *ours), (masked, *theirs), strict=True):
        assert one is other is None or torch.testing.assert_close(one, other, **close) is None


@pytest.mark.parametrize("states", [1, 3])
def test_without_keys_scores_are_those_of_keys_that_are_the_identity(monkeypatch, states):
    """And so are their gradients: many keys of full width are not learned, as their products would
    take long.
    """
    pick, found = torch.tensor([4, 1, 2]), []
    for most in (REGULATORS + 1, REGULATORS):
        monkeypatch.setattr(module, "MOST_KEYS", most)
        block = SignedBlock(MEMBERS, OWN, REGULATORS, 1, 1, 64, states).double()
        assert (block.embedding.key is None) == (most == REGULATORS)
        generator = torch.Generator().manual_seed(0)
        for parameter in (block.embedding.query, block.embedding.deviation):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
        if block.embedding.key is not None:
            block.embedding.key.data.copy_(torch.eye(REGULATORS + 1))
        scores = block.scores(pick)
        given = torch.linspace(-1, 1, scores.numel()).double().view_as(scores)
        leaves = [block.embedding.query] + [block.embedding.deviation] * (states > 1)
        found.append([scores, *torch.autograd.grad(scores, leaves, given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **close)
    assert (found[1][0][..., 1, 2] == 0).all() and (found[1][0][..., 2, 0] == 0).all()


def slopes_at(states: int, rank: int = REGULATORS + 1) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Shared slopes [n, R + 1] and deviations [S, n, R + 1] of states, of a low rank; no gene has
    one on itself.
    """
    generator = torch.Generator().manual_seed(3)
    one, other = (
        torch.randn(shape, generator=generator)
        for shape in ((1 + states, len(OWN), rank), (rank, 5))
    )
    every = 0.2 * one @ other
    every[:, 1, 2] = every[:, 2, 0] = 0
    return every[0], every[1:] if states > 1 else None


@pytest.mark.parametrize("most", [REGULATORS + 1, REGULATORS])
@pytest.mark.parametrize("states", [1, 3])
@pytest.mark.parametrize("heads", [(1, 1), (4, 2)])
def test_a_block_starts_with_the_slopes_that_it_is_given(monkeypatch, states, heads, most):
    """Of full width: in an average cell exactly, and no other member's change."""
    monkeypatch.setattr(module, "MOST_KEYS", most)
    block = SignedBlock(MEMBERS, OWN, REGULATORS, *heads, 64, states).requires_grad_(False)
    block.square.fill_(2.0)
    other = block.slopes(block.scores(EVERY), EVERY)[0]
    shared, deviations = slopes_at(states)
    assert block.start(1, shared, deviations) == 0
    found = block.slopes(block.scores(EVERY), EVERY)
    expected = shared.expand(states, -1, -1) if deviations is None else shared + deviations
    torch.testing.assert_close(found[0], other)
    torch.testing.assert_close(found[1], expected, rtol=0.02 if states > 1 else 1e-4, atol=1e-6)
    block.start(0, 0 * shared, None)
    assert (block.slopes(block.scores(EVERY), EVERY)[0] == 0).all(), "nothing to learn from"


def test_a_gain_that_is_large_is_set_as_well_as_a_small_one():
    """Of softplus, whose inverse overflows if it is written as log(exp(b) - 1)."""
    block = SignedBlock(MEMBERS, OWN, REGULATORS, 1, 1, 64, 1).requires_grad_(False)
    for size in (1e-3, 1.0, 100.0):
        block.start(0, size * torch.ones(5, 5), None)
        gain, basal = block.gains(EVERY)
        torch.testing.assert_close(gain[0], basal[0], rtol=1e-4, atol=0)


@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_narrow_heads_start_with_the_best_approximation_of_their_width(heads, key_heads):
    """As the singular values have it; each key head has directions of its own."""
    block = (
        SignedBlock(MEMBERS, OWN, REGULATORS, heads, key_heads, 2, 3).double().requires_grad_(False)
    )
    block.of_regulators = False  # what is approximated reads all keys
    shared, deviations = (each.double() for each in slopes_at(3))
    left_out = block.start(0, shared, deviations)
    every = torch.cat([shared[None], deviations]).flatten(0, 1)
    sizes = torch.linalg.svdvals(every).square()
    assert left_out == pytest.approx(float(sizes[2 * key_heads :].sum() / sizes.sum()), rel=1e-4)
    scores = block.scores(EVERY)[0].sum(0)  # [S, n, R + 1]
    directions = torch.linalg.svd(every)[2][: 2 * key_heads]
    bent = (1 + 1 / module.BEND**2) ** 0.5
    torch.testing.assert_close(
        scores / bent, (shared + deviations) @ directions.T @ directions, rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("part", [0.0, 0.4, 1.0])
def test_in_training_a_part_of_the_differences_between_states_is_left_in(part):
    """Predictions know the means of states in full."""
    block, m = some_block(3), some_cells()
    size = torch.tensor([0.5, 0.3, 0.2]).double()
    block.mixed.copy_((1 - part) * torch.eye(3).double() + part * size)
    known = block.eval()(m, mixed(3), EVERY)
    trained = block.train()(m, mixed(3), EVERY)
    assert torch.equal(trained, known) == (part == 0)
    for name in ("centre", "level"):
        table = getattr(block, name)
        table.copy_((1 - part) * table + part * (size @ table)[:, None])
    torch.testing.assert_close(trained, block.eval()(m, mixed(3), EVERY), **close)


def test_autocast_rounds_no_scores():
    block, found = some_block(3).float().requires_grad_(), []
    m, states, penalty = some_cells().float(), mixed(3).float(), torch.ones(MEMBERS, 3)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            read, shrink = block.learned(m, states, EVERY, penalty)
        found.append(
            [
                shrink,
                *torch.autograd.grad(read.sum() + shrink.sum(), list(block.embedding.parameters())),
            ]
        )
    torch.testing.assert_close(*found)


@given(st.integers(0, 2**31), st.floats(0.01, 30), st.integers(0, 2))
def test_the_sign_of_a_score_is_the_sign_of_what_the_regulator_does(seed, size, state):
    """For all values of the parameters: amounts and gains stay positive. Of each head, in an
    average cell.
    """
    block = some_block(3, seed, size)
    scores, (gain, basal) = block.scores(EVERY), block.gains(EVERY)
    assert (block.amounts() > 0).all() and (gain > 0).all() and (basal > 0).all()
    m, one = block.centre[:, state, None], torch.ones(1).double()
    for head in range(4):
        slopes = block.derivatives(m, state, EVERY, scores, one, slice(head, head + 1))
        assert torch.equal(slopes.sign(), scores[:, head, state].sign())
    agree = (scores[:, :, state].sign() == scores[:, :1, state].sign()).all(1)
    for found in (
        block.derivatives(m, state, EVERY, scores, one),
        block.slopes(scores, EVERY)[:, state],
    ):
        assert torch.equal(found.sign()[agree], scores[:, 0, state].sign()[agree])


def test_mean_weights_are_the_scores_over_their_norms():
    block, m = some_block(3), some_cells()
    scores, pick = block.scores(EVERY), torch.tensor([1, 4])
    s = m[:, None] * scores[:, :, 1, None]  # [P, H, B, n, R + 1]
    weights = (
        s / (s.square().sum(-1) + block.gains(EVERY)[1][:, :, None].square()).sqrt()[..., None]
    )
    torch.testing.assert_close(block.mean_weights(m, 1, EVERY, scores), weights.mean(2), **close)
    assert weights.square().sum(-1).max() < 1, "the basal gene bounds the norm"
    few = block.mean_weights(m, 1, pick, block.scores(pick), slice(3, 4))
    torch.testing.assert_close(few, weights.mean(2)[:, 3:, pick], **close)


@pytest.mark.parametrize("room", [(7, 7, 7), (7, 9, 8)])
def test_more_room_for_the_cells_of_a_state_changes_nothing(room):
    """As in a CUDA graph; a state without cells, one of all cells, and cells of two states."""
    block, states = some_block(3).requires_grad_(True), torch.zeros(CELLS, 3, dtype=torch.float64)
    states[:, 1] = torch.linspace(0.4, 1.0, CELLS)
    states[:, 0] = 1 - states[:, 1]
    found = []
    for size in (None, room):
        m = some_cells().requires_grad_(True)
        y, shrink = block.learned(
            m, states, EVERY, torch.ones(1, 3, dtype=torch.float64), room=size
        )
        used = [each for each in block.parameters() if each.requires_grad]
        found.append(
            (
                y.detach(),
                shrink.detach(),
                *torch.autograd.grad(y.square().sum() + shrink.sum(), [m, *used]),
            )
        )
    torch.testing.assert_close(found[0], found[1], **close)
