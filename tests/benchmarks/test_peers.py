"""Every peer on a planted network, and the cache of their networks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from peers import NAMES, load
from peers.cached import PreparedSet, entry, load_prepared, run_peer, save_prepared
from peers.measure import CallFailed, measured

FEW = {
    "genie3": {"trees": 20},
    "grnboost2": {"rounds": 60, "max_features": 0.5},
    "regdiffusion": {"steps": 10},
}


GENES = ["a", "NA", "c", "up", "down", "flat"]


REGULATORS = ["a", "NA", "c"]


def planted(cells: int = 200) -> np.ndarray:
    """[C, 6]: up = 2a, down = -2c, each with a little noise; nothing else is linked and the last
    gene never varies.
    """
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
    assert set(pairs) == {
        (source, target) for source in REGULATORS for target in GENES if source != target
    }
    assert np.isfinite(network["weight"]).all()
    assert (network.loc[network["target"] == "flat", "weight"] == 0).all()


@pytest.mark.parametrize("name", ["pearson", "ridge"])
def test_peers_agree_with_the_baselines_of_the_package(name):
    baselines = pytest.importorskip("grn.networks.baselines")
    theirs = getattr(baselines, name)(planted(), GENES, REGULATORS)
    both = infer(name).merge(
        theirs, on=["source", "target"], suffixes=("", "_package"), validate="one_to_one"
    )
    assert len(both) == len(theirs)
    np.testing.assert_allclose(both["weight"], both["weight_package"], atol=1e-5)


@pytest.fixture
def tiny() -> PreparedSet:
    values = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
    return PreparedSet("tiny", values, ["a", "NA", "nan", "d"], ["a", "NA"], "0123")


def test_a_prepared_set_survives_its_file(tiny, tmp_path):
    save_prepared(
        tmp_path / "sets.npz", [tiny, dataclasses.replace(tiny, name="other", hash="4567")]
    )
    read, other = load_prepared(tmp_path / "sets.npz")
    assert (read.name, read.genes, read.regulators, read.hash) == (
        "tiny",
        tiny.genes,
        tiny.regulators,
        "0123",
    )
    assert (other.name, other.hash) == ("other", "4567")
    np.testing.assert_array_equal(read.values, tiny.values)


def test_the_second_run_reads_the_first(tiny, tmp_path):
    first, notes = run_peer("pearson", tiny, folder=tmp_path)
    again, cached = run_peer("pearson", tiny, folder=tmp_path, compute=False)
    assert (notes["cached"], cached["cached"]) == (False, True)
    assert cached["seconds"] == notes["seconds"] and cached["peak_mb"] > 0 and cached["cores"] == 1
    assert "numpy" in cached["versions"]
    pd.testing.assert_frame_equal(first, again)
    assert set(again["target"]) == {"a", "NA", "nan", "d"}


def test_all_that_decides_a_network_is_in_its_key(tiny, tmp_path):
    def key(one=tiny, method="genie3", settings=None, seed=0):
        return entry(tmp_path, one, method, settings or {"trees": 10}, seed).table.name

    others = [
        key(dataclasses.replace(tiny, hash="89ab")),
        key(dataclasses.replace(tiny, regulators=["a"])),
        key(method="grnboost2"),
        key(settings={"trees": 11}),
        key(seed=1),
    ]
    assert len({key(), *others}) == 6
    assert key() == key()


def test_a_failure_in_the_process_keeps_its_reason():
    with pytest.raises(CallFailed, match="invalid literal"):
        measured(int, "no number")
