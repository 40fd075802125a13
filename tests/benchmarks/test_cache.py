"""Prepared sets travel unchanged, and what was inferred once is not inferred again."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from peers.cache import entry
from peers.measure import CallFailed, measured
from peers.prepared import PreparedSet, load_prepared, save_prepared
from peers.run import NotRun, run_peer


@pytest.fixture
def tiny() -> PreparedSet:
    values = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
    return PreparedSet("tiny", values, ["a", "NA", "nan", "d"], ["a", "NA"], "0123")


def test_a_prepared_set_survives_its_file(tiny, tmp_path):
    save_prepared(tmp_path / "sets.npz", [tiny, dataclasses.replace(tiny, name="other", hash="4567")])
    read, other = load_prepared(tmp_path / "sets.npz")
    assert (read.name, read.genes, read.regulators, read.hash) == ("tiny", tiny.genes, tiny.regulators, "0123")
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


def test_a_table_without_notes_is_no_entry(tiny, tmp_path):
    cached = entry(tmp_path, tiny, "pearson", {}, 0)
    cached.write(pd.DataFrame({"source": ["a"], "target": ["NA"], "weight": [0.5]}), {"seconds": 1})
    assert cached.exists() and json.loads(cached.notes.read_text())["seconds"] == 1
    cached.notes.unlink()
    assert not cached.exists()
    with pytest.raises(NotRun, match="not in the cache"):
        run_peer("pearson", tiny, folder=tmp_path, compute=False)


def test_without_its_python_regdiffusion_says_so(tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("GRN_BENCHMARK_REGDIFFUSION_PYTHON", raising=False)
    with pytest.raises(NotRun, match="GRN_BENCHMARK_REGDIFFUSION_PYTHON is not set"):
        run_peer("regdiffusion", tiny, folder=tmp_path)


def test_a_failure_in_the_process_keeps_its_reason():
    with pytest.raises(CallFailed, match="invalid literal"):
        measured(int, "no number")
