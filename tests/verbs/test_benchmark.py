"""grn.benchmark: the same edges are judged for every method, ours and those of other tools."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated import simulate
from grn.cli.main import main
from grn.config.schema import SimulatedConfig


@pytest.fixture(scope="module")
def adata():
    return simulate(SimulatedConfig(cells=300, genes=30, regulators=4, cell_types=2))


@pytest.fixture(scope="module")
def truth(adata):
    return adata.uns["truth"]


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """What is compared is how methods are scored, not how good they are."""

    def few(*given, set=None, **options):
        return grn.network(*given, set={"model.members": 2, "trainer.max_steps": 100, **(set or {})}, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("grn.verbs.benchmark.network", few)
        yield few


@pytest.fixture(scope="module")
def table(adata, truth):
    perfect = truth.rename(columns={"sign": "weight"})[["source", "target", "weight"]]
    return grn.benchmark(adata, truth, networks={"truth": perfect}, label="cell_type", quiet=True)


def test_every_method_has_a_row_and_the_truth_is_best(table):
    assert set(table.index) == {"grn", "Pearson", "ridge", "truth"}
    assert table.index[0] == "truth" and table["auprc"].is_monotonic_decreasing
    assert table.loc["truth", ["auprc", "auroc", "sign_accuracy"]].tolist() == [1.0, 1.0, 1.0]
    assert (table["auprc_ratio"] > 1).all()


def test_each_method_has_the_scores_that_evaluate_gives(adata, truth, table, few_steps):
    edges = few_steps(adata, label="cell_type", regulators=sorted(truth["source"].unique()), genes="all", quiet=True)
    scores = grn.evaluate(edges, truth, data=adata, permutations=0, quiet=True)
    for column in ("auprc", "auroc", "sign_accuracy"):
        assert table.loc["grn", column] == pytest.approx(scores.loc[column, "network"])
        for name in ("Pearson", "ridge"):
            assert table.loc[name, column] == pytest.approx(scores.loc[column, name.lower()])


def test_a_run_brings_its_own_network_and_its_cells(tiny_run, capsys):
    reference = pd.read_csv(tiny_run / "truth.csv")
    table = grn.benchmark(tiny_run, reference)
    said = capsys.readouterr().out
    assert "Universe: " in said and "density" in said
    scores = grn.evaluate(grn.load(tiny_run), reference, permutations=0, quiet=True)
    assert table.loc["grn", "auprc"] == pytest.approx(scores.loc["auprc", "network"])


def test_the_command_prints_the_table_and_python_takes_other_networks(tiny_run, tmp_path, capsys):
    unsigned = tmp_path / "genie3.csv"
    pd.DataFrame({"TF": ["R1", "R2"], "target": ["R2", "R3"], "importance": [2.0, 1.0]}).to_csv(unsigned, index=False)
    reference = tiny_run / "truth.csv"
    assert main(["benchmark", str(tiny_run), str(reference)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("grn", "Pearson", "ridge", "AUPRC", "sign accuracy, balanced"))
    table = grn.benchmark(tiny_run, reference, networks={"GENIE3": unsigned}, quiet=True)
    assert set(table.index) == {"grn", "Pearson", "ridge", "GENIE3"}
    assert np.isnan(table.loc["GENIE3", "sign_accuracy"]), "importances have no signs"


def test_a_run_whose_cells_are_gone_says_where_to_put_them(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    config = run / "config.yaml"
    config.write_text(re.sub("path: .*", "path: gone.h5ad", config.read_text()))
    assert main(["benchmark", str(run), str(run / "truth.csv")]) == 2
    assert "gone.h5ad" in capsys.readouterr().err
