"""The regulation layer: what it computes, and why its signs have a meaning."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from flashsign.reference import reference_spherical_attention
from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.networks.readouts.effect import effect_network
from grn.networks.readouts.regulation_attention import attention_network

REGULATORS = (0, 3, 5)
STATES = 3
close = {"rtol": 1e-10, "atol": 1e-12}


def some_cells(cells: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiplicities of the regulators, all present, and of the basal gene."""
    generator = torch.Generator().manual_seed(2)
    values = 0.1 + 3 * torch.rand(cells, 3, generator=generator, dtype=torch.float64)
    return values, 0.5 + torch.rand(cells, generator=generator, dtype=torch.float64)


def one_hot(state: int, cells: int = 7) -> torch.Tensor:
    return torch.eye(STATES, dtype=torch.float64)[[state] * cells]


def soft_states(cells: int = 7) -> torch.Tensor:
    """Memberships of every cell in every state."""
    drawn = torch.rand(cells, STATES, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return drawn / drawn.sum(1, keepdim=True)


def one_state(cells: int = 7) -> torch.Tensor:
    return torch.ones(cells, 1, dtype=torch.float64)


def exported(layer) -> list[torch.Tensor]:
    cells, basal = some_cells()
    states, regulation = soft_states(), Regulation(layer)
    if layer.states == 1:
        states = one_state()
    else:
        regulation = Regulation(RegulationLayer(1, layer.genes, layer.regulators, 1, 1).double(), layer)
    levels = np.zeros((layer.states, layer.genes))
    networks = (
        effect_network(regulation, cells, basal, states, levels),
        attention_network(regulation, cells, basal, states),
    )
    return [torch.from_numpy(each) for network in networks for each in (network.weight, *network.by_type.values())]


def test_one_member_and_head_is_spherical_attention(make_regulation):
    """Keys: regulators, depth, and the basal gene's own score, which has no value. Weights count from the mean."""
    layer, (cells, basal) = make_regulation(members=1, heads=1), some_cells()
    m = layer.inputs(cells, basal)
    expected = torch.empty(len(cells), layer.genes, dtype=torch.float64)
    amount = F.softplus(layer.raw_amount[0, 0])
    for gene in range(layer.genes):
        # The basal gene's score has a key dimension of its own.
        q = torch.cat([layer.query[0, 0, gene], layer.log_basal[0, 0, gene].exp()[None]])
        k = F.pad(layer.key[0, 0], (0, 1, 0, 1))
        k[-1, -1] = 1
        present = F.pad(m, (0, 1), value=1.0).clone()
        if gene in REGULATORS:
            present[:, REGULATORS.index(gene)] = 0  # absent for itself
        v = F.pad(amount * (m - layer.centre) / m, (0, 1))[..., None]  # m v: from the mean multiplicity to the cell's
        q, k = q.expand(len(cells), 1, 1, -1), k.expand(len(cells), 1, -1, -1)
        message = reference_spherical_attention(q, k, v[:, None], present, eps=0)
        expected[:, gene] = F.softplus(layer.raw_gain[0, 0, gene]) * message[:, 0, 0, 0] + layer.bias[0, 0, gene]
    torch.testing.assert_close(layer(cells, basal), expected, **close)
    assert (expected - layer.bias[0, 0]).std() > 0.1


def test_no_gene_reads_itself(make_regulation):
    """Its own multiplicity changes nothing of its prediction, to the last bit, and something of the others'."""
    layer, (cells, basal) = make_regulation(), some_cells()
    before = layer(cells, basal)
    for column, gene in enumerate(REGULATORS):
        moved = cells.clone()
        moved[:, column] *= 3
        change = layer(moved, basal) - before
        assert (change[:, gene] == 0).all()
        assert (change[:, [other for other in range(12) if other != gene]] != 0).all()


@given(st.integers(0, 2**31), st.floats(0.01, 30), st.floats(0.01, 30), st.integers(0, 2))
def test_the_sign_of_a_slope_is_that_of_the_score(seed, size, others, state):
    """Amounts, gains and the basal gene's score are positive for every value of their parameters. This holds in each
    state and head, and over all heads where these agree."""
    generator = torch.Generator().manual_seed(seed)
    layer = RegulationLayer(2, 6, torch.tensor([1, 4]), 2, 3, STATES, deviates=True).double().requires_grad_(False)
    for name, parameter in layer.named_parameters():
        scale = size if name in ("query", "deviation", "key") else others
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    sign = ((layer.query + layer.deviation[:, :, state]) @ layer.key.mT).sign()
    sign[:, :, [1, 4], [0, 1]] = 0
    scores = layer.scores(state=state)
    assert torch.equal(scores.score.sign(), sign)
    assert all((positive > 0).all() for positive in (scores.amount, scores.gain, scores.basal_score))
    agree = (sign[:, 0] == sign[:, 1]).nonzero(as_tuple=True)
    assert torch.equal(scores.head_slopes().sum(1).sign()[agree], sign[:, 0][agree])


@pytest.mark.parametrize("states", [1, STATES])
def test_flipping_query_and_key_changes_nothing(make_regulation, states):
    """The remaining freedom of signs, deviations included: predictions and networks are the same to the last bit."""
    layer, (cells, basal) = make_regulation(states=states), some_cells()
    known = soft_states() if states > 1 else None
    before, networks = layer(cells, basal, known), exported(layer)
    for parameter in (layer.query, layer.deviation, layer.key):
        parameter[1, 0].neg_()
    assert torch.equal(layer(cells, basal, known), before)
    assert all(torch.equal(*pair) for pair in zip(exported(layer), networks, strict=True))


@pytest.mark.parametrize("states", [1, STATES])
def test_flipping_the_key_alone_flips_the_prediction_and_the_exported_sign(make_regulation, states):
    """Identified: the two go together, in every state."""
    layer, (cells, basal) = make_regulation(members=1, heads=1, states=states), some_cells()
    known = soft_states() if states > 1 else one_state()
    level = known @ layer.bias[0]
    before, networks = layer(cells, basal, known), exported(layer)
    layer.key.neg_()
    torch.testing.assert_close(layer(cells, basal, known) - level, level - before, **close)
    assert len(networks) == (2 if states == 1 else 2 + 2 * STATES)
    assert all(torch.equal(now, -then) for now, then in zip(exported(layer), networks, strict=True))
    assert all(then.abs().max() > 0.1 for then in networks)


@pytest.mark.parametrize("genes", [slice(0, 3), slice(3, 4), slice(3, 6), slice(1, 3), slice(5, 12), slice(8, 99)])
@pytest.mark.parametrize("members", [slice(None), slice(1, 2), slice(0, 2)])
def test_slices_of_the_scores_are_those_of_the_whole(make_regulation, genes, members):
    """The zeros of self pairs stay where they are, at the borders of the slice too."""
    layer = make_regulation(members=3)
    whole, part = layer.scores(), layer.scores(genes, members)
    torch.testing.assert_close(part.score, whole.score[members, :, genes], **close)
    assert torch.equal(part.score == 0, whole.score[members, :, genes] == 0)
    assert (whole.score == 0).sum() == 3 * 2 * len(REGULATORS)
    torch.testing.assert_close(part.head_slopes().sum(1), whole.head_slopes().sum(1)[members, genes], **close)
    for name, expected in (
        ("amount", whole.amount),
        ("gain", whole.gain[:, :, genes]),
        ("basal_score", whole.basal_score[:, :, genes]),
    ):
        torch.testing.assert_close(getattr(part, name), expected[members], **close)


@pytest.mark.parametrize("genes", [slice(0, 3), slice(3, 6)])
def test_scores_of_a_state_are_the_shared_ones_and_its_deviation(make_regulation, genes):
    layer = make_regulation(states=STATES)
    shared = layer.shared_scores(genes).score
    for state in range(STATES):
        own = layer.scores(genes, state=state).score
        expected = layer.deviation[:, :, state, genes] @ layer.key.mT
        expected[shared == 0] = 0
        torch.testing.assert_close(own - shared, expected, **close)
        assert torch.equal(own == 0, shared == 0)


@pytest.mark.parametrize("states", [1, STATES])
def test_predictions_are_the_mean_over_the_members(make_regulation, states):
    layer, (cells, basal) = make_regulation(members=3, states=states), some_cells()
    known = soft_states() if states > 1 else one_state()
    each = layer.predict(layer.inputs(cells, basal), known)
    torch.testing.assert_close(layer(cells, basal, known), each.mean(0), **close)
    assert (each.std(0) > 1e-3).all(), "they differ"
    own = torch.stack([layer.inputs(cells * factor, basal) for factor in (1, 2, 3)])
    of_each = torch.stack([known, known.roll(1, 0), known.roll(2, 0)])
    found = layer.predict(own, of_each)
    torch.testing.assert_close(found[0], each[0], **close)
    torch.testing.assert_close(found[2], layer.predict(own[2], of_each[2])[2], **close)
    torch.testing.assert_close(layer.predict(own[1:], of_each[1:], slice(1, 3)), found[1:], **close)


def test_members_that_predict_ranks_have_no_part_in_the_prediction(make_regulation):
    layer, (cells, basal) = make_regulation(members=3), some_cells()
    each = layer.predict(layer.inputs(cells, basal), one_state())
    layer.predicts_ranks.copy_(torch.tensor([0, 1, 0]))
    torch.testing.assert_close(layer(cells, basal), each[[0, 2]].mean(0), **close)
    layer.predicts_ranks.fill_(1)  # where there are no others, they have
    torch.testing.assert_close(layer(cells, basal), each.mean(0), **close)


def test_known_states_are_evaluated_by_their_own_scores(make_regulation):
    """One-hot states: the layer of one state with that state's queries, centre and bias."""
    layer, (cells, basal) = make_regulation(states=STATES), some_cells()
    predictions = []
    for state in range(STATES):
        alone = RegulationLayer(2, 12, torch.tensor(REGULATORS), 2, 5).double().requires_grad_(False)
        for name in ("unit", "key", "log_basal", "raw_amount", "raw_gain"):
            getattr(alone, name).copy_(getattr(layer, name))
        alone.query.copy_(layer.query + layer.deviation[:, :, state])
        alone.centre.copy_(layer.centre[state])
        alone.bias.copy_(layer.bias[:, state, None])
        predictions.append(layer(cells, basal, one_hot(state)))
        torch.testing.assert_close(predictions[-1], alone(cells, basal), **close)
    assert (predictions[0] - predictions[1]).abs().mean() > 0.1, "states differ"


def test_a_cell_of_several_states_is_predicted_by_their_mean(make_regulation):
    layer, (cells, basal) = make_regulation(states=STATES), some_cells()
    each = torch.stack([layer(cells, basal, one_hot(state)) for state in range(STATES)])
    known = soft_states()
    torch.testing.assert_close(layer(cells, basal, known), torch.einsum("ck,kcn->cn", known, each), **close)
    torch.testing.assert_close(layer(cells, basal), each.mean(0), **close)  # unknown: all in equal parts


def test_regulation_reads_states_where_they_are_known_and_pools_elsewhere(make_regulation):
    pooled, by_state = make_regulation(), make_regulation(states=STATES)
    regulation, (cells, basal) = Regulation(pooled, by_state), some_cells()
    assert torch.equal(regulation(cells, basal), pooled(cells, basal))
    assert torch.equal(regulation(cells, basal, soft_states()), by_state(cells, basal, soft_states()))
    assert not torch.allclose(pooled(cells, basal), by_state(cells, basal, soft_states()))
    assert regulation.within is by_state
    alone = Regulation(pooled)
    assert torch.equal(alone(cells, basal, soft_states()), pooled(cells, basal))
    assert alone.within is pooled and torch.equal(alone.regulators, torch.tensor(REGULATORS))


def test_squared_slopes_are_summed_without_those_of_the_depth(make_regulation):
    layer = make_regulation(heads=1)
    expected = layer.scores().head_slopes().sum(1)[..., :-1].square().sum(2)
    torch.testing.assert_close(layer.squared_slopes(), expected, **close)
    before = layer.squared_slopes()
    layer.raw_amount[..., -1] += 1
    assert torch.equal(layer.squared_slopes(), before)


def test_deviations_are_squared_in_units_of_the_ratio(make_regulation):
    layer = make_regulation(states=STATES)
    shared = layer.shared_scores().head_slopes()[..., :-1]
    expected = shared.square().sum((1, 3))
    for state in range(STATES):
        own = layer.scores(state=state).head_slopes()[..., :-1]
        expected += ((own - shared) / layer.ratio).square().sum((1, 3))
    torch.testing.assert_close(layer.squared_slopes(), expected, **close)
    assert layer.squared_slopes().shape == (2, 12)


def test_a_member_that_does_not_read_the_depth_predicts_from_the_regulators_alone(make_regulation):
    layer, (cells, basal) = make_regulation(members=2), some_cells()
    layer.reads_depth[1] = 0
    reading, without = (layer.predict(layer.inputs(cells, each), one_state()) for each in (basal, basal + 1))
    assert torch.equal(reading[1], without[1])
    assert not torch.allclose(reading[0], without[0])


def test_autocast_leaves_the_layer_in_float32(make_regulation):
    layer, (cells, basal) = make_regulation().float(), some_cells()
    cells, basal = cells.float(), basal.float()
    exact = layer.predict(layer.inputs(cells, basal), one_state().float()).mean(0)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(cells, basal)
        rough = layer.predict(layer.inputs(cells, basal), one_state().float()).mean(0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)
    assert (rough - exact).abs().max() > 1e-3, "autocast would show"
