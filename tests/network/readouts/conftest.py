"""Cells and networks of a small regulation layer, shared by the tests of its read-outs."""

import pytest
import torch

from grn.model.regulation_layer import RegulationLayer
from grn.network.readouts import effect
from grn.network.readouts.effect import effect_network
from grn.network.readouts.regulation_attention import attention_network

LABELS = torch.tensor([1, 0, 1, -1, 1, 0, 1])


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
    """The effect and the attention of a layer over cells."""

    def read(layer: RegulationLayer, cells, labels=LABELS):
        return effect_network(layer, *cells, labels), attention_network(layer, *cells, labels)

    return read
