"""Networks in context on simulated cells: edges of types are found, and composition alone gives none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.preprocessing.moments import mean_and_sd
from grn.config.schema import Config, Simulation
from grn.messages import silent
from grn.model.signed.regulation import Regulation
from grn.networks.in_context import network_in_context
from grn.networks.weights import Network
from grn.regulation.fit import fit_regulation
from grn.regulation.states import states_of

REGULATORS = 8
CANDIDATES = np.vstack([~np.eye(REGULATORS, dtype=bool), np.ones((52, REGULATORS), dtype=bool)])


@dataclass
class Read:
    cells: Cells
    regulation: Regulation
    network: Network

    def truth(self, cell_type: str) -> np.ndarray:
        """Planted signs in a type, [N, R]; 0: no edge."""
        table = self.cells.truth
        if "cell_type" in table:
            table = table[table["cell_type"] == cell_type]
        row = {gene: number for number, gene in enumerate(self.cells.vocabulary)}
        signs = np.zeros(CANDIDATES.shape)
        signs[table["target"].map(row), table["source"].map(row)] = table["sign"]
        return signs


def read(labels: bool = True, direct: bool = True, **simulated) -> Read:
    """The network of 1500 cells of three types, from the linear start. Of the 60 genes, the regulators are first."""
    settings = {"cells": 1500, "genes": 60, "regulators": REGULATORS, "cell_types": 3, "depth": 20.0, **simulated}
    regulators = [f"R{number + 1}" for number in range(REGULATORS)]
    data = {"path": "simulated:", "genes": "all", "regulators": regulators, "simulated": Simulation(**settings)}
    data |= {"label_key": "cell_type"} if labels else {}
    config = Config.model_validate({"data": data, "regulation": {"members": 2, "steps": 0}})
    cells, _ = load_cells(config.data)
    mean, sd = mean_and_sd(cells.multiplicity)
    states = states_of(cells, 0)
    fitted = fit_regulation(config, cells, states, np.arange(len(cells)), mean=mean, sd=sd, say=silent)
    counted = cells if direct else replace(cells, counting=None)
    network = network_in_context(fitted.regulation, counted, states, mean=mean, sd=sd, seed=0)
    return Read(cells, fitted.regulation, network)


@pytest.fixture(scope="module", params=[0, 1])
def typed(request) -> Read:
    """Three tenths of the edges are in some types only, and three tenths of the others change their sign."""
    return read(seed=request.param, type_specific=0.3, changed_signs=0.3, noise=0.6)


@pytest.fixture(scope="module", params=range(4))
def composed(request) -> Read:
    """Genes whose levels differ between types, and no regulation at all."""
    return read(seed=request.param, regulators_per_target=0, composition=1.0)


def test_edges_of_types_are_found_with_signs_that_change_between_them(typed):
    signs = np.stack([typed.truth(name) for name in typed.network.by_type])
    changing = (signs != 0).all(0) & (np.abs(signs.sum(0)) < 3)
    only_some = (signs != 0).any(0) & ~(signs != 0).all(0)
    assert changing.sum() > 20 and only_some.sum() > 20
    for planted, (name, weight) in zip(signs, typed.network.by_type.items(), strict=True):
        assert (np.sign(weight) == planted)[changing].mean() > 0.85
        assert (np.sign(weight) == planted)[planted != 0].mean() > 0.85
        here, elsewhere = (np.abs(weight[only_some & (own)]) for own in (planted != 0, planted == 0))
        assert np.median(here) > 3 * np.median(elsewhere)
        found = typed.network.type_q[name] <= 0.1
        assert found[planted != 0].mean() > 0.5
        assert (planted != 0)[found].mean() > 0.75, "what is not planted has a common cause in the type"


def test_precision_rises_with_confidence(typed):
    confidence, right = [], []
    for name, weight in typed.network.by_type.items():
        confidence.append(typed.network.type_confidence[name][CANDIDATES])
        right.append((np.sign(weight) == typed.truth(name))[CANDIDATES])
    confidence, right = np.concatenate(confidence), np.concatenate(right)
    assert confidence.min() >= 0.5 and confidence.max() > 0.95
    unsure, likely, sure = confidence < 0.6, (confidence >= 0.6) & (confidence < 0.95), confidence >= 0.95
    assert right[unsure].mean() + 0.1 < right[likely].mean() < right[sure].mean() - 0.1
    assert right[sure].mean() > 0.75


def test_composition_alone_gives_no_edges(composed):
    network = composed.network
    q = [network.q, *network.type_q.values()]
    assert sum(int((each <= 0.05).sum()) for each in q) <= 0.005 * len(q) * CANDIDATES.sum()
    assert not composed.regulation.levels_follow
    assert network.weight is network.within, "differences between types are no evidence"
    assert np.abs(network.between[CANDIDATES]).mean() > 0.3, "though levels correlate, being of three types"
    assert network.confidence.mean() < 0.6


def test_composition_alone_leaves_weights_near_zero(typed, composed):
    def size(weight):
        return np.sqrt(np.square(weight[CANDIDATES]).mean())

    assert size(composed.network.within) < 0.15 * size(typed.network.within)
    regulated = min(size(weight) for weight in typed.network.by_type.values())
    for weight in composed.network.by_type.values():
        assert size(weight) < 0.25 * regulated


def test_weights_and_evidence_agree_in_shape_and_range(typed):
    network, shape = typed.network, CANDIDATES.shape
    names = list(network.by_type)
    assert names == ["type 1", "type 2", "type 3"] == list(network.type_q) == list(network.type_confidence)
    for table in (network.q, network.confidence, network.between, network.within, *network.by_type.values()):
        assert table.shape == shape
    for weight in (network.weight, network.within, network.between, *network.by_type.values()):
        assert (weight[~CANDIDATES] == 0).all() and np.isfinite(weight).all()
    for q, confidence in zip(network.type_q.values(), network.type_confidence.values(), strict=True):
        assert (q[~CANDIDATES] == 1).all() and (confidence[~CANDIDATES] == 0.5).all()
        order = np.argsort(q[CANDIDATES], kind="stable")
        assert (np.diff(confidence[CANDIDATES][order]) <= 1e-6).all(), "both rank pairs by the same weights"


def test_cells_of_one_state_have_one_network():
    found = read(labels=False, cells=300, genes=60, cell_types=1)
    network = found.network
    assert found.regulation.by_state is None and not network.by_type and not network.type_q
    assert network.weight is network.within and (network.between == 0).all()
    assert (network.q <= 1).all()


def test_the_tables_of_types_have_the_same_columns_and_pairs(tiny_run):
    edges, by_type = (pd.read_parquet(tiny_run / name) for name in ("edges.parquet", "edges_by_type.parquet"))
    told_apart = ["within", "between", "indirect"]
    assert list(edges.columns) == ["source", "target", "weight", *told_apart, "confidence", "q_value"]
    assert list(by_type.columns) == [*edges.columns, "cell_type"]
    pairs = set(zip(edges["source"], edges["target"], strict=True))
    assert len(pairs) == 4 * 15 == len(edges)
    for _, own in by_type.groupby("cell_type", observed=True):
        assert set(zip(own["source"], own["target"], strict=True)) == pairs and len(own) == len(edges)
    assert by_type["cell_type"].nunique() == 2
    assert edges["confidence"].between(0.5, 1).all() and edges["between"].between(-1, 1).all()
    assert (by_type["weight"] == by_type["within"]).all()


@pytest.mark.parametrize("types", [1, 3])
def test_two_signed_layers_tell_direct_effects_from_those_through_other_regulators(types):
    """Of pairs without an edge whose regulators act on one another, fewer are found, and the edges stay."""
    chains = {"seed": 5, "cell_types": types, "cascades": 40, "depth": 8.0, "labels": types > 1}
    one, two = (read(direct=direct, **chains) for direct in (False, True))
    edge = one.truth("type 1") != 0
    wrong = [(each.network.q <= 0.2)[CANDIDATES & ~edge].sum() for each in (one, two)]
    right = [(each.network.q <= 0.2)[edge].mean() for each in (one, two)]
    assert wrong[1] < 0.7 * wrong[0] and right[1] > 0.8 * right[0]
    assert one.network.indirect is None and one.network.total is None
    indirect, associated = two.network.indirect, CANDIDATES & (one.network.q <= 0.2)
    assert indirect[associated & ~edge].mean() > 1.3 * indirect[associated & edge].mean()
    # The same effects, multiplied by what the knock-offs say of direct ones.
    np.testing.assert_array_equal(np.sign(two.network.total), np.sign(one.network.weight))
