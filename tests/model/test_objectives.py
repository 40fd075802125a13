"""Losses: what they sum over, and what they divide by."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grn.bags import Bags, Batch
from grn.config.schema import ObjectivesConfig
from grn.model.objectives import (
    Loss,
    active_objectives,
    cell_type,
    hidden_genes,
    masked_multiplicity,
    mean_losses,
    obs_property,
    standardise,
    total_loss,
)


@pytest.fixture
def batch(make_bags):
    """Five cells: two without a label, one without the property; gene 0 (a regulator) masked in the first two."""
    bags = make_bags()
    masked = torch.zeros(bags.multiplicity.shape, dtype=torch.bool)
    masked[:2, 0] = True
    before = bags.multiplicity + 0.5
    seen = Bags(bags.genes, before.masked_fill(masked, 0), basal=bags.basal)
    labels = torch.tensor([0, 2, -1, 1, -1])
    return Batch(seen, before, masked, torch.arange(5), labels, torch.tensor([30.0, 50.0, 41.0, math.nan, 38.0]))


def test_hidden_genes_are_the_masked_ones_and_those_that_are_no_regulators(make_model, batch):
    hidden = hidden_genes(batch, make_model(regulators=(0, 3, 5)))
    assert hidden[:, [1, 2, 4, 6, 7, 8, 9, 10, 11]].all()
    assert not hidden[:, [3, 5]].any()
    assert hidden[:, 0].tolist() == [1, 1, 0, 0, 0]
    assert torch.equal(hidden_genes(batch, make_model(regulators=None)) > 0, batch.masked)


def test_masked_multiplicity_is_the_standardised_error_of_hidden_genes(make_model, batch):
    model = make_model()
    with torch.no_grad():
        prediction = model(batch.bags)
    total, number = 0.0, 0
    for cell in range(5):
        for gene in range(12):
            if gene not in (0, 3, 5) or batch.masked[cell, gene]:
                error = prediction.multiplicity[cell, gene] - batch.multiplicity[cell, gene]
                total, number = total + float(error / model.sd[gene]) ** 2, number + 1
    found = masked_multiplicity(prediction, batch, model)
    assert int(found.count) == number == 5 * 9 + 2
    assert float(found.sum) == pytest.approx(total, rel=1e-10)


def test_packed_batches_have_the_same_loss(make_model, batch):
    model = make_model()
    of_genes = batch.bags.pack(), batch.multiplicity.flatten(), batch.masked.flatten()
    packed = Batch(*of_genes, batch.cells, batch.labels, batch.property)
    dense, other = (masked_multiplicity(model(each.bags), each, model) for each in (batch, packed))
    torch.testing.assert_close(other.sum, dense.sum)
    assert other.count == dense.count


def test_genes_that_were_read_do_not_count(make_model, batch):
    model = make_model()
    prediction = model(batch.bags)
    before = masked_multiplicity(prediction, batch, model)
    prediction.multiplicity[:, [3, 5]] += 100
    assert torch.equal(masked_multiplicity(prediction, batch, model).sum, before.sum)
    prediction.multiplicity[0, 0] += 100
    assert masked_multiplicity(prediction, batch, model).sum > before.sum


def test_genes_count_by_their_importance(make_model, batch):
    """As if a gene of importance 3 were listed three times, and one of 0 never."""
    model = make_model()
    prediction = model(batch.bags)
    importance = torch.ones_like(batch.multiplicity)
    importance[:, 1], importance[:, 2] = 3, 0
    importance[:, 3] = 7  # a regulator that is read: it does not count at all
    found = masked_multiplicity(prediction, replace(batch, importance=importance), model)
    plain = masked_multiplicity(prediction, batch, model)
    errors = ((prediction.multiplicity - batch.multiplicity) / model.sd).square()
    torch.testing.assert_close(found.sum, plain.sum + 2 * errors[:, 1].sum() - errors[:, 2].sum())
    assert float(found.count) == float(plain.count) + 2 * 5 - 5


def test_predicting_the_mean_costs_one_per_standardised_gene(make_model, batch):
    model = make_model()
    centred = standardise(model.mean + model.sd * torch.ones(5, 12), batch, model)
    torch.testing.assert_close(centred, torch.ones(5, 12, dtype=centred.dtype))
    torch.testing.assert_close(standardise(2 * model.sd, batch, model, centre=False), 2 * torch.ones_like(model.sd))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cell_type_leaves_out_missing_labels(make_model, batch, smoothing):
    model = make_model()
    with torch.no_grad():
        prediction = model(batch.bags)
    log_odds = prediction.logits.log_softmax(-1)
    expected = 0.0
    for cell, label in ((0, 0), (1, 2), (3, 1)):
        expected -= (1 - smoothing) * log_odds[cell, label] + smoothing * log_odds[cell].mean()
    found = cell_type(prediction, batch, model, label_smoothing=smoothing)
    assert int(found.count) == 3
    assert float(found.sum) == pytest.approx(float(expected), rel=1e-5)


def test_property_leaves_out_missing_values_and_counts_in_sds(make_model, batch):
    model = make_model()
    prediction = model(batch.bags)
    found = obs_property(prediction, batch, model)
    known = [0, 1, 2, 4]
    errors = (prediction.property[known] - batch.property[known]) / 12
    assert int(found.count) == 4
    torch.testing.assert_close(found.sum, errors.square().sum())
    found.sum.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()), "a missing value has no gradient"


def test_a_batch_with_nothing_to_learn_costs_nothing(make_model, batch):
    model = make_model()
    unlabelled = Batch(batch.bags, batch.multiplicity, batch.masked, batch.cells, -torch.ones(5).long(), batch.property)
    found = cell_type(model(batch.bags), unlabelled, model, label_smoothing=0.1)
    total = total_loss(mean_losses({"cell_type": found}), {"cell_type": 0.3})
    assert float(total) == 0
    total.backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


def test_objectives_are_active_by_weight_and_head(make_model):
    everything = ObjectivesConfig.model_validate({"property": {"weight": 1, "key": "age"}})
    assert list(active_objectives(everything, make_model())) == ["cell_type", "masked_multiplicity", "property"]
    assert list(active_objectives(everything, make_model(classes=0, property=False))) == ["masked_multiplicity"]
    off = ObjectivesConfig.model_validate({"masked_multiplicity": {"weight": 0}, "cell_type": {"weight": 2.0}})
    found = active_objectives(off, make_model())
    assert list(found) == ["cell_type"] and found["cell_type"][0] == 2


items = st.lists(st.tuples(st.floats(-9, 9), st.booleans()), max_size=6)


@given(parts=st.lists(st.tuples(items, items), min_size=1, max_size=5))
def test_the_mean_over_processes_is_the_mean_of_the_whole_batch(parts):
    """However unevenly the items fall, none in some processes and fewer items than processes included."""

    def summed(pairs) -> Loss:
        values = torch.tensor([[value, known] for value, known in pairs], dtype=torch.float64).reshape(-1, 2)
        return Loss(values.prod(1).sum(), values[:, 1].sum())

    weights = {"cell_type": 0.3, "masked_multiplicity": 1.0}
    local = [dict(zip(weights, map(summed, part), strict=True)) for part in parts]
    means = [torch.stack([each[name].count for each in local]).mean() for name in weights]
    totals = []
    for losses in local:
        remaining = iter(means)
        totals.append(total_loss(mean_losses(losses, lambda count, remaining=remaining: next(remaining)), weights))
    whole = {name: summed([pair for part in parts for pair in part[position]]) for position, name in enumerate(weights)}
    torch.testing.assert_close(torch.stack(totals).mean(), total_loss(mean_losses(whole), weights))
    expected = sum(weights[name] * loss.sum / loss.count for name, loss in whole.items() if loss.count)
    assert float(total_loss(mean_losses(whole), weights)) == pytest.approx(float(expected))
