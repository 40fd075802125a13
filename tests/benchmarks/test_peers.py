"""Every peer on a planted network, and the steps that they have in common."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from peers import NAMES, load, settings_of
from peers.peer import correlation, edge_table, standardised

FEW = {"genie3": {"trees": 20}, "grnboost2": {"rounds": 60, "max_features": 0.5}, "regdiffusion": {"steps": 10}}
GENES = ["a", "NA", "c", "up", "down", "flat"]
REGULATORS = ["a", "NA", "c"]


def planted(cells: int = 200) -> np.ndarray:
    """[C, 6]: up = 2a, down = -2c, each with a little noise; nothing else is linked and the last gene never varies."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(cells, 6))
    values[:, 3] = 2 * values[:, 0] + 0.3 * values[:, 3]
    values[:, 4] = -2 * values[:, 2] + 0.3 * values[:, 4]
    values[:, 5] = 1.1
    return values.astype(np.float32)


def infer(name: str, seed: int = 0, **options) -> pd.DataFrame:
    peer = load(name)
    reason = peer.unavailable()
    if reason:
        pytest.skip(reason)
    return peer.infer(planted(), GENES, REGULATORS, seed, n_jobs=1, **FEW.get(name, {}), **options)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "regdiffusion"])
def test_the_planted_edges_come_first_with_their_signs(name):
    network = infer(name)
    strongest = network.loc[network["weight"].abs().sort_values(ascending=False).index[:2]]
    assert {(row.source, row.target, np.sign(row.weight)) for row in strongest.itertuples()} == {
        ("a", "up", 1),
        ("c", "down", -1),
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_pair_of_a_regulator_and_another_gene_once(name):
    network = infer(name)
    pairs = list(zip(network["source"], network["target"], strict=True))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {(source, target) for source in REGULATORS for target in GENES if source != target}
    assert np.isfinite(network["weight"]).all()
    assert (network.loc[network["target"] == "flat", "weight"] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_repeats_the_network(name):
    pd.testing.assert_frame_equal(infer(name, seed=3), infer(name, seed=3))


@pytest.mark.parametrize("name", ["genie3", "grnboost2"])
def test_another_seed_is_another_forest(name):
    assert not infer(name, seed=0)["weight"].equals(infer(name, seed=1)["weight"])


def test_boosting_goes_on_while_left_out_cells_improve_and_stops_on_noise():
    from peers.grnboost2 import importances

    settings = {"n_estimators": 300, "learning_rate": 0.01, "max_features": 0.5, "subsample": 0.9}
    values = planted()
    learned = importances(values[:, :3], values[:, 3].astype(np.float64), 0, window=25, settings=settings)
    noise = np.random.default_rng(4).normal(size=len(values))
    guessed = importances(values[:, :3], noise, 0, window=25, settings=settings | {"learning_rate": 0.3})
    # Importances sum to the number of rounds.
    assert learned.sum() == pytest.approx(300)
    assert 25 <= guessed.sum() < 100


def test_an_improvement_is_measured_on_the_same_cells_before_and_after():
    from peers.grnboost2 import EarlyStop
    from sklearn.ensemble import GradientBoostingRegressor

    values = planted().astype(np.float64)
    model = GradientBoostingRegressor(n_estimators=3, subsample=0.8, random_state=0)
    checked = []

    def compare(done: int, model: GradientBoostingRegressor, state: dict) -> bool:
        stop(done, model, state)
        left_out = ~state["sample_mask"]
        stages = [np.full(len(values), values[:, 3].mean()), *map(np.ravel, staged(model, done + 1, values[:, :3]))]
        errors = [np.mean((values[left_out, 3] - stage[left_out]) ** 2) for stage in stages]
        assert stop.improvements[-1] == pytest.approx(errors[-2] - errors[-1])
        checked.append(done)
        return False

    stop = EarlyStop(25)
    model.fit(values[:, :3], values[:, 3], monitor=compare)
    assert checked == [0, 1, 2]


def staged(model, rounds: int, inputs: np.ndarray) -> list[np.ndarray]:
    """Predictions after 1, 2, ... rounds of a model that is still being fitted."""
    steps = [model.learning_rate * tree.predict(inputs.astype(np.float32)) for tree in model.estimators_[:rounds, 0]]
    return list(model.init_.predict(inputs) + np.cumsum(steps, axis=0))


@pytest.mark.parametrize("name", ["pearson", "spearman", "ridge"])
def test_peers_agree_with_the_baselines_of_the_package(name):
    baselines = pytest.importorskip("grn.networks.baselines")
    theirs = getattr(baselines, name)(planted(), GENES, REGULATORS)
    both = infer(name).merge(theirs, on=["source", "target"], suffixes=("", "_package"), validate="one_to_one")
    assert len(both) == len(theirs)
    np.testing.assert_allclose(both["weight"], both["weight_package"], atol=1e-5)


def test_a_single_regulator_has_no_input_for_itself():
    for name in ("ridge", "genie3"):
        network = load(name).infer(planted(), GENES, ["a"], 0, n_jobs=1, **FEW.get(name, {}))
        assert "a" not in set(network["target"])


def test_a_gene_without_variance_correlates_with_nothing():
    assert not standardised(planted())[:, 5].any()
    assert not correlation(planted(), np.array([5])).any()


def test_unknown_regulators_are_named():
    with pytest.raises(ValueError, match="'z'"):
        edge_table(np.zeros((1, 6)), GENES, ["z"])


def test_settings_keep_their_type_and_unknown_ones_are_for_other_peers():
    assert settings_of(load("genie3"), ["trees=10", "rounds=5"]) == {"trees": 10, "max_features": "sqrt"}
    with pytest.raises(SystemExit, match="key=value"):
        settings_of(load("genie3"), ["trees"])
