"""`grn.compare`: what the command says and finds, from Python, and for cells in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated import simulate
from grn.config.schema import SimulatedConfig
from grn.errors import ConfigError, DataError

OPTIONS = {"permutations": 10, "quiet": True}


@pytest.fixture(scope="module")
def cells():
    adata = simulate(SimulatedConfig(cells=120, genes=16, regulators=4, cell_types=2))
    adata.obs["treated"] = pd.Categorical(np.tile(["no", "no", "yes", "yes"], 30))
    adata.obs["batch"] = np.arange(120) % 3
    return adata


@pytest.fixture(scope="module")
def run_in_memory(cells, tmp_path_factory):
    few = {"model.members": 1}
    folder = tmp_path_factory.mktemp("runs") / "memory"
    return grn.train(cells, label="cell_type", max_steps=2, set=few, output=folder, quiet=True)


def test_a_run_and_its_folder_give_the_same_table(tiny_run, capsys):
    table = grn.compare(grn.load(tiny_run), "cell_type", **OPTIONS)
    pd.testing.assert_frame_equal(table, grn.compare(tiny_run, by="cell_type", **OPTIONS))
    assert capsys.readouterr().out == ""
    assert any("40 and 40 cells" in line for line in table.attrs["notes"])
    loud = grn.compare(tiny_run, "cell_type", permutations=10)
    assert capsys.readouterr().out.splitlines() == loud.attrs["notes"]


def test_cells_in_memory_are_given_again(run_in_memory, cells):
    with pytest.raises(DataError):
        grn.compare(run_in_memory, "treated", **OPTIONS)
    before = cells.copy()
    table = grn.compare(run_in_memory, "treated", data=cells, **OPTIONS)
    assert set(table["cell_type"]) == {"all", "type 1", "type 2"} and {"weight_no", "weight_yes"} <= set(table)
    pd.testing.assert_frame_equal(before.obs, cells.obs)
    one = grn.compare(run_in_memory, "treated", data=cells, cell_type="type 2", **OPTIONS)
    assert set(one["cell_type"]) == {"type 2"}


def test_mistakes_name_the_argument(run_in_memory, cells):
    for arguments in ({"by": "treat"}, {"by": "batch"}, {"by": "batch", "group": "batch"}):
        with pytest.raises((DataError, ConfigError), match=f"{[*arguments][-1]}=|{arguments['by']}"):
            grn.compare(run_in_memory, data=cells, **arguments, **OPTIONS)
    two = grn.compare(run_in_memory, "batch", data=cells, conditions=("0", "2"), **OPTIONS)
    assert {"weight_0", "weight_2"} <= set(two)


def test_donors_with_both_conditions_and_too_few_of_them(run_in_memory, cells):
    table = grn.compare(run_in_memory, "treated", data=cells, group="batch", **OPTIONS)
    assert any("3 donors" in line for line in table.attrs["notes"])
    assert table["q_value"].min() >= 0.25 - 1e-9
