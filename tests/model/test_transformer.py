"""What the model's predictions depend on, and what they must not depend on."""

from dataclasses import replace

import pytest
import torch
from torch.autograd.functional import jacobian

from flashsign.reference import normalised_weights
from grn.bags import Bags
from grn.config.schema import ModelConfig
from grn.model.layout import Layout
from grn.model.transformer import FeedForward, MessageDropout

REGULATORS = (0, 3, 5)
close = {"rtol": 1e-9, "atol": 1e-10}


def same(found, expected) -> None:
    """Two predictions, whatever the form of their bags."""
    torch.testing.assert_close(found.multiplicity.flatten(), expected.multiplicity.flatten(), **close)
    for name in ("cell", "logits", "property"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **close)


def permuted(bags: Bags, order: torch.Tensor) -> Bags:
    return replace(bags, genes=bags.genes[order], multiplicity=bags.multiplicity[:, order])


OTHERS = ["softmax", "l1", "squared_relu"]


@pytest.mark.parametrize("attention", OTHERS)
def test_other_normalisers_have_the_same_parameters_and_take_both_forms_of_bags(make_model, make_bags, attention):
    model, spherical, bags = make_model(attention=attention), make_model(), make_bags()
    assert {name: x.shape for name, x in model.state_dict().items()} == {
        name: x.shape for name, x in spherical.state_dict().items()
    }
    dense = model(bags)
    same(model(bags.pack()), dense)
    assert (dense.multiplicity - spherical(bags).multiplicity).abs().max() > 0.01
    # An absent gene is no key: without it, the others are predicted alike.
    bags.multiplicity[:, 3] = 0
    kept = torch.tensor([gene for gene in range(12) if gene != 3])
    found, expected = model(permuted(bags, kept)), model(bags)
    torch.testing.assert_close(found.multiplicity, expected.multiplicity[:, kept], **close)
    torch.testing.assert_close(found.logits, expected.logits, **close)


@pytest.mark.parametrize("attention", OTHERS)
def test_other_normalisers_are_those_of_the_definition(make_model, make_bags, attention):
    """The message to the genes is that of weights written out; softmax with its scale."""
    model, bags = make_model(attention=attention), make_bags()
    block, layout, seen = model.blocks[0], Layout.of(bags, model.is_regulator), []
    tokens = model.embedding(layout.embedding_rows).expand(bags.cells, -1, -1)
    genes, summary = block.project(tokens, tokens[:, :1], layout.keys)
    found, _ = block.attention(genes, summary, layout, lambda *x: seen.append(x))
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x, heads in zip(genes, (4, 2, 2), strict=True))
    q = q / 2 if attention == "softmax" else q  # heads are 4 wide
    weights = normalised_weights(q, k, layout.multiplicity[:, layout.keys], attention)
    expected = weights @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(found, expected.transpose(1, 2).flatten(-2), **close)
    torch.testing.assert_close(seen[0][0], q, **close)


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("regulators", [None, REGULATORS, (7,)])
def test_packed_bags_give_the_predictions_of_dense_ones(make_model, make_bags, regulators, members):
    model, bags = make_model(regulators=regulators, members=members), make_bags()
    dense = model(bags)
    same(model(bags.pack()), dense)
    assert dense.multiplicity.std() > 0.1 and dense.logits.std() > 0.1, "or any two predictions would be the same"


@pytest.mark.parametrize("members", [0, 2])
def test_packed_cells_do_not_see_each_other(make_model, make_bags, members):
    model, bags = make_model(members=members), make_bags()
    together = model(bags.pack())
    alone = [model(Bags(bags.genes, bags.multiplicity[[c]], basal=bags.basal[[c]])) for c in range(bags.cells)]
    torch.testing.assert_close(together.logits, torch.cat([each.logits for each in alone]), **close)
    torch.testing.assert_close(together.multiplicity, torch.cat([each.multiplicity[0] for each in alone]), **close)


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_gene_depends_on_the_regulators_alone(make_model, make_bags, layers, members):
    """And so not on itself, if it is none; the summary, which reads every gene, is never a key."""
    model, bags = make_model(layers=layers, members=members), make_bags(cells=1)
    derivative = jacobian(lambda m: model(replace(bags, multiplicity=m)).multiplicity[0], bags.multiplicity)[:, 0]
    others = [gene for gene in range(12) if gene not in REGULATORS]
    assert (derivative[:, others] == 0).all()
    assert (derivative[:, list(REGULATORS)] != 0).all()


def test_class_and_property_depend_on_the_cell_through_its_summary_only(make_model, make_bags):
    model = make_model()
    found = model(make_bags())
    torch.testing.assert_close(found.logits, model.cell_type(found.cell), **close)
    mean, sd = model.property_scale
    torch.testing.assert_close(found.property, mean + sd * model.property(found.cell)[:, 0], **close)


@pytest.mark.parametrize("packed", [False, True])
def test_bags_regulators_replace_the_multiplicities_that_the_regulation_layer_reads(make_model, make_bags, packed):
    """Dense and packed, listed in any order; they reach predictions through the regulation layer alone."""
    model = make_model(members=2)
    bags = permuted(make_bags(), torch.randperm(12, generator=torch.Generator().manual_seed(1)))
    form = Bags.pack if packed else lambda bags: bags
    own = torch.stack([bags.multiplicity[:, bags.genes == gene][:, 0] for gene in REGULATORS], 1)
    given = model(form(replace(bags, regulators=own)))
    same(given, model(form(bags)))
    others = model(form(replace(bags, regulators=own + 1)))
    assert (others.multiplicity - given.multiplicity).abs().amax() > 1e-3
    assert torch.equal(others.logits, given.logits) and torch.equal(others.cell, given.cell)


def test_the_regulation_layer_adds_its_sds_to_the_prediction(make_model, make_bags):
    model, bags = make_model(members=2), make_bags()
    whole, layer = model(bags).multiplicity, model.regulation
    model.regulation = None
    added = model.sd * layer(bags.multiplicity[:, REGULATORS], bags.basal)
    torch.testing.assert_close(whole, model(bags).multiplicity + added, **close)
    assert added.abs().mean() > 0.1


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_dropping_a_gene_equals_multiplicity_zero(make_model, make_bags, packed, members):
    """Of a regulator and of another gene; the other genes' predictions and the cell's are the same."""
    model, bags = make_model(members=members), make_bags()
    bags.multiplicity[:, [3, 8]] = 0
    kept = torch.tensor([gene for gene in range(12) if gene not in (3, 8)])
    without = permuted(bags, kept)
    found, expected = model(without.pack() if packed else without), model(bags)
    torch.testing.assert_close(found.multiplicity.view(bags.cells, -1), expected.multiplicity[:, kept], **close)
    torch.testing.assert_close(found.logits, expected.logits, **close)


def test_a_masked_regulator_is_still_predicted_from_the_others(make_model, make_bags):
    model, bags = make_model(), make_bags(cells=1)
    bags.multiplicity[:, 3] = 0

    def predicted(m):
        return model(replace(bags, multiplicity=m)).multiplicity[0, 3]

    derivative = jacobian(predicted, bags.multiplicity)[0]
    assert derivative[0] != 0 and derivative[5] != 0


def test_the_basal_gene_makes_absolute_levels_visible(make_model, make_bags):
    """An L2 norm alone forgets a common factor of all multiplicities."""
    model, bags = make_model(), make_bags()
    doubled = model(replace(bags, multiplicity=2 * bags.multiplicity))
    assert (doubled.multiplicity - model(bags).multiplicity).abs().amax() > 1e-3
    assert (doubled.logits - model(bags).logits).abs().amax() > 1e-3


@pytest.mark.parametrize("packed", [False, True])
def test_the_basal_gene_has_multiplicity_one_unless_the_bag_says_otherwise(make_model, make_bags, packed):
    model, bags = make_model(), make_bags()
    form = Bags.pack if packed else lambda bags: bags
    default, one = (model(form(replace(bags, basal=basal))) for basal in (None, torch.ones(5)))
    same(default, one)
    other = model(form(bags))
    assert (other.multiplicity - one.multiplicity).abs().amax() > 1e-3
    assert (other.logits - one.logits).abs().amax() > 1e-3


def test_only_ratios_to_the_basal_gene_matter(make_model, make_bags):
    """All multiplicities of a bag times one factor, the basal gene's included."""
    model, bags = make_model(), make_bags()
    same(model(replace(bags, multiplicity=8 * bags.multiplicity, basal=8 * bags.basal)), model(bags))


@pytest.mark.parametrize("packed", [False, True])
def test_a_bag_of_zeros_is_finite_forward_and_backward(make_model, packed):
    model = make_model(dtype=torch.float32)
    multiplicity = torch.zeros(2, 12, requires_grad=True)
    bags = Bags(torch.arange(12), multiplicity)
    found = model(bags.pack() if packed else bags)
    (found.multiplicity.sum() + found.logits.square().sum() + found.property.sum()).backward()
    tensors = [found.multiplicity, found.logits, found.property, multiplicity.grad]
    tensors += [parameter.grad for parameter in model.parameters()]
    assert all(tensor.isfinite().all() for tensor in tensors)


def test_iterations_apply_one_map_again(make_model):
    torch.manual_seed(0)
    once, thrice = (FeedForward(ModelConfig(width=16, iterations=count)).eval() for count in (1, 3))
    thrice.load_state_dict(once.state_dict())  # the same tensors: iterations have no weights of their own
    h = torch.randn(4, 16)
    torch.testing.assert_close(thrice(h), once(once(once(h))))
    assert not torch.allclose(thrice(h), once(h))


def test_dropout_drops_whole_messages_and_keeps_their_expectation():
    torch.manual_seed(0)
    dropout, x = MessageDropout(0.25), 1 + torch.rand(20_000, 3)
    ratio = dropout(x) / x
    dropped = ratio == 0
    assert (dropped == dropped[:, :1]).all(), "a message is dropped as one"
    torch.testing.assert_close(ratio[~dropped], torch.full_like(ratio[~dropped], 4 / 3))
    # Five standard errors of the mean of 20 000 draws.
    assert abs(ratio[:, 0].mean() - 1) < 5 * (0.25 / 0.75 / 20_000) ** 0.5


def test_flips_of_signs_change_no_prediction(make_model, make_bags, flip):
    model, bags = make_model(), make_bags()
    before = model(bags)
    weights = [parameter.clone() for parameter in model.parameters()]
    flip(model)
    assert any(not torch.equal(old, new) for old, new in zip(weights, model.parameters(), strict=True))
    same(model(bags), before)


def test_predictions_are_in_units_of_each_gene_s_sd_around_its_mean(make_model, make_bags):
    model, bags = make_model(), make_bags()
    before = model(bags).multiplicity
    mean = model.mean.clone()
    model.sd.mul_(3)
    model.mean.add_(1)
    torch.testing.assert_close(model(bags).multiplicity, mean + 1 + 3 * (before - mean), **close)


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_predictions_are_float32_in_half_precision_training(make_model, make_bags, packed, members):
    model, bags = make_model(dtype=torch.float32, members=members), make_bags(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(bags.pack() if packed else bags)
    assert found.multiplicity.dtype == found.property.dtype == torch.float32
    exact = model(bags).multiplicity
    spread = exact.std()
    assert (found.multiplicity.view_as(exact) - exact).abs().amax() < 0.2 * spread


@pytest.mark.parametrize("packed", [False, True])
def test_where_every_gene_regulates_all_tokens_are_keys(make_model, make_bags, packed):
    """Also not after another model's regulators were loaded into this one."""
    model, other, bags = make_model(regulators=None), make_model(), make_bags()
    bags = bags.pack() if packed else bags
    assert Layout.of(bags, model.is_regulator).keys is None
    model.load_state_dict(other.state_dict(), strict=False)
    keys = Layout.of(bags, model.is_regulator).keys
    assert len(keys) == (len(REGULATORS) + 1) * (bags.cells if packed else 1)
