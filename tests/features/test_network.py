"""Networks as tables: of cells, of a run, of its types and of one cell."""

from __future__ import annotations

from types import SimpleNamespace

import anndata
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import grn
from grn.cells.load import load_cells
from grn.cells.simulated.cells import simulate
from grn.config.files import change_config
from grn.config.schema import SimulatedConfig
from grn.evidence.states import States
from grn.networks.read import read_cell, read_network
from grn.runtime.errors import ConfigError, DataError

FAST = {"model.members": 2, "trainer.max_steps": 20}
COLUMNS = [
    *("source", "target", "weight", "sd", "effect", "effect_se"),
    *("q_value", "confidence", "programme", "between", "indirect", "cells"),
]


@pytest.fixture(scope="module")
def adata():
    return simulate(SimulatedConfig(cells=160, genes=24, regulators=4, cell_types=2))


@pytest.fixture(scope="module")
def regulators():
    return ["R1", "R2", "R3", "R4"]


def test_cells_give_edges_without_a_run(adata, regulators):
    before = torch.random.get_rng_state()
    edges = grn.network(adata, label="cell_type", regulators=regulators, set=FAST, quiet=True)
    assert list(edges) == COLUMNS and len(edges) == 4 * 23
    assert set(edges["source"]) == set(regulators) and edges["q_value"].is_monotonic_increasing
    assert all(each.abs().is_monotonic_decreasing for _, each in edges.groupby("q_value")["weight"])
    assert edges["q_value"].between(0, 1).all() and edges["confidence"].between(0.5, 1).all()
    assert torch.equal(torch.random.get_rng_state(), before), "the global random state is as it was"
    again = grn.network(adata, label="cell_type", regulators=regulators, set=FAST, quiet=True)
    pd.testing.assert_frame_equal(edges, again)


def test_a_type_of_cells_has_a_network_of_its_own(adata, regulators, capsys):
    options = {"label": "cell_type", "regulators": regulators, "set": FAST}
    one, other = (grn.network(adata, cell_type=name, **options) for name in ("type 1", "type 2"))
    assert list(one) == COLUMNS
    merged = one.merge(other, on=["source", "target"])
    assert len(merged) == len(one) and not np.allclose(merged["weight_x"], merged["weight_y"])
    assert "2 states" in capsys.readouterr().out


def test_one_cell_lacks_the_edges_of_regulators_that_it_lacks(adata, regulators):
    counts = adata.copy()
    counts.X = counts.X.toarray() if hasattr(counts.X, "toarray") else counts.X
    counts.X[5, counts.var_names.get_loc("R2")] = 0
    counts.X[5, counts.var_names.get_loc("R1")] += 3
    name = counts.obs_names[5]
    edges = grn.network(
        counts, cell=name, label="cell_type", regulators=regulators, set=FAST, quiet=True
    )
    assert list(edges) == ["source", "target", "weight"]
    assert "R2" not in set(edges["source"]) and "R1" in set(edges["source"])
    assert (edges["source"] != edges["target"]).all() and edges[
        "weight"
    ].abs().is_monotonic_decreasing


def test_the_mean_over_the_cells_of_a_state_is_close_to_its_network(make_model):
    """Every regulator is there in every cell, so presence plays no part, and all have one sd in the
    model's units.
    """
    model = make_model(states=2).float()
    generator = np.random.default_rng(0)
    multiplicity = (2 + 0.3 * model.sd.numpy() * generator.random((60, 12))).astype(np.float32)
    one = np.ones(60, np.float32)
    of = {"basal": one, "interventions": None}
    cells = SimpleNamespace(multiplicity=sparse.csr_matrix(multiplicity), **of)
    states = States(np.eye(2, dtype=np.float32)[np.arange(60) % 2], ("a", "b"), "labels")
    network = read_network(model, cells, states, seed=0)
    means = [
        np.mean([read_cell(model, cells, states, cell) for cell in range(state, 60, 2)], 0)
        for state in (0, 1)
    ]
    for mean, own, other in zip(means, ("a", "b"), ("b", "a"), strict=True):
        likeness = [
            np.corrcoef(mean.ravel(), network.of_states[name].weight.ravel())[0, 1]
            for name in (own, other)
        ]
        assert likeness[0] > 0.99 > likeness[1] + 0.01


def test_a_run_gives_what_its_files_hold(tiny_run):
    run = grn.load(tiny_run)
    pd.testing.assert_frame_equal(grn.network(run), run.edges)
    table = pd.read_parquet(tiny_run / "edges_by_type.parquet")
    of_type = grn.network(str(tiny_run), cell_type="type 2")
    expected = (
        table[table["cell_type"] == "type 2"].drop(columns="cell_type").reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(of_type, expected)
    assert len(of_type) == 4 * 15


def test_a_cell_of_a_run_has_a_network(tiny_run):
    run = grn.load(tiny_run)
    cells, _ = load_cells(run.config.data)
    edges = grn.network(run, cell=str(cells.obs_names[3]))
    read = cells.regulators[cells.multiplicity[3, cells.regulators].toarray()[0] > 0]
    assert set(edges["source"]) <= {cells.vocabulary[gene] for gene in read} and len(edges)


@pytest.mark.parametrize(
    ("source", "options", "problem", "field"),
    [
        ("tiny_run", {"cell": "a", "cell_type": "b"}, ConfigError, "cell_type"),
        ("tiny_run", {"cell_type": "type 3"}, DataError, "cell_type"),
        ("tiny_run", {"cell": "nobody"}, DataError, "cell"),
        ("tiny_run", {"cell": 3}, ConfigError, "cell"),
        ("tiny_run", {"label": "x"}, ConfigError, "data.label_key"),
        ("tiny_run", {"cell": "a", "data": 5}, ConfigError, "data"),
        ("adata", {"cell_type": "type 1"}, DataError, "cell_type"),
        ("adata", {"label": "cell_type", "cell_type": "typ 1"}, DataError, "cell_type"),
        ("adata", {"cell": "nobody"}, DataError, "cell"),
        (
            "adata",
            {"set": {"objectives.masked_multiplicity.weight": 0}},
            ConfigError,
            "data.label_key",
        ),
        ("adata", {"data": anndata.AnnData(np.ones((2, 2)))}, ConfigError, "data"),
    ],
)
def test_what_a_run_or_cells_cannot_give_is_refused(source, options, problem, field, request):
    with pytest.raises(problem) as caught:
        grn.network(request.getfixturevalue(source), quiet=True, **options)
    assert caught.value.field == field


def test_a_configuration_is_fitted_as_it_says(make_config):
    config = change_config(make_config(), {"network.top_k": 1, "network.false_discovery": False})
    edges = grn.network(config, quiet=True)
    assert len(edges) == 16 and "q_value" not in edges
    one_step = grn.network(config, set={"trainer.max_steps": 1}, quiet=True)
    assert not one_step["weight"].equals(edges["weight"])
