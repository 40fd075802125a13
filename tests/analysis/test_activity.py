"""Activity of regulators: decoupler's, on our signed network, and it follows planted regulators."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.errors import DataError, VocabularyMismatch

decoupler = pytest.importorskip("decoupler")
GENES = [f"g{number}" for number in range(40)]


@pytest.fixture
def net() -> pd.DataFrame:
    """A raises g0-g9 and lowers g10-g19; B raises g20-g25; C has two targets."""
    weights = {"A": [1.0] * 10 + [-1.0] * 10 + [0.0] * 20, "B": [0.0] * 20 + [2.0] * 6 + [0.0] * 14}
    weights["C"] = [0.0] * 38 + [1.0, 1.0]
    table = pd.DataFrame(weights, index=GENES).melt(ignore_index=False, var_name="source", value_name="weight")
    return table.rename_axis("target").reset_index()[["source", "target", "weight"]]


@pytest.fixture
def cells() -> anndata.AnnData:
    """Counts of 30 cells: A is active in the first ten, B in the last ten; the cell in the middle is empty."""
    counts = np.random.default_rng(0).poisson(4.0, (30, 40)).astype(np.float32)
    counts[:10, :10] += 15
    counts[:10, 10:20] = 0
    counts[20:, 20:26] += 15
    counts[15] = 0
    return anndata.AnnData(counts, var=pd.DataFrame(index=GENES))


@pytest.mark.parametrize("method", ["ulm", "aucell"])
def test_activity_follows_what_a_regulator_raises_and_lowers(method, net, cells):
    grn.activity(cells, net, method=method, quiet=True)
    found = cells.obsm["X_regulon"]
    assert list(found) == ["A", "B"] and list(found.index) == list(cells.obs_names)
    if method == "ulm":  # of 40 genes, aucell reads the two highest
        assert found["A"][:10].min() > found["A"][10:].max() and found["B"][20:].min() > found["B"][:20].max()
    assert found["A"][:10].mean() > 0.5 + found["A"][10:].mean()
    assert found.notna().all(axis=None) and (found.iloc[15] == 0).all()
    assert ("padj_regulon" in cells.obsm) == (method == "ulm")
    assert cells.uns["regulon"]["method"] == method


def test_turning_all_signs_turns_the_activity(net, cells):
    """Of ulm; the network of a regulator alone, as others change nothing."""
    one = grn.activity(cells, net, copy=True, quiet=True).obsm["X_regulon"]
    other = grn.activity(cells, net.assign(weight=-net["weight"]), copy=True, quiet=True).obsm["X_regulon"]
    np.testing.assert_allclose(one, -other, rtol=1e-4, atol=1e-5)
    assert "X_regulon" not in cells.obsm, "a copy leaves the cells as they are"


def test_weights_count_as_far_as_their_signs_are_known(net, cells):
    """Confidence 0.75 halves a weight; a regulator of which nothing is known keeps its activity."""
    known = net.assign(confidence=np.where(net["target"].isin(GENES[:5]), 0.75, 1.0))
    known.loc[known["source"] == "B", "confidence"] = 0.5
    halved = net.assign(weight=net["weight"] * np.where(net["target"].isin(GENES[:5]), 0.5, 1.0))
    found, expected = (grn.activity(cells, each, copy=True, quiet=True).obsm["X_regulon"] for each in (known, halved))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    everywhere = grn.activity(cells, net.assign(confidence=0.5), copy=True, quiet=True).obsm["X_regulon"]
    plain = grn.activity(cells, net, copy=True, quiet=True).obsm["X_regulon"]
    np.testing.assert_array_equal(everywhere, plain)  # 0.5 everywhere: the read-out has no confidences


def test_it_is_decouplers_ulm_on_log_values(net, cells, capsys):
    import scanpy as sc

    grn.activity(cells, net, key_added="mine")
    said = capsys.readouterr().out
    assert "X holds counts" in said and "Activity of 2 regulators in 30 cells (ulm), from 13 targets each" in said
    logged = cells[cells.X.sum(1) > 0].copy()
    sc.pp.normalize_total(logged, target_sum=float(np.median(logged.X.sum(1))))
    sc.pp.log1p(logged)
    expected, _ = decoupler.mt.ulm(logged.to_df(), net[net["weight"] != 0], tmin=5)
    np.testing.assert_allclose(cells.obsm["X_mine"].loc[expected.index, expected.columns], expected, rtol=1e-3)
    # Log values are used as they are.
    again = grn.activity(logged, net, quiet=True).obsm["X_regulon"]
    np.testing.assert_allclose(again[expected.columns], expected, rtol=1e-3)


def test_a_network_of_a_run_and_of_its_cell_types_is_taken_as_it_is(tiny_run, make_config):
    from grn.cells.simulated import simulate

    adata = simulate(make_config().data.simulated)
    run = grn.load(tiny_run)
    grn.activity(adata, run, min_targets=3, quiet=True)
    whole = adata.obsm["X_regulon"]
    assert set(whole) == {"R1", "R2", "R3", "R4"}
    of_type = grn.activity(adata, run, cell_type="type 2", min_targets=3, quiet=True).obsm["X_regulon"]
    assert not np.allclose(whole, of_type[whole.columns])
    with pytest.raises(DataError, match="The network has no cell type 'T'"):
        grn.activity(adata, run, cell_type="T", quiet=True)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda net: {"min_targets": 30}, DataError),
        (lambda net: {"network": pd.concat([net.assign(cell_type=name) for name in "ab"])}, DataError),
        (lambda net: {"layer": "lognorm"}, DataError),
        (lambda net: {"network": net.assign(target="ENS" + net["target"])}, VocabularyMismatch),
    ],
)
def test_what_cannot_be_used_is_one_sentence(change, error, net, cells):
    with pytest.raises(error) as caught:
        grn.activity(**{"adata": cells, "network": net, "quiet": True, **change(net)})
    assert "\n" not in str(caught.value)
