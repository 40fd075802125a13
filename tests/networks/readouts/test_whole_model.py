"""The Jacobian and the knock-out against differences and gene by gene; means over bags and cell types by hand."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from grn.bags import Bags
from grn.networks.readouts import whole_model
from grn.networks.readouts.block_attention import attention_layers
from grn.networks.readouts.sampling import Sample, sample_cells
from grn.networks.readouts.whole_model import (
    PairMean,
    average,
    jacobian_network,
    knockout_effects,
    knockout_network,
    regulator_derivatives,
    with_multiplicity,
)
from grn.networks.weights import balanced

REGULATORS = np.array([0, 3, 5])
CELLS_OF_TYPE = {0: 18, 1: 9, -1: 3}


def samples(labels, batch=8):
    return list(sample_cells(labels, len(REGULATORS), cells=24, fraction=0.34, batch=batch, seed=1))


def difference(model, bags: Bags, gene: int, step: float = 1e-6) -> torch.Tensor:
    """d predicted multiplicity [B, N] / d multiplicity of `gene` by differences of second order, as exact as central
    ones, but upwards: no multiplicity is below zero."""
    predictions = []
    with torch.no_grad():
        for steps in range(3):
            moved = bags.multiplicity.clone()
            moved[:, gene] += steps * step
            predictions.append(model(with_multiplicity(bags, moved, torch.as_tensor(REGULATORS))).multiplicity)
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


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_a_regulator_that_never_varies_has_no_weight(make_model, csr_cells, value):
    """Neither one that no cell has nor one with the same value in all; the sd of both is 1 by convention.

    In the knock-out, one that no training cell has; the cells that the network is read from may have it.
    """
    model, (multiplicity, labels) = make_model(), csr_cells
    constant = multiplicity.tolil()
    constant[:, 3] = value
    with torch.no_grad():
        model.mean[3], model.sd[3] = value, 1.0
    found = jacobian_network(model, constant.tocsr(), samples(labels), CELLS_OF_TYPE, REGULATORS)
    for weight in (found.weight, *found.by_type.values()):
        assert (weight[:, 1] == 0).all() and (np.delete(weight[:, [0, 2]], REGULATORS, axis=0) != 0).all()
    if not value:
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
def test_neither_chunks_of_regulators_nor_batches_nor_precision_matter(make_model, csr_cells, monkeypatch, tangents):
    model, (multiplicity, labels) = make_model(), csr_cells
    whole = jacobian_network(model, multiplicity, samples(labels), CELLS_OF_TYPE, REGULATORS)
    single = make_model(dtype=torch.float32)
    rounded = jacobian_network(single, multiplicity, samples(labels), CELLS_OF_TYPE, REGULATORS)
    np.testing.assert_allclose(rounded.weight, whole.weight, rtol=1e-2, atol=1e-4)
    monkeypatch.setattr(whole_model, "TANGENTS", tangents)
    for batch in (3, 8, 64):
        chunked = jacobian_network(model, multiplicity, samples(labels, batch), CELLS_OF_TYPE, REGULATORS)
        np.testing.assert_allclose(chunked.weight, whole.weight, rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(chunked.confidence, whole.confidence)


def some_cells(cells: int = 6, genes: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(cells, genes, generator=generator, dtype=torch.float64)
    return values * (torch.rand(cells, genes, generator=generator) < 0.6)


@pytest.mark.parametrize("members", [0, 2])
def test_a_knockout_is_the_prediction_minus_that_without_the_gene(make_model, members):
    """With a regulation layer, too, and where the bag hides a regulator that the layer reads: only the dropped one is
    dropped there. A regulator that a cell lacks has no effect in it."""
    model = make_model(regulators=tuple(REGULATORS), members=members)
    values = 0.1 + some_cells()
    measured = values[:, REGULATORS].clone()
    values[:4, 3] = 0  # hidden
    bags = Bags(torch.arange(12), values, regulators=measured)
    found = knockout_effects(model, bags, torch.as_tensor(REGULATORS))
    for row, regulator in enumerate(REGULATORS):
        kept = torch.tensor([gene for gene in range(12) if gene != regulator])
        without = measured.clone()
        without[:, row] = torch.where(values[:, regulator] == 0, without[:, row], 0)
        dropped = Bags(kept, values[:, kept], regulators=without)
        with torch.no_grad():
            expected = model(bags).multiplicity[:, kept] - model(dropped).multiplicity
        torch.testing.assert_close(found[row][:, kept], expected)
        assert (found[row][values[:, regulator] == 0] == 0).all()


def test_the_network_is_the_mean_effect_in_units_of_the_slope(make_model):
    model = make_model(regulators=tuple(REGULATORS))
    values = some_cells()
    sample = Sample(0, np.arange(6), np.zeros((6, 3), dtype=bool))
    network = knockout_network(model, sp.csr_matrix(values.numpy()), [sample], {0: 6}, REGULATORS)
    effects = knockout_effects(model, Bags(torch.arange(12), values), torch.as_tensor(REGULATORS)).mean(1).T.numpy()
    mean, sd = model.mean.numpy(), model.sd.numpy()
    unit = np.where(mean[REGULATORS] > 0, sd[REGULATORS] / np.where(mean[REGULATORS] > 0, mean[REGULATORS], 1), 0)
    expected = effects * unit / sd[:, None]
    expected[REGULATORS] = 0  # they read themselves here
    np.testing.assert_allclose(network.weight, balanced(torch.as_tensor(expected)), rtol=1e-5)
    assert np.abs(network.weight).max() > 0


NO_SELF = np.empty(0, dtype=int)


@pytest.fixture
def unbalanced(monkeypatch):
    """Means as they are; balancing has a test of its own (test_weights.py)."""
    monkeypatch.setattr(whole_model, "balanced", lambda weight: weight)


def pair_mean(values, readable=None) -> PairMean:
    """values [B, N, R]."""
    values = np.asarray(values, dtype=float)
    mean = PairMean(*values.shape[1:])
    known = np.ones(values.shape, bool) if readable is None else np.asarray(readable)
    mean.add(values, known, slice(0, values.shape[2]))
    return mean


def test_a_pair_that_is_unreadable_in_a_type_takes_its_mean_over_the_others(unbalanced):
    """[target 0: readable in both; target 1: only in type 1; target 2: nowhere]."""
    first = pair_mean([[[1.0], [99.0], [99.0]]], [[[True], [False], [False]]])
    second = pair_mean([[[3.0], [5.0], [99.0]]], [[[True], [True], [False]]])
    found = average({0: first, 1: second}, {0: 1, 1: 3}, np.ones((3, 1)), NO_SELF)
    np.testing.assert_allclose(found.weight, [[2.5], [5.0], [0.0]])
    np.testing.assert_allclose(found.by_type["0"], [[1.0], [5.0], [0.0]])
    np.testing.assert_allclose(found.by_type["1"], [[3.0], [5.0], [0.0]])


def test_confidence_is_the_share_of_bags_with_the_sign_of_the_mean(unbalanced):
    values = np.array([[[-5.0]], [[1.0]], [[1.0]], [[-5.0]], [[-1.0]]])
    found = average({0: pair_mean(values)}, {0: 1}, np.ones((1, 1)), NO_SELF)
    np.testing.assert_allclose(found.confidence, [[3 / 5]])
    readable = np.array([[[True]], [[False]], [[True]], [[True]], [[False]]])
    found = average({0: pair_mean(values, readable)}, {0: 1}, np.ones((1, 1)), NO_SELF)
    np.testing.assert_allclose(found.confidence, [[2 / 3]])
