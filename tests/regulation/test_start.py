"""The start of a member: the layer predicts nearly what the linear fit of its cells predicts."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from grn.cells.preprocessing.moments import mean_and_sd
from grn.model.signed import regulation_layer
from grn.model.signed.regulation_layer import RegulationLayer
from grn.regulation.cell_table import CellTable, TrainingCells, centred, set_units
from grn.regulation.linear import LinearFit, Penalties, fit_linear
from grn.regulation.members import start

CELLS, GENES, STATES = 120, 14, 3
REGULATORS = np.array([0, 2, 5, 9])
FOUND = Penalties(torch.linspace(1, 30, GENES), 0.7, 1.0)


def training_cells() -> TrainingCells:
    """Targets that follow regulators and depth; slopes and levels differ between the states."""
    generator = np.random.default_rng(0)
    state = np.arange(CELLS) % STATES
    basal = generator.uniform(0.5, 1.5, CELLS).astype(np.float32)
    values = generator.gamma(2, 1, (CELLS, GENES)) + generator.gamma(1, 1, (STATES, GENES))[state]
    slopes = generator.normal(size=(STATES, GENES, len(REGULATORS)))
    values += np.einsum("cir,cr->ci", slopes[state], values[:, REGULATORS]) + 3 * basal[:, None]
    membership = np.eye(STATES, dtype=np.float32)[state]
    multiplicity = sp.csr_matrix(values.clip(0).astype(np.float32))
    scale = mean_and_sd(multiplicity)
    return TrainingCells(multiplicity, basal, np.arange(CELLS), REGULATORS, *scale, states=membership)


def started(
    *, heads: int = 2, width: int = 8, deviates: bool = True, found: Penalties = FOUND
) -> tuple[RegulationLayer, CellTable]:
    """A layer of a member that predicts multiplicities from the depth, too, and one of ranks without it."""
    cells = training_cells()
    layer = RegulationLayer(2, GENES, torch.as_tensor(REGULATORS), heads, width, STATES, deviates)
    layer.reads_depth.copy_(torch.tensor([1, 0]))
    layer.predicts_ranks.copy_(torch.tensor([0, 1]))
    set_units(layer, cells)
    table = CellTable(layer, cells)
    for member in range(2):
        start(layer, member, table, torch.arange(CELLS), found)
    return layer, table


def linear(
    layer: RegulationLayer, table: CellTable, member: int, found: Penalties = FOUND
) -> tuple[LinearFit, torch.Tensor]:
    """The fit that the member starts from, and its prediction [C, N]."""
    x, depth, states = centred(layer, table, torch.arange(CELLS))
    y = (table.ranks if member else table.values)(torch.arange(CELLS)).to(x)
    fit = fit_linear(x, y, states, None if member else depth, torch.as_tensor(REGULATORS), found)
    slopes = torch.einsum("ck,kir->cir", states, fit.slopes + fit.deviations)
    return fit, states @ fit.bias + (slopes @ torch.cat([x, depth[:, None]], 1)[..., None])[..., 0]


def differences(**options) -> list[float]:
    """Of each member's prediction from the linear one, in sds of the linear one."""
    layer, table = started(**options)
    predicted = layer.predict(table.inputs, table.states).detach()
    expected = [linear(layer, table, member, options.get("found", FOUND))[1].float() for member in range(2)]
    return [float((p - e).square().mean().sqrt() / e.std()) for p, e in zip(predicted, expected, strict=True)]


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("deviates", [False, True])
def test_the_larger_the_basal_score_the_closer_to_the_linear_fit(monkeypatch, heads, deviates):
    """By its square: the normaliser bends the prediction at second order."""
    found = FOUND if deviates else Penalties(FOUND.penalty, 0.0, 1.0)
    at = []
    for size in (2.0, 8.0, 32.0):
        monkeypatch.setattr(regulation_layer, "LINEAR", size)
        at.append(differences(heads=heads, deviates=deviates, found=found))
    for member in range(2):
        first, second, third = (each[member] for each in at)
        assert first < 0.7 and second < first / 5 and third < second / 10


def test_few_directions_are_the_strongest_ones(monkeypatch):
    """More regulators than the keys are wide: the slopes are as near to the fit's as any of that rank."""
    monkeypatch.setattr(regulation_layer, "LINEAR", 64.0)
    errors = [max(differences(heads=1, width=width)) for width in (1, 2, 3, 4, 5)]
    assert all(more < less for less, more in pairwise(errors))
    assert errors[0] < 0.9 and errors[-1] < 0.01
    layer, table = started(heads=1, width=2)
    layer.requires_grad_(False)
    fit, _ = linear(layer, table, 0)
    every = torch.cat([fit.slopes[None], fit.deviations]).flatten(0, 1)
    size = torch.linalg.svdvals(every)
    own = layer.query[0, 0] @ layer.key[0, 0].mT
    deviations = layer.deviation[0, 0] @ layer.key[0, 0].mT
    rest = every - torch.cat([own[None], deviations]).flatten(0, 1)
    assert float(rest.square().sum()) == pytest.approx(float(size[2:].square().sum()), rel=1e-3)


def test_slopes_and_levels_are_those_of_the_fit():
    layer, table = started()
    for member in range(2):
        fit, _ = linear(layer, table, member)
        torch.testing.assert_close(layer.bias[member].detach(), fit.bias.float(), rtol=1e-3, atol=1e-4)
        for state in range(STATES):
            found = layer.scores(state=state).head_slopes()[member].sum(0).detach()
            expected = (fit.slopes + fit.deviations[state]).float()
            expected[REGULATORS, range(len(REGULATORS))] = 0
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
