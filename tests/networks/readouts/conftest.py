"""Cells and networks of small regulation layers, shared by the tests of their read-outs."""

import numpy as np
import pytest
import torch

from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.networks.readouts import effect
from grn.networks.readouts.effect import effect_network
from grn.networks.readouts.regulation_attention import attention_network

# Of seven cells in two states; the last ones belong to both in part.
STATES = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
LEVELS = np.random.default_rng(6).random((2, 12))  # of every gene in each state; the read-out takes them as they are


@pytest.fixture
def cells():
    """Multiplicities [7, 3] of the regulators, all present, and [7] of the basal gene."""
    generator = torch.Generator().manual_seed(2)
    values = 0.1 + 3 * torch.rand(7, 3, generator=generator, dtype=torch.float64)
    return values, 0.5 + torch.rand(7, generator=generator, dtype=torch.float64)


@pytest.fixture
def unbalanced(monkeypatch):
    """Effects as they are, before rows are divided by the root of their norm."""
    monkeypatch.setattr(effect, "balanced", lambda weight: weight)


@pytest.fixture
def networks():
    """The effect and the attention of a layer over cells: of one state, or of two where the layer knows them."""

    def read(layer: RegulationLayer, cells, states=STATES):
        if layer.states == 1:
            regulation, states = Regulation(layer), torch.ones(len(cells[0]), 1, dtype=torch.float64)
        else:
            regulation = Regulation(layer, layer)  # levels do not follow, so that the pooled one is not read
        return effect_network(regulation, *cells, states, LEVELS[: states.shape[1]]), attention_network(
            regulation, *cells, states
        )

    return read
