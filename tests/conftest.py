"""Small models and one small run, shared by the tests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from scipy import sparse

# Without a GPU the kernels run in Triton's interpreter, which has to be known before anything imports them.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

os.environ.pop("FLASHSIGN_TILES", None)  # kernels are tested with the block sizes that they come with

from grn.bags import Bags
from grn.config.schema import Config, ModelConfig
from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.model.transformer import Model

settings.register_profile("untimed", deadline=None)  # tests never judge times: machines are busy, first calls compile
settings.load_profile("untimed")


def tiny_regulation(
    genes: int = 12,
    *,
    regulators=(0, 3, 5),
    members: int = 2,
    heads: int = 2,
    width: int = 5,
    states: int = 1,
    seed: int = 9,
) -> RegulationLayer:
    """A regulation layer, float64, with every parameter, unit and centre drawn at random; several states deviate."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        layer = RegulationLayer(members, genes, torch.tensor(regulators), heads, width, states, states > 1).double()
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        layer.unit.copy_(0.5 + torch.rand(len(regulators) + 1))
        layer.centre.copy_(torch.rand(states, len(regulators) + 1))
        layer.ratio.fill_(0.7 if states > 1 else 0.0)
    return layer.requires_grad_(False)


def tiny_model(
    genes: int = 12,
    *,
    regulators=(0, 3, 5),
    classes: int = 3,
    property: bool = True,
    members: int = 0,
    states: int = 1,
    dtype=torch.float64,
    **fields,
) -> Model:
    """A model with every parameter drawn at random: fresh ones predict each gene's mean, whatever they read.

    members: of a regulation layer; 0: there is none.   states: with several, there is a second layer that knows them.
    """
    config = ModelConfig(**{"width": 16, "layers": 2, "query_heads": 4, "key_heads": 2, "hidden": 24} | fields)
    chosen = None if regulators is None else torch.tensor(regulators)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(7)
        model = Model(config, genes, regulators=chosen, classes=classes, property=property)
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor) * (tensor.shape[-1] ** -0.5 if tensor.ndim == 2 else 0.3))
        model.mean.copy_(torch.rand(genes))
        model.sd.copy_(0.5 + torch.rand(genes))
        model.property_scale.copy_(torch.tensor([40.0, 12.0]))
    if members:
        read = range(genes) if regulators is None else regulators
        shape = {"regulators": tuple(read), "members": members}
        by_state = tiny_regulation(genes, states=states, seed=10, **shape) if states > 1 else None
        level_error = 0.75 if states > 1 else None
        model.regulation = Regulation(tiny_regulation(genes, **shape), by_state, level_error)
    return model.to(dtype).eval()


def tiny_bags(cells: int = 5, genes: int = 12, dtype=torch.float64, seed: int = 3) -> Bags:
    """Dense bags, about a third of the genes absent; every cell's basal gene has a multiplicity of its own."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand((cells, genes), generator=generator, dtype=dtype) * 3
    absent = torch.rand((cells, genes), generator=generator) < 0.3
    basal = 0.5 + torch.rand(cells, generator=generator, dtype=dtype)
    return Bags(torch.arange(genes), values.masked_fill(absent, 0), basal=basal)


def flips(model: Model) -> dict[str, list]:
    """Rows and columns of weights whose signs may change together, of every layer (MATH.md 1, fact 6)."""
    found: dict[str, list] = {"key and value": [], "query and output": [], "value and output": []}
    for block in model.blocks:
        attention = block.attention
        width = attention.query.out_features // attention.query_heads
        for head in range(attention.key_heads):
            rows = slice(head * width, (head + 1) * width)
            found["key and value"].append([attention.key.weight[rows], attention.value.weight[rows]])
        for head in range(attention.query_heads):
            rows = slice(head * width, (head + 1) * width)
            found["query and output"].append([attention.query.weight[rows], attention.output.weight[:, rows]])
        found["value and output"].append([attention.value.weight, attention.output.weight])
    return found


@pytest.fixture
def make_model():
    return tiny_model


@pytest.fixture
def make_regulation():
    return tiny_regulation


@pytest.fixture
def make_bags():
    return tiny_bags


@pytest.fixture(params=["key and value", "query and output", "value and output"])
def flip(request):
    """Applies one of the three flips to one head of each layer of a model; that of value and output has no heads."""

    def apply(model: Model) -> None:
        with torch.no_grad():
            for part in flips(model)[request.param][:: 1 if request.param == "value and output" else 2]:
                for tensor in part:
                    tensor.neg_()

    return apply


@pytest.fixture
def single_flips():
    """Every flip of one head of one layer of a model, each a list of tensors whose signs change together."""
    return lambda model: [tensors for kind in flips(model).values() for tensors in kind]


@pytest.fixture
def csr_cells():
    """Multiplicities [30, 12] as CSR and labels of two types, the last cells without one."""
    generator = np.random.default_rng(5)
    values = generator.gamma(1.0, 1.0, (30, 12)) * (generator.random((30, 12)) < 0.7)
    labels = np.array([0] * 18 + [1] * 9 + [-1] * 3)
    return sparse.csr_matrix(values), labels


def tiny_config(**trainer) -> Config:
    """A run of a second: 80 simulated cells, 16 genes, 4 regulators, a regulation layer of two members."""
    settings = {
        "max_steps": 6,
        "batch_size": 8,
        "validate_every": 2,
        "averaging": 0.9,
        "accelerator": "cpu",
        **trainer,
    }
    return Config.model_validate(
        {
            "data": {
                "path": "simulated:",
                "label_key": "cell_type",
                "genes": "all",
                "regulators": ["R1", "R2", "R3", "R4"],
                "simulated": {"cells": 80, "genes": 16, "regulators": 4, "cell_types": 2},
            },
            "model": {"width": 16, "layers": 1, "hidden": 16},
            "trainer": settings,
            "cell_reader": {"members": 2},
            "regulation": {"members": 2, "steps": 16, "penalties": [1, 10]},
            "network": {"cells": 40},
        }
    )


@pytest.fixture(scope="session")
def make_config():
    return tiny_config


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> Path:
    """The folder of a finished run of `tiny_config`; tests must not change it."""
    from grn.training.run import train

    folder = tmp_path_factory.mktemp("run") / "tiny"
    train(tiny_config(), folder, say=lambda line: None)
    return folder
