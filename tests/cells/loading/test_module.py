"""Loaders: their order, what they hide, who has which cells, and where they go on."""

import multiprocessing
import subprocess
import sys
from collections import ChainMap

import numpy as np
import pytest
import torch

from grn.cells.load import load_cells
from grn.cells.loading.module import CellsDataModule, without_main_module
from grn.config.schema import DataConfig, SimulatedConfig

SIMULATED = SimulatedConfig(cells=120, genes=20, regulators=4)


def module(**options) -> CellsDataModule:
    config = DataConfig(path="simulated:", simulated=SIMULATED, label_key="cell_type")
    cells, split = load_cells(config)
    options = {"multiplicity": "log1p_normalised"} | options
    return CellsDataModule(cells, split, batch_size=16, seed=1, **options)


def seen(loader, count: int) -> list:
    """The next so many batches, over the ends of passes: how many genes each cell shows."""
    found = []
    while len(found) < count:
        for batch in loader:
            found.append(dict(zip(batch.cells.tolist(), batch.kept.sum(1).tolist(), strict=True)))
            if len(found) == count:
                break
    return found


def test_epochs_differ_in_order_and_in_what_they_hide():
    data = module()
    steps = data.steps_per_epoch()
    assert steps == 6
    batches = seen(data.train_dataloader(), 2 * steps)
    first, second = batches[:steps], batches[steps:]
    assert [list(batch) for batch in first] != [list(batch) for batch in second]
    one, other = (ChainMap(*each) for each in (first, second))
    assert len(one) == steps * 16, "no cell twice in an epoch"
    both = one.keys() & other.keys()
    assert sum(one[cell] != other[cell] for cell in both) > len(both) / 2


@pytest.mark.parametrize("stopped", [1, 6, 8, 12])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_loader_goes_on_where_its_state_was_saved(stopped, workers):
    loader = module(num_workers=workers).train_dataloader()
    before = seen(loader, stopped)
    resumed = module(num_workers=workers).train_dataloader()
    resumed.load_state_dict(loader.state_dict())
    assert before + seen(resumed, 20 - stopped) == seen(module().train_dataloader(), 20)


@pytest.mark.parametrize("known", [True, False])
def test_validation_and_test_hide_nothing_and_know_what_they_may(known):
    """Found states come from the very genes that test cells are judged by."""
    fold, states = np.arange(120) % 5, np.eye(2, dtype=np.float32)[np.arange(120) % 2]
    data = module(states=states, fold=fold, judged=np.array([3, 9, 80]), states_are_known=known)
    judged, test = list(data.val_dataloader()), list(data.test_dataloader())
    for loader, rows in ((judged, [3, 9, 80]), (test, data.split.test)):
        np.testing.assert_array_equal(torch.cat([batch.cells for batch in loader]), rows)
        assert all(batch.kept is None and batch.seen is None for batch in loader)
    assert judged[0].fold.tolist() == [3, 4, 0] and (test[0].fold == -1).all()
    assert (test[0].bags.states is not None) == known
    for batch in data.train_dataloader():
        np.testing.assert_array_equal(batch.bags.states, states[batch.cells])
        assert batch.kept is not None and batch.seen is not None


SCRIPT = """
import multiprocessing, sys
multiprocessing.set_start_method(sys.argv[1])
from grn.cells.load import load_cells
from grn.cells.loading.module import CellsDataModule
from grn.config.schema import DataConfig
print("script")
simulated = {"cells": 80, "genes": 16, "regulators": 4}
cells, split = load_cells(DataConfig(path="simulated:", simulated=simulated))
batches = []
for number in (0, 1):
    data = CellsDataModule(cells, split, batch_size=8, seed=0, num_workers=number)
    batches.append(list(data.train_dataloader()))
assert len(batches[0]) == len(batches[1]) > 3
for one, other in zip(*batches, strict=True):
    assert (one.bags.multiplicity == other.bags.multiplicity).all()
print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_main_guard_runs_once_and_gets_the_same_batches(tmp_path, method):
    """As on macOS, and on Linux from Python 3.14."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = [sys.executable, str(tmp_path / "script.py"), method]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=250)
    assert done.stdout.split() == ["script", "equal"], done.stderr


def test_the_main_module_comes_back():
    main = sys.modules["__main__"]
    with pytest.raises(RuntimeError), without_main_module():
        assert sys.modules["__main__"] is not main
        raise RuntimeError
    assert sys.modules["__main__"] is main
