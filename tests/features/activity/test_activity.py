"""Activity of regulators: decoupler's ulm, it follows planted regulators, and its differences have
honest units.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import grn
from grn.cells.genes.lists import get_list
from grn.cells.load import load_cells
from grn.cli.main import main
from grn.config.schema import DataConfig
from grn.features.activity.of_cells import activity_of_run, activity_of_types
from grn.runtime.errors import DataError, VocabularyMismatch
from grn.runtime.messages import silent

GENES = [f"g{number}" for number in range(40)]
TYPES = np.repeat(["A", "neither", "B"], 10)


@pytest.fixture
def net() -> pd.DataFrame:
    """A raises g0-g9 and lowers g10-g19; B raises g20-g25; C has two targets."""
    weights = {"A": [1.0] * 10 + [-1.0] * 10 + [0.0] * 20, "B": [0.0] * 20 + [2.0] * 6 + [0.0] * 14}
    weights["C"] = [0.0] * 38 + [1.0, 1.0]
    table = pd.DataFrame(weights, index=GENES).melt(
        ignore_index=False, var_name="source", value_name="weight"
    )
    return table.rename_axis("target").reset_index()[["source", "target", "weight"]]


@pytest.fixture
def cells() -> anndata.AnnData:
    """Counts of 30 cells: A is active in the first ten, B in the last ten; the cell in the middle
    is empty.
    """
    counts = np.random.default_rng(0).poisson(4.0, (30, 40)).astype(np.float32)
    counts[:10, :10] += 15
    counts[:10, 10:20] = 0
    counts[20:, 20:26] += 15
    counts[15] = 0
    return anndata.AnnData(counts, obs={"type": TYPES}, var=pd.DataFrame(index=GENES))


def test_activity_follows_what_a_regulator_raises_and_lowers(net, cells):
    table = grn.activity(cells, net, by="type", quiet=True)
    found = cells.obsm["X_regulon"]
    assert list(found) == ["A", "B"] and list(found.index) == list(cells.obs_names)
    assert (
        found["A"][:10].min() > found["A"][10:].max()
        and found["B"][20:].min() > found["B"][:20].max()
    )
    assert found.notna().all(axis=None) and (found.iloc[15] == 0).all()
    row = table.set_index(["cell_type", "regulator"]).loc[("A", "A")]
    assert (row["targets"], row["cells"], row["activity"]) == (
        20,
        10,
        pytest.approx(found["A"][:10].mean()),
    )
    assert row["effect"] == pytest.approx(found["A"][:10].mean() - found["A"][10:].mean(), rel=1e-5)
    assert row["low"] < row["effect"] < row["high"] and row["q_value"] < 1e-6
    assert table["regulator"][0] == "A", "the largest difference of a type comes first"
    assert (
        "negative"
        in grn.activity(anndata.AnnData(cells.X - 4, var=cells.var), net, quiet=True).attrs[
            "notes"
        ][0]
    )


@pytest.mark.parametrize("stored", ["csr", "dense"])
def test_a_file_that_is_read_in_pieces_gives_what_its_cells_in_memory_give(
    net, cells, tmp_path, monkeypatch, stored
):
    if stored == "csr":
        cells.X = sparse.csr_matrix(cells.X)
    cells.write_h5ad(tmp_path / "cells.h5ad")
    whole = grn.activity(cells, net, by="type", quiet=True)
    monkeypatch.setattr("grn.features.activity.of_cells.PIECE", 7)
    pd.testing.assert_frame_equal(
        grn.activity(tmp_path / "cells.h5ad", net, by="type", quiet=True), whole, rtol=1e-5
    )
    assert whole.attrs["notes"][0].startswith("X holds counts")


def test_a_run_with_two_conditions_compares_these_in_each_type(net, cells):
    """A rises in the second half of the first type alone; a cell without a condition is in neither
    half.
    """
    cells.obs["dose"] = ["none", "some"] * 15
    cells.obs.iloc[0, cells.obs.columns.get_loc("dose")] = None
    cells.X[2:10:2, :10] = 4
    loaded, _ = load_cells(
        DataConfig(path="simulated:", genes="all", label_key="type", state_key="dose"), adata=cells
    )
    found = activity_of_run(loaded, net, own=False, grouped=False)
    table = found.set_index(["cell_type", "regulator"])
    assert set(table.index.get_level_values(0)) == {"A", "B", "neither"}
    assert list(found)[4:6] == ["activity_none", "activity_some"]
    assert table.loc[("A", "A"), "effect"] > 1 and table.loc[("A", "A"), "q_value"] < 0.05
    assert (table["q_value"].drop([("A", "A")]) > 0.05).all()


def test_cells_of_a_run_without_a_donor_are_no_donor(net, cells):
    """As if they were named otherwise, and their donor were left out."""
    cells.obs["donor"] = (["d1", "d2", ""] * cells.n_obs)[: cells.n_obs]
    config = DataConfig(path="simulated:", genes="all", label_key="type", group_key="donor")
    loaded, _ = load_cells(config, adata=cells)
    missing = loaded.groups < 0
    assert missing.sum() == (cells.obs["donor"] == "").sum()
    found = activity_of_run(loaded, net, own=False, grouped=True)
    without = replace(loaded, groups=np.where(missing, 7, loaded.groups))
    as_a_donor = activity_of_run(without, net, own=False, grouped=True)
    half, wrong = ((each["high"] - each["effect"]) for each in (found, as_a_donor))
    # Of two pairs, Student's t has one degree of freedom, and of three two.
    assert half.median() > 2 * wrong.median()


def test_turning_all_signs_turns_the_activity(net, cells):
    one = grn.activity(cells, net, quiet=True)
    other = grn.activity(cells, net.assign(weight=-net["weight"]), key_added="turned", quiet=True)
    np.testing.assert_allclose(
        cells.obsm["X_regulon"], -cells.obsm["X_turned"], rtol=1e-4, atol=1e-5
    )
    assert (
        one["cell_type"].unique().tolist() == ["all"]
        and (one["activity"] == -other["activity"]).all()
    )


def test_of_a_network_with_q_values_the_certain_edges_count(net, cells):
    certain = net.assign(q_value=np.where(net["source"] == "A", 0.04, 0.06))
    assert grn.activity(cells, certain, quiet=True)["regulator"].tolist() == ["A"]
    with pytest.raises(DataError):
        grn.activity(cells, net.assign(q_value=0.5), quiet=True)


def test_it_is_decouplers_ulm_on_log_values(net, cells):
    decoupler, sc = pytest.importorskip("decoupler"), pytest.importorskip("scanpy")
    grn.activity(cells, net, key_added="mine", quiet=True)
    logged = cells[cells.X.sum(1) > 0].copy()
    sc.pp.normalize_total(logged, target_sum=float(np.median(logged.X.sum(1))))
    sc.pp.log1p(logged)
    expected, _ = decoupler.mt.ulm(logged.to_df(), net[net["weight"] != 0], tmin=5)
    np.testing.assert_allclose(
        cells.obsm["X_mine"].loc[expected.index, expected.columns], expected, rtol=1e-3
    )
    grn.activity(logged, net, quiet=True)  # log values are used as they are
    np.testing.assert_allclose(logged.obsm["X_regulon"][expected.columns], expected, rtol=1e-3)


def donors(effect: float, donors: int, *, paired: bool) -> tuple[anndata.AnnData, pd.DataFrame]:
    """40 cells a donor, each donor with a level of A's targets of its own; a treatment raises them
    by `effect`.
    """
    draw = np.random.default_rng(5)
    number = np.repeat(np.arange(donors), 40)
    treated = (np.arange(len(number)) % 2 if paired else number % 2).astype(bool)
    values = draw.normal(5, 1, (len(number), 40)).astype(np.float32)
    values[:, :10] += draw.normal(0, 1.5, donors)[number][:, None] + effect * treated[:, None]
    obs = {"donor": [f"d{each}" for each in number], "treated": np.where(treated, "yes", "no")}
    adata = anndata.AnnData(
        values, obs=pd.DataFrame(obs, index=[f"c{each}" for each in range(len(number))])
    )
    adata.var_names = GENES
    return adata, pd.DataFrame({"source": "A", "target": GENES[:10], "weight": 1.0})


def test_donors_are_the_units_where_they_are_given():
    """Levels of donors look like an effect to cells; within donors, a small effect shows."""
    adata, net = donors(0.0, 6, paired=False)
    of_cells = grn.activity(adata, net, compare="treated", quiet=True)
    of_donors = grn.activity(adata, net, compare="treated", group="donor", quiet=True)
    assert of_cells["q_value"][0] < 0.001 and of_donors["q_value"][0] > 0.05
    assert "Cells are no replicates" in of_cells.attrs["notes"][-1]
    assert "Donors are the units" in of_donors.attrs["notes"][-1]
    adata, net = donors(0.5, 6, paired=True)
    found = grn.activity(adata, net, compare="treated", group="donor", quiet=True).iloc[0]
    assert found["low"] > 0 and found["q_value"] < 0.01
    turned = grn.activity(
        adata, net, compare="treated", conditions=("yes", "no"), group="donor", quiet=True
    ).iloc[0]
    assert turned["effect"] == pytest.approx(-found["effect"]) and turned["high"] < 0
    assert found["activity_yes"] - found["activity_no"] == pytest.approx(found["effect"], rel=1e-3)


@pytest.mark.parametrize("size", [3, 5, 30])
def test_no_difference_is_certain_where_there_is_none(size):
    """A few cells beside 60 others: Welch's test finds a certain difference of 3 cells in half of
    the draws.
    """
    draw, wrong = np.random.default_rng(size), 0
    types = np.array(["few"] * size + ["others"] * 60, dtype=object)
    for _ in range(60):
        scores = pd.DataFrame(draw.normal(0, 1, (len(types), 40)))
        table = activity_of_types(scores, types, None, silent)
        wrong += bool((table.loc[table["cell_type"] == "few", "q_value"] <= 0.05).any())
    assert wrong <= 8, "3 of 60 are expected, and more than 8 in one of 300 tries"


def test_published_formats_are_read_and_kept_by_name(tmp_path, monkeypatch, cells, capsys):
    monkeypatch.setenv("GRN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="get it with: grn data get collectri"):
        grn.activity(cells, "collectri", quiet=True)
    lines = [f"A,{gene},{1 if number < 10 else -1}" for number, gene in enumerate(GENES[:20])]
    (tmp_path / "got.csv").write_text("\n".join(["source,target,weight", *lines]))
    assert main(["data", "get", "collectri", "--file", str(tmp_path / "got.csv")]) == 0
    assert "collectri: 20 edges of human" in capsys.readouterr().out
    rows = [
        "source_genesymbol\ttarget_genesymbol\tis_stimulation\tis_inhibition\tconsensus_inhibition"
    ]
    rows += [
        f"A\t{gene}\tTrue\t{number >= 10}\t{number >= 10}" for number, gene in enumerate(GENES[:20])
    ]
    get_list("dorothea", download=lambda url: "\n".join(rows).encode())
    trrust = [
        f"A\t{gene}\t{'Activation' if number < 10 else 'Repression'}\t1"
        for number, gene in enumerate(GENES[:20])
    ]
    (tmp_path / "trrust.tsv").write_text("\n".join([*trrust, "A\tg30\tUnknown\t2"]))
    omnipath = ["source,target,sign", *lines, "COMPLEX:P1_P2,g1,1"]
    (tmp_path / "omnipath.csv").write_text("\n".join(omnipath))
    found = [
        grn.activity(cells, known, min_targets=1, quiet=True)
        for known in ("collectri", "dorothea", tmp_path / "trrust.tsv", tmp_path / "omnipath.csv")
    ]
    assert all(each.equals(found[0]) for each in found) and found[0]["targets"].tolist() == [20]


def test_the_command_writes_the_table(tmp_path, net, cells):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    net.to_csv(tmp_path / "net.csv", index=False)
    files = str(tmp_path / "cells.h5ad"), str(tmp_path / "net.csv")
    call = ["activity", files[0], "--regulons", files[1], "--by", "type"]
    assert main([*call, "--output", str(tmp_path / "found.csv")]) == 0
    written = pd.read_csv(tmp_path / "found.csv")
    expected = grn.activity(cells, net, by="type", quiet=True)
    np.testing.assert_allclose(written["effect"], expected["effect"], rtol=1e-5)
    assert main([*call, "--compare", "type"]) == 2


def test_interferon_raises_its_known_regulators_in_every_type():
    """STAT1, STAT2 and IRF9 lead. IRF7 does not: its nine curated targets here are chemokines
    (docs/log.md).
    """
    folder = Path(os.environ.get("GRN_BENCHMARK_DATA", "nowhere"))
    if not (folder / "kang_ifnb.h5ad").is_file():
        pytest.skip("GRN_BENCHMARK_DATA names no folder with kang_ifnb.h5ad")
    known = folder / "omnipath_tf_target_signed.csv.gz"
    table = grn.activity(
        folder / "kang_ifnb.h5ad", known, by="cell_type_predicted", compare="condition", quiet=True
    )
    large = table["cell_type"].isin(["B", "CD14+ Mono", "CD4 T", "CD8 T", "FCGR3A+ Mono", "NK"])
    leading = table[large].groupby("cell_type").head(4)
    for _, rows in leading.groupby("cell_type"):
        assert {"STAT1", "STAT2", "IRF9"} <= set(rows["regulator"]) and (rows["low"] > 0).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda net: {"min_targets": 30}, VocabularyMismatch),
        (
            lambda net: {"regulons": pd.concat([net.assign(cell_type=name) for name in "ab"])},
            DataError,
        ),
        (lambda net: {"layer": "lognorm"}, DataError),
        (lambda net: {"by": "typ"}, DataError),
        (lambda net: {"by": "type", "group": "type"}, DataError),
        (lambda net: {"regulons": net.assign(target="ENS" + net["target"])}, VocabularyMismatch),
    ],
)
def test_what_cannot_be_used_is_refused(change, error, net, cells):
    with pytest.raises(error):
        grn.activity(**{"cells": cells, "regulons": net, "quiet": True, **change(net)})
