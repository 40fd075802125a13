"""Commands write what the functions of their names return, and never over a file."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.config.files import dump_config

REGULONS = pd.DataFrame(
    {"source": "A", "target": [f"G{number}" for number in range(1, 9)], "weight": 1.0}
)
OF_TYPE = {"cell_type": "type 2", "top_k": 1, "targets": ["G1", "G2"], "certain": False}
TABLES = {
    "activity cells.h5ad --regulons regulons.csv --by cell_type": lambda run: grn.activity(
        "cells.h5ad", REGULONS, by="cell_type"
    ),
    "compare RUN --by cell_type": lambda run: grn.compare(run, "cell_type").edges,
    "explain cells.h5ad RUN": lambda run: grn.explain("cells.h5ad", run),
    "export RUN --format csv --cell-type 'type 2' --top-k 1 --targets G1,G2 --all": lambda run: (
        grn.export(run, "other.csv", format="csv", **OF_TYPE)
    ),
    "network tiny.yaml --label cell_type --regulators R1,R2": lambda run: grn.network(
        "tiny.yaml", label="cell_type", regulators=["R1", "R2"]
    ),
    "perturb RUN --cell-type 'type 1' --towards 'type 2'": lambda run: grn.screen(
        run, "type 1", "type 2"
    ),
}


@pytest.mark.parametrize("line", TABLES)
def test_the_table_is_that_of_python_and_replaces_no_file(line, command, run, make_config):
    simulate(run.config.data.simulated).write_h5ad("cells.h5ad")
    REGULONS.to_csv("regulons.csv", index=False)
    Path("tiny.yaml").write_text(dump_config(make_config()))
    arguments = *shlex.split(line.replace("RUN", str(run.folder))), "--output", "found.csv"
    code, printed, error = command(*arguments)
    assert (code, error) == (0, "") and "found.csv" in printed
    found = pd.read_csv("found.csv", keep_default_na=False)  # no programme is an empty text
    pd.testing.assert_frame_equal(
        found, TABLES[line](run).reset_index(drop=True), rtol=1e-5, check_dtype=False
    )
    before = Path("found.csv").read_bytes()
    code, _, error = command(*arguments)
    assert code == 2 and error.count("\n") == 1 and Path("found.csv").read_bytes() == before


def test_a_perturbation_is_written_as_a_table_or_as_cells(command, run):
    call = "perturb", run.folder, "--knock-out", "R1", "--where", "cell_type=type 1"
    code, printed, _ = command(*call, "--output", "found.parquet")
    assert code == 0 and "No edge of R1 is certain in these cells" in printed
    assert command(*call, "--steps", 1, "--output", "cells.h5ad")[0] == 0
    table, cells = pd.read_parquet("found.parquet"), anndata.read_h5ad("cells.h5ad")
    assert table["gene"][0] == "R1" and table["effect"][1:].abs().is_monotonic_decreasing
    effect = table.set_index("gene").loc[cells.var_names, "effect"]
    np.testing.assert_allclose(effect, cells.var["grn_effect"], rtol=1e-4)
    assert cells.layers["grn_change"].shape == (40, 16)


def test_the_genes_of_a_cell_type_are_drawn(command, run):
    simulate(run.config.data.simulated).write_h5ad("cells.h5ad")
    call = "explain", "cells.h5ad", run.folder, "--output", "genes.png", "--cell-type"
    assert command(*call, "type 3")[0] == 2
    assert command(*call, "type 1")[0] == 0 and Path("genes.png").read_bytes()[1:4] == b"PNG"


def test_the_report_of_a_run_is_written_again(command, tiny_run):
    """With known regulons, which change nothing of the network."""
    run = shutil.copytree(tiny_run, Path("a run"))
    (run / "report.html").write_text("old")
    assert command("report", run / "model")[0] == 0
    assert "<title>a run</title>" in (run / "report.html").read_text("utf-8")
    REGULONS.to_csv("known.csv", index=False)
    kept = {path: path.read_bytes() for path in (run / "network.h5ad", run / "edges.parquet")}
    assert command("report", run, "--regulons", "known.csv")[0] == 0
    assert set(pd.read_csv(run / "activity.csv")["regulons"]) == {"known.csv"}
    assert "known.csv" in (run / "report.html").read_text("utf-8")
    assert {path: path.read_bytes() for path in kept} == kept
    for other in (Path("none"), run / "checkpoints", shutil.copytree(run / "model", "alone")):
        assert command("report", other)[0] == 2
