"""What the model's predictions depend on, and what they must not depend on."""

from dataclasses import replace

import pytest
import torch
from torch.autograd.functional import jacobian

from grn.bags import Bags
from grn.model import regulation
from grn.model.basal_gene import FeedForward
from grn.model.regulation import DEPTH, LIMIT

REGULATORS = [0, 3, 5]
OTHERS = [gene for gene in range(12) if gene not in REGULATORS]
close = {"rtol": 1e-9, "atol": 1e-10}


def same(found, expected) -> None:
    for name in ("multiplicity", "cell", "logits"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **close)


def regulators_of(bags: Bags, model) -> torch.Tensor:
    return model.inputs(bags.multiplicity[:, REGULATORS], bags.basal)


@pytest.mark.parametrize("states", [1, 3])
def test_cells_do_not_see_each_other(make_model, make_bags, states):
    """In any order and in any company."""
    model, bags = make_model(states=states), make_bags(states=states)
    whole, order = model(bags), [3, 0, 4]
    found = model(Bags(bags.multiplicity[order], bags.basal[order], bags.states[order]))
    for name in ("multiplicity", "cell", "logits"):
        torch.testing.assert_close(getattr(found, name), getattr(whole, name)[order], **close)
    assert whole.multiplicity.std() > 0.1 and whole.logits.std() > 0.1, (
        "or any two predictions would be the same"
    )


@pytest.mark.parametrize("regulators", [REGULATORS, None])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("states", [1, 3])
def test_a_gene_depends_on_the_other_regulators_alone(
    make_model, make_bags, layers, states, regulators
):
    """To the last bit: not on genes that regulate nothing, and no regulator on itself."""
    model = make_model(layers=layers, states=states, regulators=regulators)
    bags = make_bags(cells=1, states=states)
    at = bags.multiplicity.clamp(max=2) + 0.1
    derivative = jacobian(lambda m: model(replace(bags, multiplicity=m)).multiplicity[0], at)[:, 0]
    expected = torch.zeros(12, 12, dtype=torch.bool)
    expected[:, slice(None) if regulators is None else regulators] = True
    assert torch.equal(derivative != 0, expected.fill_diagonal_(False))


@pytest.mark.parametrize("given", [True, False])
def test_the_identity_token_is_never_a_key(make_model, make_bags, given):
    """What it says of a cell reaches no gene, whether the states of the cell are known or not."""
    model, bags = make_model(states=3), make_bags(states=3)
    bags = bags if given else replace(bags, states=None)
    before = model(bags)
    for parameter in model.identity.parameters():
        parameter.data.neg_()
    after = model(bags)
    assert (after.logits - before.logits).abs().max() > 0.1
    assert torch.equal(after.multiplicity, before.multiplicity)


def test_states_are_the_given_ones_or_those_that_the_regulators_tell(make_model, make_bags):
    model, bags = make_model(states=3), make_bags(states=3)
    m, basal = regulators_of(bags, model), model.basal
    assert model.states_of(bags, m) is bags.states
    unknown = replace(bags, states=None)
    found = model.states_of(unknown, m)
    centre = (model.share @ model.blocks[0].centre).mean(0)
    scores = (m - centre) @ basal.state + basal.state_bias
    expected = scores.softmax(-1).mean(0)
    expected = expected * (expected >= regulation.TRACE)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), **close)
    same(model(unknown), model(replace(bags, states=found)))
    assert (model(unknown).multiplicity - model(bags).multiplicity).abs().max() > 0.01
    one = make_model().states_of(replace(make_bags(), states=None), m)
    assert torch.equal(one, torch.ones(5, 1).double())


@pytest.mark.parametrize("layers", [1, 2])
def test_block_2_reads_regulators_in_the_place_of_what_counting_made_of_them(
    make_model, make_bags, layers
):
    """m'_j = m_j + r_j (y_j - m_j), both from the means of the cell's state; with one layer, m as
    it was counted. Predictions add what the context makes of m itself.
    """
    model, bags = make_model(states=3, layers=layers), make_bags(states=3)
    m, states, first = regulators_of(bags, model), bags.states, model.blocks[0]
    y = first(m, states, torch.arange(3))
    corrected = model.corrected(m, y if layers > 1 else None, states)
    level, centre = states @ first.level, states @ first.centre
    expected = m.expand_as(centre).clone()
    if layers > 1:
        expected[..., :-1] += model.counting * (y - level - (m - centre)[..., :-1])
    torch.testing.assert_close(corrected, (expected / model.unit).expand_as(corrected), **close)
    direct = model.blocks[1](corrected, states, torch.arange(9))
    seen = m - (model.share @ first.centre).mean(0)
    context = model.basal.summary(seen) @ model.basal.query.mT + model.basal.bias[:, None]
    found = model.expected(m, states)
    torch.testing.assert_close(found[..., OTHERS], direct + context, **close)
    torch.testing.assert_close(found[..., REGULATORS], y, **close)
    assert context.abs().mean() > 0.1


def test_the_context_reads_regulators_as_they_were_counted_and_no_state(make_model, make_bags):
    """So that it is the same function where states are inferred."""
    model, bags = make_model(states=3), make_bags(states=3)
    m, pick = regulators_of(bags, model), torch.arange(9)
    before = model.context(m, pick)
    model.counting.zero_()
    for tensor in (
        model.blocks[0].embedding.query,
        model.blocks[1].embedding.query,
        model.blocks[1].centre,
    ):
        tensor.data.mul_(2)
    assert torch.equal(model.context(m, pick), before)
    hidden = torch.zeros(4, 5, 4, dtype=torch.bool)
    hidden[2, 3, 1] = True
    changed = model.context(m, pick, hidden) != before
    assert changed[2, 3].any() and not changed[[0, 1, 3]].any() and changed.any(-1).sum() == 1


def test_what_blocks_leave_over_is_that_of_predictions(make_model, make_bags):
    """In training, too, where they know states that predictions infer, and leave in a part of
    levels.
    """
    model, bags = make_model(states=3), make_bags(states=3)
    m, true, pick = regulators_of(bags, model), torch.rand(5, 9).double(), torch.arange(9)
    for block in model.blocks:
        block.mixed.copy_(torch.full((3, 3), 1 / 3))
    assert not model.trains_otherwise
    for infers in (False, True):
        model.infers_states, model.partial_levels = infers, not infers
        assert model.trains_otherwise
        model.train()
        found = model.left_over(bags, m, pick, true, None)
        assert model.blocks.training
        model.eval()
        states = model.inferred_states(m) if infers else bags.states
        direct = next(direct for genes, direct, _ in model.parts(m, states) if len(genes) == 9)
        torch.testing.assert_close(found, direct - true, **close)


def test_genes_that_are_asked_for_one_after_the_other_are_those_of_one_pass(
    make_model, make_bags, monkeypatch
):
    model, bags = make_model(states=3), make_bags(states=3)
    whole = model(bags)
    monkeypatch.setattr(regulation, "SCORES", 2 * 4 * 3 * 4)
    assert model.genes_at_once == 2
    same(model(bags), whole)


def test_without_genes_to_learn_the_identity_token_reads_them_after_the_blocks(
    make_model, make_bags
):
    model, bags = make_model(genes_train=False), make_bags()
    y = model.expected(regulators_of(bags, model), bags.states)
    z = model.identity.standardised(bags.multiplicity) + y.mean(0)
    found = model(bags)
    torch.testing.assert_close(found.logits, model.identity(bags.multiplicity, z)[1], **close)
    assert (found.logits - make_model()(bags).logits).abs().max() > 1e-3
    found.logits.sum().backward()
    assert model.blocks[0].embedding.key.grad.abs().max() > 0, "types shape the blocks"


def test_multiplicities_are_the_members_mean_in_units_of_each_genes_sd(make_model, make_bags):
    model, bags = make_model(), make_bags()
    y = model.expected(regulators_of(bags, model), bags.states)
    torch.testing.assert_close(model(bags).multiplicity, model.mean + model.sd * y.mean(0), **close)
    assert (y.std(0) > 1e-3).all(), "members differ"


def test_inputs_are_multiplicities_in_sds_cut_off_far_above_the_mean(make_model):
    """So that an absent regulator stays absent. The last one is the depth."""
    model = make_model()
    x, basal = torch.tensor([[0.0, 1.0, 2.0], [1e6, 0.5, 1e6]]).double(), torch.tensor([1.0, 1.6])
    mean, sd = model.mean[REGULATORS], model.sd[REGULATORS]
    expected = torch.minimum(x / sd, LIMIT + mean / sd)
    found = model.inputs(x, basal.double())
    torch.testing.assert_close(found[:, :-1], expected, **close)
    assert found[0, 0] == 0 and (expected[1, [0, 2]] < 1e3).all()
    depth = torch.tensor([DEPTH, DEPTH + 2]).double()
    torch.testing.assert_close(found[:, -1], depth, rtol=1e-6, atol=0)
    assert torch.equal(model.inputs(x, None)[:, -1], torch.full((2,), DEPTH).double())


def test_the_depth_is_the_mean_unless_the_bag_says_otherwise(make_model, make_bags):
    model, bags = make_model(), make_bags()
    one = replace(bags, basal=torch.ones(5).double())
    same(model(replace(bags, basal=None)), model(one))  # 1 is the mean depth of this model
    other = model(bags)
    assert (other.multiplicity - model(one).multiplicity).abs().amax() > 1e-3
    assert torch.equal(other.logits, model(one).logits), "multiplicities are normalised"


def test_a_bag_of_zeros_is_finite_forward_and_backward(make_model):
    model = make_model(dtype=torch.float32)
    multiplicity = torch.zeros(2, 12, requires_grad=True)
    found = model(Bags(multiplicity, states=torch.ones(2, 1)))
    (found.multiplicity.sum() + found.logits.square().sum()).backward()
    tensors = [found.multiplicity, found.logits, multiplicity.grad]
    tensors += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(tensors) > 20 and all(tensor.isfinite().all() for tensor in tensors)


def test_predictions_are_float32_in_half_precision_training(make_model, make_bags):
    model = make_model(dtype=torch.float32, states=3)
    bags = make_bags(dtype=torch.float32, states=3)
    exact = model(bags).multiplicity
    with torch.autocast("cpu", torch.bfloat16):
        found = model(bags)
    assert found.multiplicity.dtype == found.logits.dtype == torch.float32
    assert (found.multiplicity - exact).abs().amax() < 0.2 * exact.std()


def test_iterations_apply_one_map_again():
    """They have no weights of their own."""
    torch.manual_seed(0)
    once, twice = (FeedForward(2, 8, 16, count, 0.0) for count in (1, 2))
    twice.load_state_dict(once.state_dict())
    h = torch.randn(2, 4, 8)
    torch.testing.assert_close(once(h).square().mean(-1), torch.ones(2, 4), rtol=1e-4, atol=0)
    assert not torch.allclose(once(h), twice(h))
