"""Interventions are judged by what was measured, in cells that the model did not see."""

import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated.cells import simulate
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
REGULATORS = [f"R{number + 1}" for number in range(10)]
FIELDS = {f"data.simulated.{name}": value for name, value in SIZE.items()} | {
    "model.members": 2,
    "model.width": 16,
    "trainer.max_steps": 120,
    "network.false_discovery": False,
    "data.intervention_key": "intervention",
    "data.depth": "none",
    "data.multiplicity": "log1p",
    "data.test_fraction": 0.4,
    "data.genes": "all",
    "data.regulators": REGULATORS,
}


@pytest.fixture(scope="module")
def run():
    return grn.train("simulated:", seed=0, set=FIELDS)


def test_seen_interventions_are_predicted_and_the_network_beats_correlation(run):
    table = grn.evaluate_interventions(run)
    mean = table.drop(columns="intervention").groupby("method").mean()
    ours = mean.loc["grn"]
    assert ours["auroc"] > 0.9 and ours["signs"] > 0.95 and ours["error"] < 0.3
    assert mean.loc["mean of all", "auroc"] < ours["auroc"]
    networks = pd.DataFrame(table.attrs["networks"]).set_index("network")
    ours, pearson = networks.loc["grn"], networks.loc["pearson"]
    assert ours["wasserstein"] > pearson["wasserstein"]
    assert ours["false_omission"] < pearson["false_omission"]
    assert ours["tf_recall"] == 1 and ours["signs"] > 0.9


def test_an_intervention_that_is_left_out_and_a_pair_are_predicted_by_others(run):
    made = simulate(Simulation(**SIZE)).obs["intervention"].cat.categories
    pair = next(name for name in made if "+" in name)
    first = pair.split("+")[0]
    table = grn.evaluate_interventions(run, leave_out=[first, pair])
    by = table.set_index(["intervention", "method"])
    methods = {"grn", "pearson", "ridge", "mean of all", "linear, embeddings"}
    assert methods == set(by.loc[first].index) and "sum of both" in by.loc[pair].index
    assert by.loc[(pair, "grn"), "auroc"] > 0.85 and by.loc[(pair, "grn"), "signs"] > 0.9


def test_scores_are_those_of_the_definition():
    z = np.array([9.0, -8.0, 1.0, 0.5, np.nan])
    effect = z / 10
    best = scores(np.abs(z), effect, z, effect)
    assert best["genes"] == 2 and best["error"] == 0
    for name in ("auroc", "early_precision", "signs", "rank_correlation"):
        assert best[name] == pytest.approx(1), name
    nothing = scores(np.ones(5), np.zeros(5), z, effect)
    assert nothing["error"] == pytest.approx(1)
    assert (nothing["signs"], nothing["auroc"]) == (0, 0.5)
    assert np.isnan(scores(np.abs(z), effect, z / 10, effect)["auroc"])


def test_a_run_without_interventions_and_unknown_ones_are_refused(run, tiny_run):
    with pytest.raises(ConfigError) as plain:
        grn.evaluate_interventions(tiny_run)
    assert plain.value.field == "data.intervention_key"
    with pytest.raises(DataError):
        grn.evaluate_interventions(run, leave_out="NOBODY")


def test_the_command_prints_both_tables_and_takes_either_question(run, command):
    call = "evaluate", run.folder
    code, printed, _ = command(*call, "--interventions", "--output", "found.csv")
    assert code == 0 and "Mean over interventions" in printed and "tf_recall" in printed
    assert set(pd.read_csv("found.csv")["method"]) == {"grn", "mean change", "mean of all"}
    assert command(*call)[0] == command(*call, "truth.csv", "--leave-out", "R1")[0] == 2
    made = set(run.edges.dropna(subset="caused")["source"])
    never = next(name for name in REGULATORS if name not in made)
    printed = command("perturb", run.folder, "--knock-out", never)[1]
    assert f"{never}: no cell of this run had this intervention" in printed
