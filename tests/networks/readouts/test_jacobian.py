"""The Jacobian read-out against differences, and what it does not depend on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grn.bags import Bags
from grn.networks.readouts import jacobian
from grn.networks.readouts.block_attention import attention_layers
from grn.networks.readouts.whole_model import jacobian_network, regulator_derivatives
from grn.networks.readouts.whole_model import knockout_network
from grn.networks.readouts.sampling import Sample, sample_cells
from grn.networks.weights import balanced

REGULATORS = np.array([0, 3, 5])
CELLS_OF_TYPE = {0: 18, 1: 9, -1: 3}


def samples(labels, batch=8):
    return list(sample_cells(labels, len(REGULATORS), cells=24, fraction=0.34, batch=batch, seed=1))


def with_multiplicity(bags: Bags, multiplicity: torch.Tensor) -> Bags:
    if bags.regulators is None:
        return replace(bags, multiplicity=multiplicity)
    moved = bags.regulators + multiplicity[:, REGULATORS] - bags.multiplicity[:, REGULATORS]
    return replace(bags, multiplicity=multiplicity, regulators=moved)


def difference(model, bags: Bags, gene: int, step: float = 1e-6) -> torch.Tensor:
    """d predicted multiplicity [B, N] / d multiplicity of `gene` by differences of second order, as exact as central
    ones, but upwards: no multiplicity is below zero."""
    predictions = []
    with torch.no_grad():
        for steps in range(3):
            moved = bags.multiplicity.clone()
            moved[:, gene] += steps * step
            predictions.append(model(with_multiplicity(bags, moved)).multiplicity)
    here, above, further = predictions
    return (4 * above - 3 * here - further) / (2 * step)


@pytest.mark.parametrize("with_regulators", [False, True])
@pytest.mark.parametrize("members", [0, 2])
def test_derivatives_equal_differences(make_model, make_bags, members, with_regulators):
    """With a regulation layer and without; where the bags list regulators separately, those change too."""
    model, bags = make_model(members=members), make_bags()
    if with_regulators:
        bags = replace(bags, regulators=bags.multiplicity[:, REGULATORS] + 0.5)
    found = regulator_derivatives(model, bags, torch.as_tensor(REGULATORS))
    expected = torch.stack([difference(model, bags, gene) for gene in REGULATORS])
    assert found.shape == (3, 5, 12)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert expected.abs().mean() > 1e-2


@pytest.mark.parametrize("basal", [None, np.linspace(0.5, 1.5, 30)])
def test_the_network_is_the_mean_of_differences_over_readable_bags(make_model, csr_cells, basal):
    """Spelled out, bag by bag: targets masked, absent regulators included, each type weighted by its size."""
    model, (multiplicity, labels) = make_model(), csr_cells
    chosen = samples(labels)
    total, number = {}, {}
    for sample in chosen:
        for row, masked in zip(sample.rows, sample.masked, strict=True):
            seen = torch.from_numpy(multiplicity[[row]].toarray())
            seen[0, REGULATORS[masked]] = 0
            own_basal = None if basal is None else torch.from_numpy(basal[[row]])
            bag = Bags(torch.arange(12), seen, basal=own_basal)
            for column, regulator in enumerate(REGULATORS):
                if masked[column]:
                    continue
                slope = difference(model, bag, int(regulator))[0]
                for target in range(12):
                    if target in REGULATORS[~masked]:
                        continue  # the model reads this target itself
                    key = sample.cell_type, target, column
                    total[key] = total.get(key, 0.0) + float(slope[target])
                    number[key] = number.get(key, 0) + 1
    sd = model.sd.numpy()
    expected, shares = np.zeros((12, 3)), np.zeros((12, 3))
    for (cell_type, target, column), value in total.items():
        mean = value / number[cell_type, target, column]
        expected[target, column] += CELLS_OF_TYPE[cell_type] * mean * sd[REGULATORS[column]] / sd[target]
        shares[target, column] += CELLS_OF_TYPE[cell_type]
    expected /= np.where(shares > 0, shares, 1)

    found = jacobian_network(model, multiplicity, chosen, CELLS_OF_TYPE, REGULATORS, basal)
    np.testing.assert_allclose(found.weight, balanced(torch.as_tensor(expected)), rtol=1e-5, atol=1e-7)
    assert sorted(found.by_type) == ["0", "1"], "cells without a label are no type"
    assert (found.weight[REGULATORS, np.arange(3)] == 0).all(), "no gene regulates itself"
    assert (np.delete(found.weight, REGULATORS, axis=0) != 0).all()


@pytest.mark.parametrize("network", [jacobian_network, knockout_network])
def test_one_regulator_alone_has_weights(make_model, csr_cells, network):
    model, (multiplicity, labels) = make_model(regulators=(3,)), csr_cells
    chosen = sample_cells(labels, 1, cells=24, fraction=0.1, batch=8, seed=0)
    found = network(model, multiplicity, chosen, CELLS_OF_TYPE, np.array([3]))
    assert (np.delete(found.weight, 3, axis=0) != 0).all() and found.weight[3] == 0


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_a_regulator_that_never_varies_has_no_weight(make_model, csr_cells, value):
    """Neither one that no cell has nor one with the same value in all; the sd of both is 1 by convention."""
    model, (multiplicity, labels) = make_model(), csr_cells
    constant = multiplicity.tolil()
    constant[:, 3] = value
    with torch.no_grad():
        model.mean[3], model.sd[3] = value, 1.0
    found = jacobian_network(model, constant.tocsr(), samples(labels), CELLS_OF_TYPE, REGULATORS)
    for weight in (found.weight, *found.by_type.values()):
        assert (weight[:, 1] == 0).all() and (np.delete(weight[:, [0, 2]], REGULATORS, axis=0) != 0).all()


def test_a_regulator_that_no_training_cell_has_has_no_weight(make_model, csr_cells):
    """In the knock-out neither; the cells that the network is read from may have it."""
    model, (multiplicity, labels) = make_model(), csr_cells
    with torch.no_grad():
        model.mean[3], model.sd[3] = 0.0, 1.0
    for network in (jacobian_network, knockout_network):
        assert (network(model, multiplicity, samples(labels), CELLS_OF_TYPE, REGULATORS).weight[:, 1] == 0).all()


def test_a_target_is_never_read_where_it_is_a_key(make_model, csr_cells):
    """With nothing masked no regulator is a target; every other gene still is."""
    model, (multiplicity, labels) = make_model(), csr_cells
    rows = np.flatnonzero(labels == 0)
    nothing = [Sample(0, rows, np.zeros((len(rows), 3), bool))]
    found = jacobian_network(model, multiplicity, nothing, CELLS_OF_TYPE, REGULATORS)
    assert (found.weight[REGULATORS] == 0).all()
    assert (np.delete(found.weight, REGULATORS, axis=0) != 0).all()


def test_flips_of_signs_change_no_network(make_model, make_bags, csr_cells, flip):
    """That they turn signed weights of the blocks: test_block_attention."""
    model, bags, (multiplicity, labels) = make_model(query_heads=2, key_heads=1), make_bags(), csr_cells
    arguments = (model, multiplicity, samples(labels), CELLS_OF_TYPE, REGULATORS)
    jacobian_before, attention_before = jacobian_network(*arguments), attention_layers(model, [bags], REGULATORS)
    knockout_before = knockout_network(*arguments)
    flip(model)
    np.testing.assert_allclose(knockout_network(*arguments).weight, knockout_before.weight, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(jacobian_network(*arguments).weight, jacobian_before.weight, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(attention_layers(model, [bags], REGULATORS), attention_before, rtol=1e-5, atol=1e-7)
    assert np.abs(jacobian_before.weight).max() > 1e-2


@pytest.mark.parametrize("tangents", [1, 2 * 8 * 12 * 24])
def test_regulators_in_chunks_give_the_same(make_model, csr_cells, monkeypatch, tangents):
    model, (multiplicity, labels) = make_model(), csr_cells
    whole = jacobian_network(model, multiplicity, samples(labels), CELLS_OF_TYPE, REGULATORS)
    monkeypatch.setattr(jacobian, "TANGENTS", tangents)
    widths = []
    derivatives = jacobian.regulator_derivatives
    monkeypatch.setattr(
        jacobian, "regulator_derivatives", lambda *each: widths.append(len(each[-1])) or derivatives(*each)
    )
    chunked = jacobian_network(model, multiplicity, samples(labels), CELLS_OF_TYPE, REGULATORS)
    assert min(widths) < len(REGULATORS)
    np.testing.assert_allclose(chunked.weight, whole.weight, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(chunked.confidence, whole.confidence)


def test_the_batch_size_of_bags_does_not_matter(make_model, csr_cells):
    model, (multiplicity, labels) = make_model(), csr_cells
    found = [jacobian_network(model, multiplicity, samples(labels, b), CELLS_OF_TYPE, REGULATORS) for b in (3, 64)]
    np.testing.assert_allclose(found[0].weight, found[1].weight, rtol=1e-6, atol=1e-9)


def test_a_model_in_single_precision_agrees_with_double(make_model, csr_cells):
    multiplicity, labels = csr_cells
    found = [
        jacobian_network(make_model(dtype=dtype), multiplicity, samples(labels), CELLS_OF_TYPE, REGULATORS).weight
        for dtype in (torch.float32, torch.float64)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-2, atol=1e-4)
