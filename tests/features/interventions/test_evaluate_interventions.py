"""Interventions are judged by what was measured, in cells that the model did not see."""

import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.cli import main as cli
from grn.config.schema import Simulation
from grn.features.interventions.scores import scores
from grn.runtime.errors import ConfigError, DataError

SIZE = {
    "cells": 1500,
    "genes": 50,
    "regulators": 10,
    "cell_types": 1,
    "seed": 2,
    "interventions": 0.4,
    "pairs": 0.2,
}
FIELDS = {
    "model.members": 2,
    "model.width": 16,
    "trainer.max_steps": 120,
    "network.false_discovery": False,
}
FIELDS |= {
    "data.intervention_key": "intervention",
    "data.depth": "none",
    "data.multiplicity": "log1p",
}
FIELDS |= {
    "data.test_fraction": 0.4,
    "data.genes": "all",
    "data.regulators": [f"R{n + 1}" for n in range(10)],
}
FIELDS |= {f"data.simulated.{name}": value for name, value in SIZE.items()}


@pytest.fixture(scope="module")
def run():
    return grn.train("simulated:", seed=0, set=FIELDS, quiet=True)


@pytest.fixture(scope="module")
def pair():
    values = simulate(Simulation(**SIZE)).obs["intervention"].cat.categories
    return next(name for name in values if "+" in name)


def test_seen_interventions_are_predicted_and_the_network_beats_correlation(run):
    table = grn.evaluate_interventions(run, quiet=True)
    mean = table.drop(columns="intervention").groupby("method").mean()
    assert (
        mean.loc["grn", "auroc"] > 0.9
        and mean.loc["grn", "signs"] > 0.95
        and mean.loc["grn", "error"] < 0.3
    )
    assert mean.loc["mean of all", "auroc"] < mean.loc["grn", "auroc"]
    networks = pd.DataFrame(table.attrs["networks"]).set_index("network")
    assert networks.loc["grn", "wasserstein"] > networks.loc["pearson", "wasserstein"]
    assert networks.loc["grn", "false_omission"] < networks.loc["pearson", "false_omission"]
    assert networks.loc["grn", "tf_recall"] == 1 and networks.loc["grn", "signs"] > 0.9


def test_an_intervention_that_is_left_out_and_a_pair_are_predicted_by_others(run, pair):
    table = grn.evaluate_interventions(run, leave_out=[pair.split("+")[0], pair], quiet=True)
    by = table.set_index(["intervention", "method"])
    single = by.loc[pair.split("+")[0]]
    assert {"grn", "pearson", "ridge", "mean of all", "linear, embeddings"} == set(single.index)
    assert by.loc[(pair, "grn"), "auroc"] > 0.85 and by.loc[(pair, "grn"), "signs"] > 0.9
    assert "sum of both" in by.loc[pair].index


def test_scores_are_those_of_the_definition():
    z = np.array([9.0, -8.0, 1.0, 0.5, np.nan])
    effect = z / 10
    best = scores(np.abs(z), effect, z, effect)
    assert (
        best["genes"] == 2
        and best["auroc"] == best["early_precision"] == best["signs"] == 1
        and best["error"] == 0
    )
    assert best["rank_correlation"] == pytest.approx(1)
    nothing = scores(np.ones(5), np.zeros(5), z, effect)
    assert (
        nothing["error"] == pytest.approx(1) and nothing["signs"] == 0 and nothing["auroc"] == 0.5
    )
    assert np.isnan(scores(np.abs(z), effect, z / 10, effect)["auroc"])


def test_a_run_without_interventions_and_unknown_ones_are_refused(run, tiny_run):
    with pytest.raises(ConfigError) as plain:
        grn.evaluate_interventions(tiny_run, quiet=True)
    assert plain.value.field == "data.intervention_key"
    with pytest.raises(DataError):
        grn.evaluate_interventions(run, leave_out="NOBODY", quiet=True)


def test_the_command_prints_both_tables_and_takes_either_question(run, tmp_path, capsys):
    found = tmp_path / "found.csv"
    assert cli.main(["evaluate", str(run.folder), "--interventions", "--output", str(found)]) == 0
    printed = capsys.readouterr().out
    assert "Mean over interventions" in printed and "tf_recall" in printed
    assert set(pd.read_csv(found)["method"]) == {"grn", "mean change", "mean of all"}
    assert cli.main(["evaluate", str(run.folder)]) == 2
    assert cli.main(["evaluate", str(run.folder), "truth.csv", "--leave-out", "R1"]) == 2
    never = next(
        f"R{n + 1}"
        for n in range(10)
        if f"R{n + 1}" not in set(run.edges.dropna(subset="caused")["source"])
    )
    capsys.readouterr()
    assert cli.main(["perturb", str(run.folder), "--knock-out", never]) == 0
    assert f"{never}: no cell of this run had this intervention" in capsys.readouterr().out
