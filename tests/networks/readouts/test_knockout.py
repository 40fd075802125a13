"""Knock-out: presence against absence, gene by gene."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch

from grn.bags import Bags
from grn.networks.readouts.whole_model import knockout_effects, knockout_network
from grn.networks.readouts.sampling import Sample
from grn.networks.weights import balanced

REGULATORS = np.array([0, 3, 5])


def some_cells(cells: int = 6, genes: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(cells, genes, generator=generator, dtype=torch.float64)
    return values * (torch.rand(cells, genes, generator=generator) < 0.6)


def test_the_effect_is_the_prediction_minus_that_of_the_bag_without_the_gene(make_model):
    model = make_model(regulators=tuple(REGULATORS))
    bags = Bags(torch.arange(12), some_cells())
    found = knockout_effects(model, bags, torch.as_tensor(REGULATORS))
    for row, regulator in enumerate(REGULATORS):
        kept = torch.tensor([gene for gene in range(12) if gene != regulator])
        dropped = Bags(kept, bags.multiplicity[:, kept])
        with torch.no_grad():
            expected = model(bags).multiplicity[:, kept] - model(dropped).multiplicity
        torch.testing.assert_close(found[row][:, kept], expected)


def test_with_a_regulation_layer_the_gene_is_dropped_from_both(make_model):
    """Also where the bag hides a regulator that the layer reads: only the dropped one is dropped there."""
    model = make_model(regulators=tuple(REGULATORS), members=2)
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
        seen = replace(dropped, regulators=None)
        with torch.no_grad():  # without bags.regulators the layer would read something else
            assert not torch.allclose(model(seen).multiplicity, model(dropped).multiplicity)


def test_regulators_listed_separately_have_the_effect_of_those_in_the_bag(make_model):
    model = make_model(regulators=tuple(REGULATORS), members=2)
    bags, chosen = Bags(torch.arange(12), some_cells()), torch.as_tensor(REGULATORS)
    listed = replace(bags, regulators=bags.multiplicity[:, REGULATORS])
    torch.testing.assert_close(knockout_effects(model, bags, chosen), knockout_effects(model, listed, chosen))


def test_a_regulator_that_a_cell_lacks_has_no_effect_in_it(make_model):
    model = make_model(regulators=tuple(REGULATORS))
    values = some_cells()
    values[2, 3] = 0
    found = knockout_effects(model, Bags(torch.arange(12), values), torch.tensor([3]))
    assert found[0, 2].abs().max() == 0 < found[0].abs().max()


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


def test_the_basal_multiplicity_changes_the_effects(make_model):
    model = make_model(regulators=tuple(REGULATORS))
    bags = Bags(torch.arange(12), some_cells())
    deep = replace(bags, basal=torch.full((6,), 2.0, dtype=torch.float64))
    chosen = torch.as_tensor(REGULATORS)
    assert not torch.allclose(knockout_effects(model, bags, chosen), knockout_effects(model, deep, chosen))
