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
from grn.cells.cells import Cells
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
    source = ["A"] * 20 + ["B"] * 6 + ["C"] * 2
    weight = [1.0] * 10 + [-1.0] * 10 + [2.0] * 6 + [1.0] * 2
    return pd.DataFrame({"source": source, "target": GENES[:26] + GENES[38:], "weight": weight})


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
    table = grn.activity(cells, net, by="type")
    found = cells.obsm["X_regulon"]
    assert list(found) == ["A", "B"] and list(found.index) == list(cells.obs_names)
    a, b = found["A"], found["B"]
    assert a[:10].min() > a[10:].max() and b[20:].min() > b[:20].max()
    assert found.notna().all(axis=None) and (found.iloc[15] == 0).all()
    row = table.iloc[0]
    assert row[["cell_type", "regulator", "targets", "cells"]].tolist() == ["A", "A", 20, 10]
    assert row["activity"] == pytest.approx(a[:10].mean())
    assert row["effect"] == pytest.approx(a[:10].mean() - a[10:].mean(), rel=1e-5)
    assert row["low"] < row["effect"] < row["high"] and row["q_value"] < 1e-6
    cells.X -= 4
    assert "negative" in grn.activity(cells, net).attrs["notes"][0]


@pytest.mark.parametrize("form", [sparse.csr_matrix, np.asarray])
def test_a_file_that_is_read_in_pieces_gives_what_its_cells_in_memory_give(
    net, cells, tmp_path, monkeypatch, form
):
    cells.X = form(cells.X)
    cells.write_h5ad(tmp_path / "cells.h5ad")
    whole = grn.activity(cells, net, by="type")
    monkeypatch.setattr("grn.features.activity.of_cells.PIECE", 7)
    found = grn.activity(tmp_path / "cells.h5ad", net, by="type")
    pd.testing.assert_frame_equal(found, whole, rtol=1e-5)


def test_a_run_with_two_conditions_compares_these_in_each_type(net, cells):
    """A rises in the second half of the first type alone; a cell without a condition is in neither
    half.
    """
    cells.obs["dose"] = [None, "some", *["none", "some"] * 14]
    cells.X[2:10:2, :10] = 4
    found = activity_of_run(loaded(cells, state_key="dose"), net, own=False, grouped=False)
    assert {"activity_none", "activity_some"} < set(found)
    table = found.set_index(["cell_type", "regulator"])
    risen = table.loc[("A", "A")]
    assert risen["effect"] > 1 and risen["q_value"] < 0.05
    assert len(table) == 6 and (table["q_value"].drop([("A", "A")]) > 0.05).all()


def loaded(cells: anndata.AnnData, **fields) -> Cells:
    config = DataConfig(path="simulated:", genes="all", label_key="type", **fields)
    return load_cells(config, adata=cells)[0]


def test_cells_of_a_run_without_a_donor_are_no_donor(net, cells):
    """As if they were named otherwise, and their donor were left out: of two pairs, Student's t has
    one degree of freedom, and of three two.
    """
    cells.obs["donor"] = ["d1", "d2", ""] * 10
    known = loaded(cells, group_key="donor")
    assert (known.groups < 0).sum() == 10
    wrong = replace(known, groups=np.where(known.groups < 0, 7, known.groups))
    own, other = (
        activity_of_run(each, net, own=False, grouped=True).eval("high - effect").median()
        for each in (known, wrong)
    )
    assert own > 2 * other


def test_of_a_network_with_q_values_the_certain_edges_count(net, cells):
    certain = net.assign(q_value=np.where(net["source"] == "A", 0.04, 0.06))
    assert grn.activity(cells, certain)["regulator"].tolist() == ["A"]
    with pytest.raises(DataError):
        grn.activity(cells, net.assign(q_value=0.5))


def test_it_is_decouplers_ulm_on_log_values(net, cells):
    """Of counts, as scanpy makes them; log values are used as they are."""
    decoupler, sc = pytest.importorskip("decoupler"), pytest.importorskip("scanpy")
    logged = cells[cells.X.sum(1) > 0].copy()
    sc.pp.normalize_total(logged, target_sum=float(np.median(logged.X.sum(1))))
    sc.pp.log1p(logged)
    expected, _ = decoupler.mt.ulm(logged.to_df(), net, tmin=5)
    for each in (cells, logged):
        grn.activity(each, net, key_added="mine")
        found = each.obsm["X_mine"].loc[expected.index, expected.columns]
        np.testing.assert_allclose(found, expected, rtol=1e-3)


def donors(effect: float, *, paired: bool) -> tuple[anndata.AnnData, pd.DataFrame]:
    """240 cells of six donors, each with a level of A's targets of its own; a treatment raises
    them by `effect`.
    """
    draw = np.random.default_rng(5)
    number = np.repeat(np.arange(6), 40)
    treated = (np.arange(240) if paired else number) % 2 == 1
    values = draw.normal(5, 1, (240, 40)).astype(np.float32)
    values[:, :10] += draw.normal(0, 1.5, 6)[number][:, None] + effect * treated[:, None]
    adata = anndata.AnnData(values, var=pd.DataFrame(index=GENES))
    adata.obs["donor"], adata.obs["treated"] = number.astype(str), np.where(treated, "yes", "no")
    return adata, pd.DataFrame({"source": "A", "target": GENES[:10], "weight": 1.0})


def test_donors_are_the_units_where_they_are_given():
    """Levels of donors look like an effect to cells; within donors, a small effect shows."""
    adata, net = donors(0.0, paired=False)
    of_cells = grn.activity(adata, net, compare="treated")
    of_donors = grn.activity(adata, net, compare="treated", group="donor")
    assert of_cells["q_value"][0] < 0.001 and of_donors["q_value"][0] > 0.05
    assert "Cells are no replicates" in of_cells.attrs["notes"][-1]
    adata, net = donors(0.5, paired=True)
    options = {"compare": "treated", "group": "donor"}
    found, turned = (
        grn.activity(adata, net, **options, conditions=names).iloc[0]
        for names in (("no", "yes"), ("yes", "no"))
    )
    assert found["low"] > 0 and found["q_value"] < 0.01
    assert found["activity_yes"] - found["activity_no"] == pytest.approx(found["effect"], rel=1e-3)
    assert turned["effect"] == pytest.approx(-found["effect"]) and turned["high"] < 0


@pytest.mark.parametrize("size", [3, 5, 30])
def test_no_difference_is_certain_where_there_is_none(size):
    """A few cells beside 60 others: Welch's test finds a certain difference of 3 cells in half of
    the draws. 3 of 60 are expected here, and more than 8 in one of 300 tries.
    """
    draw, wrong = np.random.default_rng(size), 0
    types = np.repeat(["few", "others"], [size, 60]).astype(object)
    for _ in range(60):
        scores = pd.DataFrame(draw.normal(0, 1, (len(types), 40)))
        table = activity_of_types(scores, types, None, silent)
        wrong += table.loc[table["cell_type"] == "few", "q_value"].min() <= 0.05
    assert wrong <= 8


def test_published_formats_are_read_and_kept_by_name(tmp_path, monkeypatch, cells):
    """The same signs in each: ten genes up, ten down."""
    monkeypatch.setenv("GRN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="get it with: grn data get collectri"):
        grn.activity(cells, "collectri")

    def lines(pattern: str, up: str, down: str) -> list[str]:
        return [pattern.format(gene, up if n < 10 else down) for n, gene in enumerate(GENES[:20])]

    signs = lines("A,{},{}", "1", "-1")
    trrust = lines("A\t{}\t{}\t1", "Activation", "Repression")
    files = {
        "got.csv": ["source,target,weight", *signs],
        "complexes.csv": ["source,target,sign", *signs, "COMPLEX:P1_P2,g1,1"],
        "trrust.tsv": [*trrust, "A\tg30\tUnknown\t2"],
    }
    for name, content in files.items():
        (tmp_path / name).write_text("\n".join(content))
    assert main(["data", "get", "collectri", "--file", str(tmp_path / "got.csv")]) == 0
    head = "source_genesymbol target_genesymbol is_stimulation is_inhibition consensus_inhibition"
    rows = lines("A {} True {}", "False False", "True True")
    omnipath = "\n".join([head, *rows]).replace(" ", "\t").encode()
    get_list("dorothea", download=lambda url: omnipath)
    first, *others = (
        grn.activity(cells, known, min_targets=1)
        for known in ("collectri", "dorothea", *(tmp_path / name for name in files))
    )
    assert all(each.equals(first) for each in others) and first["targets"].tolist() == [20]


def test_interferon_raises_its_known_regulators_in_every_type():
    """STAT1, STAT2 and IRF9 lead. IRF7 does not: its nine curated targets here are chemokines
    (docs/log.md).
    """
    folder = Path(os.environ.get("GRN_BENCHMARK_DATA", "nowhere"))
    if not (folder / "kang_ifnb.h5ad").is_file():
        pytest.skip("GRN_BENCHMARK_DATA names no folder with kang_ifnb.h5ad")
    known = folder / "omnipath_tf_target_signed.csv.gz"
    options = {"by": "cell_type_predicted", "compare": "condition", "quiet": True}
    table = grn.activity(folder / "kang_ifnb.h5ad", known, **options).set_index("cell_type")
    for name in ("B", "CD14+ Mono", "CD4 T", "CD8 T", "FCGR3A+ Mono", "NK"):
        leading = table.loc[name].head(4)
        assert {"STAT1", "STAT2", "IRF9"} <= set(leading["regulator"]), name
        assert (leading["low"] > 0).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda net: {"min_targets": 30}, VocabularyMismatch),
        (lambda net: {"regulons": net.assign(target="ENS" + net["target"])}, VocabularyMismatch),
        (lambda net: {"regulons": pd.concat(net.assign(cell_type=t) for t in "ab")}, DataError),
        (lambda net: {"layer": "lognorm"}, DataError),
        (lambda net: {"by": "type", "group": "type"}, DataError),
    ],
)
def test_what_cannot_be_used_is_refused(change, error, net, cells):
    with pytest.raises(error):
        grn.activity(**{"cells": cells, "regulons": net, "quiet": True, **change(net)})


def test_a_network_without_signs_says_so(net, cells):
    notes = grn.activity(cells, net.assign(weight=1.0)).attrs["notes"]
    assert len(notes) == len(grn.activity(cells, net).attrs["notes"]) + 1
