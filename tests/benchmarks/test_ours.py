"""Our own method as the benchmarks of networks call it."""

from __future__ import annotations

import numpy as np
import ours
import pandas as pd
import pytest
from sets import NetworkSet

from grn.config.files import change_config


@pytest.fixture
def planted(monkeypatch):
    """200 cells of two types over 20 genes, where g0 raises g3; the fit is short."""
    whole = ours.configuration
    few = {"regulation.members": 2, "regulation.steps": 5}
    monkeypatch.setattr(ours, "configuration", lambda *arguments: change_config(whole(*arguments), few))
    ours.fitted.cache_clear()
    generator = np.random.default_rng(0)
    level = generator.normal(1, 0.5, (200, 20))
    level[:, 3] += level[:, 0]
    genes = [f"g{number}" for number in range(20)]
    reference = pd.DataFrame({"source": ["g0"], "target": ["g3"], "sign": [1]})
    labels = ["a", "b"] * 100
    matrix = generator.poisson(np.exp(level)).astype(np.float32)
    return NetworkSet("planted", genes, "counts", matrix, labels, genes[:3], reference, "all", "planted")


def test_it_lists_every_candidate_edge_of_all_cells_and_of_each_type(planted):
    found = ours.infer_in_context(planted, 0, q_values=True)
    pairs = {(source, target) for source in planted.genes[:3] for target in planted.genes if source != target}
    for table in (found.overall, *found.of_labels(planted.labels).values()):
        assert set(zip(table["source"], table["target"], strict=True)) == pairs
        assert table["q_value"].between(0, 1).all()
    assert sorted(found.of_labels(planted.labels)) == ["a", "b"]
    of_g3 = ours.infer(planted, 0, "cpu").query("target == 'g3'").set_index("source")["weight"]
    assert of_g3.abs().idxmax() == "g0" and of_g3["g0"] > 0
