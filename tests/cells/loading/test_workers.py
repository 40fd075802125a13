"""Workers, which are processes, and scripts without `if __name__ == "__main__"`."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys

import pytest

from grn.cells.loading.module import without_main_module

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
        assert sys.modules["__main__"] is not main and not hasattr(
            sys.modules["__main__"], "__file__"
        )
        raise RuntimeError
    assert sys.modules["__main__"] is main
