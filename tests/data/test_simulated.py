"""The planted network is what the generator says it is, and can be found."""

import anndata
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

import grn.data.simulated
from grn.config.schema import SimulatedConfig
from grn.data.simulated import read_truth, simulate
from grn.errors import ConfigError


@settings(max_examples=25)
@given(
    regulators=st.integers(1, 10),
    targets=st.integers(1, 20),
    most=st.integers(1, 5),
    types=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_any_network_is_acyclic_signed_and_gives_counts(regulators, targets, most, types, seed):
    config = SimulatedConfig(
        cells=30,
        genes=regulators + targets,
        regulators=regulators,
        regulators_per_target=most,
        cell_types=types,
        seed=seed,
    )
    adata = simulate(config)
    counts = adata.X.data
    assert adata.shape == (30, regulators + targets)
    assert np.isfinite(counts).all() and (counts >= 0).all() and np.array_equal(counts, np.rint(counts))
    truth = read_truth(adata)
    place = {name: number for number, name in enumerate(adata.var_names)}
    sources, sinks = truth["source"].map(place), truth["target"].map(place)
    assert (sources < sinks).all(), "edges go forward, so there is no cycle"
    assert adata.var["is_regulator"].to_numpy()[sources].all()
    assert set(truth["sign"]) <= {-1, 1}
    assert not truth.duplicated(["source", "target"]).any()
    per_target = truth["target"].value_counts()
    assert per_target.max() <= most
    assert set(adata.var_names[regulators:]) <= set(per_target.index), "every target is regulated"
    assert adata.obs["cell_type"].nunique() == types


def test_the_truth_survives_a_file(tmp_path):
    adata = simulate(SimulatedConfig(cells=20, genes=12, regulators=3))
    adata.write_h5ad(tmp_path / "simulated.h5ad")
    again = read_truth(anndata.read_h5ad(tmp_path / "simulated.h5ad"))
    for column in ("source", "target", "sign"):
        assert list(again[column]) == list(read_truth(adata)[column])


def test_repression_is_the_share_of_negative_edges():
    shares = [
        (read_truth(simulate(SimulatedConfig(cells=10, genes=300, repression=share)))["sign"] < 0).mean()
        for share in (0.0, 0.35, 0.9)
    ]
    np.testing.assert_allclose(shares, [0, 0.35, 0.9], atol=0.06)


def test_depth_is_the_mean_count():
    counts = simulate(SimulatedConfig(cells=300, genes=200, depth=2.0)).X
    assert counts.mean() == pytest.approx(2.0, rel=0.15)


def test_a_gene_with_repressors_alone_is_expressed_and_falls():
    adata = simulate(SimulatedConfig(cells=2000, genes=60, repression=0.95, regulators_per_target=1))
    truth = read_truth(adata)
    repressed = truth[truth["sign"] < 0]
    logs = np.log1p(adata.to_df())
    found = [np.corrcoef(logs[edge.source], logs[edge.target])[0, 1] for edge in repressed.itertuples()]
    assert len(found) > 40
    assert logs[repressed["target"]].mean().min() > 0
    assert np.median(found) < -0.3
    assert np.mean(np.array(found) < 0) > 0.95


def test_edges_and_signs_can_be_found_by_correlation():
    config = SimulatedConfig()
    adata = simulate(config)
    counts = adata.X.toarray()
    logs = np.log1p(counts * np.median(counts.sum(1)) / counts.sum(1, keepdims=True))
    found = np.corrcoef(logs.T)[: config.regulators]
    planted = np.zeros_like(found)
    truth = read_truth(adata)
    planted[adata.var_names.get_indexer(truth["source"]), adata.var_names.get_indexer(truth["target"])] = truth["sign"]
    pairs = ~np.eye(*found.shape, dtype=bool)
    edges = planted != 0
    assert average_precision_score(edges[pairs], np.abs(found)[pairs]) > 1.8 * edges[pairs].mean()
    assert (np.sign(found) == planted)[edges].mean() > 0.85


def test_more_regulators_than_genes_are_refused():
    with pytest.raises(ConfigError, match="leaves no target"):
        simulate(SimulatedConfig(genes=5, regulators=5))


def test_cells_do_not_depend_on_how_many_are_in_memory_at_a_time(monkeypatch):
    config = SimulatedConfig(cells=31, genes=50, seed=3)
    whole = simulate(config)
    monkeypatch.setattr(grn.data.simulated, "BLOCK", 200)
    parts = simulate(config)
    assert (parts.X != whole.X).nnz == 0 and read_truth(parts).equals(read_truth(whole))


def test_whole_transcriptomes_are_as_sparse_as_they_are_shallow():
    config = SimulatedConfig(cells=40, genes=20000, regulators=200, depth=0.42, size_sd=0.33)
    adata = simulate(config)
    expressed = np.diff(adata.X.indptr)
    assert 0.1 < expressed.min() / 20000 < 0.25 < np.median(expressed) / 20000 < 0.35 < expressed.max() / 20000 < 0.75
    assert 19800 < len(read_truth(adata)) < 3 * 19900
