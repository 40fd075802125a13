"""The regulation layer: what it computes, and why its signs have a meaning."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from flashsign.reference import reference_spherical_attention
from grn.model.regulation_layer import RegulationLayer
from grn.network.readouts.effect import effect_network
from grn.network.readouts.regulation_attention import attention_network

REGULATORS = (0, 3, 5)
close = {"rtol": 1e-10, "atol": 1e-12}


def some_cells(cells: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiplicities of the regulators, all present, and of the basal gene."""
    generator = torch.Generator().manual_seed(2)
    values = 0.1 + 3 * torch.rand(cells, 3, generator=generator, dtype=torch.float64)
    return values, 0.5 + torch.rand(cells, generator=generator, dtype=torch.float64)


def exported(layer) -> list[torch.Tensor]:
    cells, basal = some_cells()
    labels = torch.zeros(len(cells), dtype=torch.int64)
    networks = effect_network(layer, cells, basal, labels), attention_network(layer, cells, basal, labels)
    return [torch.from_numpy(network.weight) for network in networks]


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
        expected[:, gene] = F.softplus(layer.raw_gain[0, 0, gene]) * message[:, 0, 0, 0] + layer.bias[0, gene]
    torch.testing.assert_close(layer(cells, basal), expected, **close)
    assert (expected - layer.bias[0]).std() > 0.1


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


def test_a_regulator_at_its_mean_in_every_cell_contributes_nothing(make_regulation):
    """Neither its amount nor its sign can be seen: it only takes part in the norm."""
    layer, (cells, basal) = make_regulation(), some_cells()
    cells[:, 1] = layer.centre[1] * layer.unit[1]
    before = layer(cells, basal)
    layer.raw_amount[..., 1] += 2
    layer.key[..., 1, :].neg_()
    torch.testing.assert_close(layer(cells, basal), before, **close)
    assert not torch.allclose(layer(2 * cells, basal), make_regulation()(2 * cells, basal))


def test_the_average_cell_has_the_bias(make_regulation):
    layer = make_regulation()
    mean = (layer.centre * layer.unit)[None]
    torch.testing.assert_close(layer(mean[:, :3], mean[:, 3]), layer.bias.mean(0)[None], **close)


def test_a_fresh_layer_predicts_the_mean_whatever_it_reads():
    layer, (cells, basal) = RegulationLayer(3, 12, torch.tensor(REGULATORS), 2, 4), some_cells()
    assert (layer(cells, basal) == 0).all()


@given(st.integers(0, 2**31), st.floats(0.01, 30), st.floats(0.01, 30))
def test_the_sign_of_a_slope_is_that_of_the_score(seed, size, others):
    """Amounts, gains and the basal gene's score are positive for every value of their parameters. This holds in each
    head, and over all heads where these agree."""
    generator = torch.Generator().manual_seed(seed)
    layer = RegulationLayer(2, 6, torch.tensor([1, 4]), 2, 3).double().requires_grad_(False)
    for name, parameter in layer.named_parameters():
        scale = size if name in ("query", "key") else others
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    sign = (layer.query @ layer.key.mT).sign()
    sign[:, :, [1, 4], [0, 1]] = 0
    scores = layer.scores()
    assert torch.equal(scores.score.sign(), sign)
    assert all((positive > 0).all() for positive in (scores.amount, scores.gain, scores.basal_score))
    agree = (sign[:, 0] == sign[:, 1]).nonzero(as_tuple=True)
    assert torch.equal(scores.head_slopes().sum(1).sign()[agree], sign[:, 0][agree])


def test_flipping_query_and_key_changes_nothing(make_regulation):
    """The remaining freedom of signs: predictions and networks are the same to the last bit."""
    layer, (cells, basal) = make_regulation(), some_cells()
    before, networks = layer(cells, basal), exported(layer)
    layer.query[1, 0].neg_()
    layer.key[1, 0].neg_()
    assert torch.equal(layer(cells, basal), before)
    assert all(torch.equal(*pair) for pair in zip(exported(layer), networks, strict=True))


def test_flipping_the_key_alone_flips_the_prediction_and_the_exported_sign(make_regulation):
    """Identified: the two go together."""
    layer, (cells, basal) = make_regulation(members=1, heads=1), some_cells()
    before, networks = layer(cells, basal), exported(layer)
    layer.key.neg_()
    torch.testing.assert_close(layer(cells, basal) - layer.bias, layer.bias - before, **close)
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


def test_predictions_are_the_mean_over_the_members(make_regulation):
    layer, (cells, basal) = make_regulation(members=3), some_cells()
    each = layer.predict(layer.inputs(cells, basal))
    torch.testing.assert_close(layer(cells, basal), each.mean(0), **close)
    assert (each.std(0) > 1e-3).all(), "they differ"
    own = torch.stack([layer.inputs(cells * factor, basal) for factor in (1, 2, 3)])
    torch.testing.assert_close(layer.predict(own)[0], each[0], **close)
    torch.testing.assert_close(layer.predict(own[1:], slice(1, 3)), layer.predict(own)[1:], **close)


def test_squared_slopes_are_summed_without_those_of_the_depth(make_regulation):
    layer = make_regulation(heads=1)
    expected = layer.scores().head_slopes().sum(1)[..., :-1].square().sum((1, 2))
    torch.testing.assert_close(layer.squared_slopes(), expected, **close)
    before = layer.squared_slopes()
    layer.raw_amount[..., -1] += 1
    assert torch.equal(layer.squared_slopes(), before)


def test_a_member_that_does_not_read_the_depth_predicts_from_the_regulators_alone(make_regulation):
    layer, (cells, basal) = make_regulation(members=2), some_cells()
    layer.reads_depth[1] = 0
    reading, without = (layer.predict(layer.inputs(cells, each)) for each in (basal, basal + 1))
    assert torch.equal(reading[1], without[1])
    assert not torch.allclose(reading[0], without[0])


def test_without_basal_multiplicities_they_are_one(make_regulation):
    layer, (cells, _) = make_regulation(), some_cells()
    torch.testing.assert_close(layer(cells), layer(cells, torch.ones(7)), **close)


def test_autocast_leaves_the_layer_in_float32(make_regulation):
    layer, (cells, basal) = make_regulation().float(), some_cells()
    cells, basal = cells.float(), basal.float()
    exact = layer.predict(layer.inputs(cells, basal)).mean(0)
    with torch.autocast("cpu", torch.bfloat16):
        found, rough = layer(cells, basal), layer.predict(layer.inputs(cells, basal)).mean(0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)
    assert (rough - exact).abs().max() > 1e-3, "autocast would show"
