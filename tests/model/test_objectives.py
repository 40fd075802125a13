"""Losses: what they sum over, who learns from what, and that samples stand for the whole."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from flashsign.tables.slope_penalty import penalty_of
from grn.bags import Bags, Batch
from grn.model import objectives
from grn.model.objectives import (
    LABEL_SMOOTHING,
    Draw,
    divisors,
    judged_genes,
    masked_multiplicity,
    members_cells,
    of_cells,
    readers_cells,
    summaries_of,
)

REGULATORS = [0, 3, 5]
OTHERS = [gene for gene in range(12) if gene not in REGULATORS]
FOLDS = torch.tensor([0, 1, -1, 0, 5])


@pytest.fixture
def batch(make_bags) -> Batch:
    """Five cells of three states: two without a label."""
    return Batch(make_bags(states=3), torch.arange(5), torch.tensor([0, 2, -1, 1, -1]), FOLDS)


def whole(model, cells: int = 5) -> Draw:
    """Every gene, nothing hidden."""
    return Draw(torch.arange(3), torch.arange(9), torch.zeros(4, cells, 4, dtype=torch.bool))


def gradients(loss: torch.Tensor, model) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {
        name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None
    }


def moved(batch: Batch, cells) -> Batch:
    """The same with other genes in some cells."""
    multiplicity = batch.bags.multiplicity.clone()
    multiplicity[cells] = multiplicity[cells].flip(-1) + 0.3
    return replace(batch, bags=replace(batch.bags, multiplicity=multiplicity))


def test_members_learn_from_all_cells_but_those_of_their_fold(make_model, batch):
    """Cells of fold -1 and of folds that no member holds out are learned by all. Members of the
    identity token are pairs where there are cell types, one of each kind.
    """
    fold_0, fold_1, every = [0, 1, 1, 0, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]
    assert members_cells(batch, make_model()).tolist() == [fold_0, fold_1, every, every]
    assert readers_cells(batch, make_model()).tolist() == [fold_0, fold_0, fold_1, fold_1]
    assert make_model(classes=0).identity.held_out.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("layers", [1, 2])
def test_masked_multiplicity_is_the_error_of_the_network_and_of_context_on_the_rest(
    make_model, batch, layers
):
    model = make_model(states=3, layers=layers)
    bags = batch.bags
    found, _ = masked_multiplicity(batch, model, whole(model))
    m = model.inputs(bags.multiplicity[:, REGULATORS], bags.basal)
    true = model.standardised(bags.multiplicity)
    y = model.among(m, bags.states)
    corrected = model.corrected(m, y if layers > 1 else None, bags.states)
    direct = model.blocks[1](corrected, bags.states, torch.arange(9))
    context = model.context(m, torch.arange(9))
    left = direct - true[:, OTHERS]
    each = (y - true[:, REGULATORS]).square().sum(-1) + (
        left.square() + (left + context).square()
    ).sum(-1)
    learned = members_cells(batch, model)
    # And the state of a cell, which is asked for where it is not known.
    states = torch.einsum("cs,pcs->pc", bags.states, -model.state_scores(m))
    torch.testing.assert_close(found, ((each / 12 + states) * learned).sum())
    assert float(divisors(batch, model, False)["masked_multiplicity"]) == pytest.approx(
        float(learned.sum()) / 4
    )


@pytest.mark.parametrize("infers", [False, True])
def test_the_context_learns_from_what_predictions_of_the_blocks_leave_over(
    make_model, batch, infers
):
    """These infer states that training knows, or know means of states of which training leaves a
    part in.
    """
    model, bags = make_model(states=3), batch.bags
    for block in model.blocks:
        block.mixed.copy_(torch.full((3, 3), 1 / 3))
    m = model.inputs(bags.multiplicity[:, REGULATORS], bags.basal)
    true = model.standardised(bags.multiplicity)
    model.blocks.train()  # and not the basal gene, which would drop out
    plain = gradients(masked_multiplicity(batch, model, whole(model))[0], model)
    model.infers_states, model.partial_levels = infers, not infers
    found = gradients(masked_multiplicity(batch, model, whole(model))[0], model)
    rest = model.left_over(bags, m, torch.arange(9), true[:, OTHERS], None)
    loss = (
        (rest + model.context(m, torch.arange(9))).square().sum(-1)
        / 12
        * members_cells(batch, model)
    ).sum()
    expected = torch.autograd.grad(loss, [model.basal.query, model.basal.bias])
    torch.testing.assert_close(found["basal.query"], expected[0])
    torch.testing.assert_close(found["basal.bias"], expected[1])
    for name in found:
        if name.startswith(("blocks.", "basal.state")):
            torch.testing.assert_close(found[name], plain[name])
    assert not torch.allclose(found["basal.query"], plain["basal.query"])


@pytest.mark.parametrize("objective", ["masked_multiplicity", "cell_type", "genes"])
def test_a_member_does_not_learn_from_the_cells_of_its_fold(make_model, batch, objective):
    """Its gradient does not change in any bit when these cells, of fold 0, have other genes; the
    other members' do. Of the identity token two members have a fold.
    """
    model, found = make_model(states=3), []
    of_genes = objective == "masked_multiplicity"
    for each in (batch, moved(batch, [0, 3])):
        torch.manual_seed(0)
        learned = readers_cells(each, model)
        loss = (
            masked_multiplicity(each, model, whole(model))[0]
            if of_genes
            else of_cells(each, model, learned, genes=True)[objective].sum()
        )
        found.append(gradients(loss, model))
    one, other = found
    parts, members = ({"blocks", "basal"}, 1) if of_genes else ({"identity"}, 2)
    assert {name.split(".")[0] for name in one} == parts
    for name in one:
        assert torch.equal(one[name][:members], other[name][:members]), name
        assert not of_genes or not torch.equal(one[name][1:], other[name][1:]), name
    assert of_genes or not torch.equal(one["identity.output"][2:], other["identity.output"][2:])


@pytest.mark.parametrize("change", ["weights", "hidden"])
def test_what_context_learns_changes_nothing_in_the_signed_network(make_model, batch, change):
    """The network's gradient is that of its own error; the context's that of what the network
    leaves over, of multiplicities some of which are hidden from it alone.
    """
    model, draw = make_model(states=3), whole(make_model())
    network = gradients(masked_multiplicity(batch, model, draw)[0], model)
    if change == "weights":
        model.basal.query.data.mul_(3)
        model.basal.bias.data.add_(1)
    else:
        draw = replace(draw, hidden=torch.ones(4, 5, 4, dtype=torch.bool))
    other = gradients(masked_multiplicity(batch, model, draw)[0], model)
    for name in network:
        same = torch.allclose(network[name], other[name], rtol=1e-12, atol=1e-14)
        # What the context makes of the regulators is nothing that block 1 learns.
        assert same == name.startswith(("blocks.", "basal.state")), name


def test_a_share_of_what_the_context_reads_is_hidden(make_model):
    torch.manual_seed(0)
    hidden = Draw.of(make_model(), 2000, 0.3).hidden
    assert hidden.shape == (4, 2000, 4)
    assert hidden.double().mean() == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_sample_of_genes_stands_for_all_of_them(make_model, batch, monkeypatch, layers):
    """The mean over all samples of a size is the whole loss, the penalty included. With two layers
    all regulators are drawn, as block 2 reads them.
    """
    model = make_model(states=3, layers=layers)
    model.penalty.copy_(torch.tensor([[2.0, 0.5, 0.1]]).expand(5, -1))
    every, pairs = torch.arange(3), torch.combinations(torch.arange(9), 2)
    regulators = [every] if layers > 1 else torch.combinations(every, 2)
    draws = [
        replace(whole(model), regulators=some, targets=others)
        for some, others in product(regulators, pairs)
    ]
    found = torch.stack([torch.stack(masked_multiplicity(batch, model, each)) for each in draws])
    expected = torch.stack(masked_multiplicity(batch, model, whole(model)))
    torch.testing.assert_close(found.mean(0), expected)
    monkeypatch.setattr(objectives, "GENES", 2)
    drawn = Draw.of(model, 5, 0.3)
    assert len(drawn.targets) == 2 and len(drawn.regulators) == (3 if layers > 1 else 2)


@pytest.mark.parametrize("prior", [False, True])
def test_the_penalty_is_that_of_the_slopes_of_both_blocks(make_model, batch, prior):
    """Block 1 of all members has one; with a prior, slopes on regulators are divided by its factor
    first.
    """
    model, generator = make_model(states=3), torch.Generator().manual_seed(0)
    model.penalty.copy_(torch.rand(5, 3, generator=generator) + 0.1)
    factor = torch.ones(12, 4).double()
    if prior:
        factor[:, :3] = torch.rand(12, 3, generator=generator) + 0.2
        model.prior = factor[:, :3]
    _, found = masked_multiplicity(batch, model, whole(model))
    expected, of_blocks = 0.0, (model.penalty[-1:].expand(4, -1), model.penalty[:-1])
    for block, genes, penalty in zip(model.blocks, (REGULATORS, OTHERS), of_blocks, strict=True):
        pick = torch.arange(len(genes))
        slopes = block.slopes(block.scores(pick), pick) / factor[genes]
        expected = expected + penalty_of(slopes, penalty).sum() / 12
    torch.testing.assert_close(found, expected)


def test_genes_are_judged_by_the_members_that_have_not_seen_the_cell(make_model, batch):
    """Which is also what states are inferred for, where they are not known."""
    model, bags = make_model(states=3), batch.bags
    found, unseen = judged_genes(batch, model), 1 - members_cells(batch, model)
    assert unseen.tolist() == [[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0] * 5, [0] * 5]
    assert torch.equal(found.cells, unseen.sum(1))
    m = model.inputs(bags.multiplicity[:, REGULATORS], bags.basal)
    true = model.standardised(bags.multiplicity)

    def error(gate: torch.Tensor) -> torch.Tensor:
        """Of each member with so much of the context."""
        model.basal.gate.copy_(gate)
        return ((model.expected(m, bags.states) - true).square().mean(-1) * unseen).sum(1)

    gate = found.gate()
    torch.testing.assert_close(found.direct, error(torch.zeros(4)))
    torch.testing.assert_close(found.error(), error(gate).sum() / 3)
    for other in (0.0, 0.3, 0.7, 1.0):
        assert (error(gate) <= error(torch.full((4,), other)) + 1e-9).all()
    unknown = replace(bags, states=None)
    given = replace(bags, states=model.states_of(unknown, m))
    one, other = (vars(judged_genes(replace(batch, bags=each), model)) for each in (unknown, given))
    torch.testing.assert_close(one, other)


def test_cell_types_leave_out_missing_labels_and_smooth_the_others(make_model, batch):
    model, known = make_model(states=3), batch.labels >= 0
    learned = readers_cells(batch, model)
    found = of_cells(batch, model, learned, genes=False)["cell_type"]
    log_odds = model.identity.of_members(summaries_of(batch, model))[:, known]
    own = log_odds[:, torch.arange(3), batch.labels[known]]
    smooth = (1 - LABEL_SMOOTHING) * own + LABEL_SMOOTHING * log_odds.mean(-1)
    torch.testing.assert_close(found, -(smooth * learned[:, known]).sum(1))
    seen = replace(batch, kept=torch.ones_like(batch.bags.multiplicity, dtype=torch.bool))
    assert divisors(seen, model, False)["cell_type"].tolist() == [1, 1, 2, 2]
    assert divisors(seen, model, True)["cell_type"].tolist() == [3] * 4


def test_genes_are_predicted_as_they_were_counted_from_what_is_left_to_see(make_model, batch):
    model = make_model(states=3)
    kept = torch.rand(5, 12, generator=torch.Generator().manual_seed(0)) < 0.6
    thin = Bags(batch.bags.multiplicity * 0.5, batch.bags.basal - 0.1)
    seen = replace(batch, seen=thin, kept=kept)
    z = model.identity.standardised(thin.multiplicity) * kept
    summaries = model.identity.summaries(thin.multiplicity * kept, z)
    torch.testing.assert_close(summaries_of(seen, model), summaries)
    found = of_cells(seen, model, readers_cells(seen, model), genes=True)["genes"]
    errors = (
        (summaries @ model.identity.predict - model.identity.standardised(batch.bags.multiplicity))
        .square()
        .mean(-1)
    )
    torch.testing.assert_close(found, (errors * readers_cells(seen, model)).sum(1))
    assert torch.equal(divisors(seen, model, False)["genes"], readers_cells(seen, model).sum(1))


def test_types_alone_reach_the_blocks(make_model, batch):
    """And cells without a label cost nothing."""
    model, found = make_model(states=3, genes_train=False), []
    learned = readers_cells(batch, model)
    for each in (batch, replace(batch, labels=torch.full((5,), -1))):
        loss = of_cells(each, model, learned, genes=False)["cell_type"]
        found.append(gradients(loss.sum(), model))
    some, nothing = found
    assert some["blocks.1.embedding.query"].abs().max() > 0
    assert all((each == 0).all() for each in nothing.values())


def test_what_an_intervention_has_set_is_no_target(make_model, batch):
    """Cut genes may have any value as targets; a cut regulator is a key as it was set."""
    model, bags, regulator = make_model(states=3), batch.bags, REGULATORS.index(3)
    cut = torch.zeros_like(bags.multiplicity, dtype=torch.bool)
    cut[:2, 4] = True

    def losses(values: torch.Tensor, cut: torch.Tensor | None) -> torch.Tensor:
        one = replace(batch, bags=replace(bags, multiplicity=values, cut=cut))
        judged = judged_genes(one, model)
        loss = masked_multiplicity(one, model, whole(model))[0]
        return torch.stack([loss, judged.direct.sum(), judged.product.sum()])

    changed = bags.multiplicity + 2.0 * cut
    torch.testing.assert_close(losses(bags.multiplicity, cut), losses(changed, cut))
    assert ((losses(changed, cut) - losses(changed, None)).abs() > 1e-3).all()
    cut[:2, 3] = True
    m, states = model.inputs(bags.multiplicity[:, REGULATORS], bags.basal), bags.states
    y = model.among(m, states)
    as_set, plain = (model.corrected(m, y, states, *of) for of in ((cut[:, REGULATORS],), ()))
    as_read = (m / model.unit)[:2, regulator].expand(len(y), -1)
    torch.testing.assert_close(as_set[:, :2, regulator], as_read)
    torch.testing.assert_close(as_set[:, 2:], plain[:, 2:])
