"""The benchmark of the model's attention: its rows, and one small run of it that is not repeated."""

from __future__ import annotations

import sys
from dataclasses import replace

import attention_choice
import pandas as pd
import pytest
import torch
from attention_choice import PRESENT, ROWS, SETS, SHARED, by_presence, main

from grn.config.files import change_config

TINY = {"data.simulated.cells": 120, "data.simulated.genes": 20, "data.simulated.cell_types": 2}


@pytest.mark.parametrize("name", SETS)
def test_rows_differ_from_the_first_in_one_choice(name):
    file, of_set = SETS[name]
    model = {row: change_config(file, {**of_set, **SHARED, **ROWS[row]}).model.model_dump() for row in ROWS}
    for row, found in model.items():
        changed = {field for field, value in found.items() if value != model["spherical"][field]}
        assert len(changed) == (row not in ("spherical", "spherical" + PRESENT, "one step"))


def test_by_presence_every_key_that_is_there_counts_as_one(make_model, make_bags):
    model, bags, seen = make_model(), make_bags(), []
    with by_presence():
        present = model(bags, observe=lambda layer, q, k, v, m: seen.append(m)).logits
    assert all(set(m.unique().tolist()) == {0.0, 1.0} for m in seen)
    ones = replace(bags, multiplicity=(bags.multiplicity > 0).double(), basal=torch.ones_like(bags.basal))
    torch.testing.assert_close(model(ones).logits, present)


def test_a_small_run_is_scored_and_not_repeated(monkeypatch, tmp_path, capsys):
    file, of_set = SETS["simulated_types"]
    monkeypatch.setitem(SETS, "simulated_types", (file, of_set | TINY))
    monkeypatch.setitem(SHARED, "trainer.max_steps", 4)
    monkeypatch.setitem(SHARED, "trainer.validate_every", 2)
    arguments = ["--sets", "simulated_types", "--seeds", "3", "--output", str(tmp_path / "found.csv"), "--rows"]
    monkeypatch.setattr(sys, "argv", ["attention_choice.py", *arguments, "l1", "one step"])
    main()
    table = pd.read_csv(tmp_path / "found.csv").set_index("row")
    assert table["seed"].tolist() == [3, 3] and table["auprc_layer1"].between(0, 1).all()
    assert table["accuracy"].between(0, 1).all() and table["cells_per_cpu_second"].isna().tolist() == [False, True]
    monkeypatch.setattr(attention_choice, "fit", lambda *_: pytest.fail("it is fitted again"))
    capsys.readouterr()
    main()
    assert "l1" in capsys.readouterr().out
