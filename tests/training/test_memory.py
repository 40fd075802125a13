"""Memory: neither the fit nor the errors on test cells hold a dense table of the cells, and the estimate is near."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grn.cells.size import Size
from grn.config.schema import Config
from grn.training import memory_estimate
from grn.training.memory_estimate import memory_wanted, sentence

CELLS, GENES = 4000, 2500
TABLE = CELLS * GENES * 8  # bytes of a dense table of float64: 80 MB
SCRIPT = """
import json, re
from pathlib import Path
import numpy as np, torch
from scipy import sparse
from grn.config.schema import Config
from grn.cells.cells import load_cells
from grn.cells.preprocessing.scale import mean_and_sd
from grn.cells.size import size_of_source
from grn.process_memory import in_use
from grn.messages import silent
from grn.regulation.fit import fit_regulation
from grn.regulation.states import states_of
from grn.training.held_out import held_out_errors
from grn.training.memory_estimate import memory_wanted
from anndata import AnnData

def peak():  # ru_maxrss would begin at what the process that starts this one holds
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def run(count, genes, density):
    generator = np.random.default_rng(0)
    counts = sparse.random(count, genes, density, "csr", np.float32, generator, lambda n: 1 + generator.poisson(1.0, n))
    adata = AnnData(counts)
    adata.obs["type"] = np.array(["a", "b"])[np.arange(count) % 2]
    before, expected = in_use(), memory_wanted(config, size_of_source(config.data, adata))
    cells, split = load_cells(config.data, adata=adata)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    states = states_of(cells, 0)
    fitted = fit_regulation(config, cells, states, split.train, mean=mean, sd=sd, say=silent)
    after_fit = peak()
    held_out_errors(fitted.regulation, states, cells, split, mean, sd)
    return [before, expected, after_fit, peak()]

config = Config.model_validate(dict(
    data=dict(path="memory:", genes="all", label_key="type", regulators=list(map(str, range(10)))),
    regulation=dict(members=2, steps=2, width=8, penalties=[30, 100]),
    trainer=dict(accelerator="cpu", batch_size=1),  # the transformer is not trained here
))
run(100, 20, 0.5)  # what is imported late
print(json.dumps(run({cells}, {genes}, 0.03)))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read where Linux has them")
def test_neither_the_fit_nor_ridge_holds_a_dense_table_of_the_cells():
    """Before, the targets were held several times over, in float64."""
    script = SCRIPT.format(cells=CELLS, genes=GENES)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    before, expected, after_fit, at_last = json.loads(done.stdout)
    assert at_last - before < 3.5 * TABLE  # 2.4 to 2.8; one dense table more would be seen
    assert at_last - after_fit < 0.3 * TABLE
    assert 0.5 < (expected - before) / (at_last - before) < 4


def config_of(*, batch_size: int = 1, **changes) -> Config:
    return Config.model_validate({"data": {"path": "cells.h5ad", **changes}, "trainer": {"batch_size": batch_size}})


def test_the_estimate_grows_with_what_takes_memory(monkeypatch):
    monkeypatch.setattr(memory_estimate, "in_use", lambda: 5e8)  # whatever the tests before this one left in memory
    few = Size(10_000, 4000, 1_000_000)
    listed = ["a"] * 100
    base = memory_wanted(config_of(regulators=listed), few)
    assert memory_wanted(config_of(regulators=listed), Size(10_000, 4000, 50_000_000)) > 1.5 * base
    assert memory_wanted(config_of(regulators=listed), Size(10_000, 4000, 1_000_000, labels=20)) > 1.2 * base
    assert memory_wanted(config_of(regulators=listed), Size(10_000, 4000, 1_000_000, whole=10**10)) > 1e10
    assert memory_wanted(config_of(regulators="all", genes="all"), few) > 2 * base
    trained = memory_wanted(config_of(regulators=listed, batch_size=64), few)
    assert trained > 2 * base
    assert memory_wanted(config_of(regulators=listed, batch_size=64, genes=4000), few) > 1.5 * trained
    packed = memory_wanted(config_of(regulators=listed, batch_size=64, bags="packed"), few)
    beyond = memory_wanted(config_of(regulators=listed, batch_size=10**9), few)
    assert beyond == memory_wanted(config_of(regulators=listed, batch_size=few.cells), few)
    assert packed < 0.5 * trained  # a cell has 50 of the 2000 genes


def test_the_sentence_says_what_to_do_where_the_machine_has_less(monkeypatch):
    config, size = config_of(regulators=["a", "b"]), Size(700, 300, 12_345)
    assert sentence(config, size).startswith("700 cells x 300 genes with 12345 values: the run takes about ")
    assert "This machine has" not in sentence(config, size)
    monkeypatch.setattr(memory_estimate, "physical_memory", lambda: 1e8)
    assert "This machine has 100 MB: choose fewer genes (data.genes)" in sentence(config, size)
    monkeypatch.setattr(memory_estimate, "physical_memory", lambda: None)
    assert sentence(config, size).endswith("of memory.")


@pytest.mark.parametrize("regulators", ["all", "no/such/file.txt"])
def test_regulators_that_cannot_be_counted_are_all_genes(regulators):
    """Whatever is wrong with a file is said when the cells are read."""
    size = Size(1000, 500, 10_000)
    expected = memory_wanted(config_of(regulators=[str(gene) for gene in np.arange(500)]), size)
    assert memory_wanted(config_of(regulators=regulators), size) == pytest.approx(expected, rel=0.1)
