"""Small models and one small run, shared by the tests."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from scipy import sparse

# Without a GPU the kernels run in Triton's interpreter, which has to be known before anything
# imports them.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


from grn.bags import Bags
from grn.config.schema import Config, ModelConfig
from grn.evidence.cell_table import CellTable
from grn.model.reader import ReaderShape
from grn.model.regulation import Model
from grn.model.signed_block import SignedBlock

# tests never judge times: machines are busy, first calls compile
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Lightning collects garbage after each run, and need not look at all that was imported and
    collected.
    """
    gc.collect()
    gc.freeze()


def tiny_model(
    genes: int = 12,
    *,
    regulators=(0, 3, 5),
    classes: int = 3,
    members: int = 4,
    states: int = 1,
    genes_train: bool = True,
    heads: tuple[int, int] | None = None,
    dtype=torch.float64,
    **fields,
) -> Model:
    """A model with every parameter and unit drawn at random: fresh ones predict the means alone.

    heads: query heads and key heads of its signed blocks; None: the one that a model has.
    """
    config = ModelConfig(**{"width": 5, "hidden": 24, "members": members} | fields)
    chosen = None if regulators is None else torch.tensor(regulators)
    identity = ReaderShape(members, classes, summary=8, hidden=10, embedding=6, held_out=20)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(7)
        model = Model(
            config,
            genes,
            regulators=chosen,
            states=states,
            identity=identity,
            genes_train=genes_train,
        )
        for number, block in enumerate(model.blocks if heads else ()):
            width = block.embedding.query.shape[-1]
            model.blocks[number] = SignedBlock(
                members, block.own, len(model.regulators), *heads, width, states
            )
        for tensor in model.parameters():
            tensor.add_(0.5 * torch.randn_like(tensor))
        model.mean.copy_(torch.rand(genes))
        model.sd.copy_(0.5 + torch.rand(genes))
        model.counting.copy_(0.6 * torch.rand_like(model.counting))
        model.unit.copy_(0.5 + torch.rand_like(model.unit))
        model.depth.copy_(torch.tensor([1.0, 0.3]))
        for block in model.blocks:
            for buffer in (block.centre, block.square, block.level):
                buffer.copy_(torch.rand_like(buffer) + 0.1)
        model.identity.mean.copy_(model.mean)
        model.identity.sd.copy_(model.sd)
        model.identity.axes.copy_(torch.randn_like(model.identity.axes))
        model.identity.confidence.copy_(torch.rand(20))
        model.identity.right.copy_(torch.rand(20) < model.identity.confidence)
    return model.to(dtype).eval()


def tiny_bags(
    cells: int = 5, genes: int = 12, states: int = 1, dtype=torch.float64, seed: int = 3
) -> Bags:
    """About a third of the genes absent; every cell has a basal gene of its own and belongs to
    every state in part.
    """
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand((cells, genes), generator=generator, dtype=dtype) * 3
    absent = torch.rand((cells, genes), generator=generator) < 0.3
    basal = 0.5 + torch.rand(cells, generator=generator, dtype=dtype)
    share = torch.rand((cells, states), generator=generator, dtype=dtype)
    return Bags(values.masked_fill(absent, 0), basal, share / share.sum(1, keepdim=True))


@pytest.fixture
def make_model():
    return tiny_model


@pytest.fixture
def make_bags():
    return tiny_bags


@pytest.fixture
def csr_cells():
    """Multiplicities [30, 12] as CSR and labels of two types, the last cells without one."""
    generator = np.random.default_rng(5)
    values = generator.gamma(1.0, 1.0, (30, 12)) * (generator.random((30, 12)) < 0.7)
    labels = np.array([0] * 18 + [1] * 9 + [-1] * 3)
    return sparse.csr_matrix(values), labels


def table_of(
    values: np.ndarray, states: np.ndarray, regulators, *, basal=None, levels=0.0, **known
) -> CellTable:
    """values [C, N] and states [C, S], or the number of each cell's state [C]."""
    membership = states if states.ndim == 2 else np.eye(states.max() + 1)[states]
    basal = np.ones(len(values)) if basal is None else basal
    cells = (
        sparse.csr_matrix(values.astype(np.float32)),
        basal.astype(np.float32),
        membership.astype(np.float32),
    )
    return CellTable(*cells, np.asarray(regulators), levels=levels, **known)


@pytest.fixture(scope="session")
def make_table():
    return table_of


def tiny_config(**trainer) -> Config:
    """A run of a second: 80 simulated cells, 16 genes, 4 regulators, two members."""
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
            "model": {"width": 8, "query_heads": 2, "key_heads": 2, "hidden": 16, "members": 2},
            "trainer": settings,
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


@pytest.fixture
def run(tiny_run):
    """The same as an object of its own for each test, which may change its module."""
    import grn

    return grn.load(tiny_run)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Call `grn` in an empty folder: its exit code, what it printed, and its error."""
    from grn.cli.main import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(each) for each in arguments])
        return code, *capsys.readouterr()

    return call
