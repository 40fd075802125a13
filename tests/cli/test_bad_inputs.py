"""Likely mistakes on the command line: one sentence that names the cause, exit code 2, and nothing
is left behind.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

from grn.cli.main import main

COUNTS = np.random.default_rng(0).poisson(4.0, (12, 6)).astype(np.float32)
GENES = [f"g{place}" for place in range(6)]
EDGES = "source,target,weight\n"
TABLE = "".join(
    ",".join(map(str, row)) + "\n"
    for row in [["cell", *GENES], *([f"c{i}", *row] for i, row in enumerate(COUNTS))]
)


def cells(**change) -> anndata.AnnData:
    parts = {
        "X": COUNTS,
        "obs": pd.DataFrame({"condition": ["a", "b"] * 6}, index=[f"c{i}" for i in range(12)]),
    }
    return anndata.AnnData(**{**parts, "var": pd.DataFrame(index=GENES), **change})


FILES = {
    "cells.h5ad": lambda path: cells().write_h5ad(path),
    "scaled.h5ad": lambda path: cells(X=COUNTS - COUNTS.mean(0)).write_h5ad(path),
    "missing.h5ad": lambda path: cells(X=np.where(COUNTS > 3, np.nan, COUNTS)).write_h5ad(path),
    "none.h5ad": lambda path: cells()[:0].copy().write_h5ad(path),
    "turned.h5ad": lambda path: cells().T.copy().write_h5ad(path),
    "table.h5ad": lambda path: path.write_text(TABLE),
    "text.csv": lambda path: path.write_text(TABLE),
    "dates.csv": lambda path: path.write_text(TABLE.replace("g0,g1", "1-Mar,1-Mar")),
    "flat.yaml": lambda path: path.write_text("path: x.h5ad\n"),
    "mine.yaml": lambda path: path.write_text("data:\n  path: cells.h5ad\n"),
    "other.csv": lambda path: path.write_text(f"{EDGES}GATA1,KLF1,1\n"),
    "zero.csv": lambda path: path.write_text(f"{EDGES}R1,G1,0\n"),
    "upper.txt": lambda path: path.write_text("G0\nG1\n"),
}

TEXT = "--set data.orientation=cells_by_genes"
SENTENCES = {
    # The command line itself
    "train": "No cells are given",
    "trian": "trian",
    "cells.h5ad --label x": "cells.h5ad",
    "train cells.h5ad --confg pbmc.yaml": "--config",
    "train mine.yaml --config pbmc.yaml": "pbmc.yaml",
    "train cells.h5ad --resume run": "--resume",
    "train cells.h5ad --label a --set data.label_key=b": "--label",
    "train cells.h5ad --set trainer.max_steps": "FIELD=VALUE",
    "train cells.h5ad --set trainer.max_step=5": "did you mean trainer.max_steps?",
    "train cells.h5ad --set trainer.max_steps=many": "trainer.max_steps must be",
    "train pbmc3.yaml": "did you mean pbmc3k.yaml?",
    "train flat.yaml": "did you mean data.path?",
    "init cells.h5ad --output c.txt": "--output is c.txt",
    "perturb RUN --towards x": "--towards",
    "perturb RUN --knock-out x --where cell_type": "--where",
    "export run --output x --top-k 0": "--top-k",
    "export RUN --output out.csv --format csv --cell-type typ": "did you mean 'type",
    "export RUN --output out.csv --format csv --max-q-value 0": "passes --max-q-value",
    "export RUN --output out.csv --format gmt": "--output",
    "export RUN --output out.csv --format loom": "the formats are parquet, csv",
    "export RUN --output out.csv": "--format",
    # Cells
    "train nowhere.h5ad": "nowhere.h5ad does not exist",
    "train table.h5ad": "table.h5ad",
    "train text.csv": "orientation",
    f"train dates.csv {TEXT}": "dates",
    "train none.h5ad": "no cells",
    "train scaled.h5ad": "counts",
    "init missing.h5ad": "not finite",
    "train RUN/network.h5ad": "network",
    "predict turned.h5ad RUN --output y.h5ad": "genes",
    # Columns, genes and lists
    "train cells.h5ad --label nothing": "column of obs",
    "train cells.h5ad --regulators x,y": "'x'",
    "train cells.h5ad --regulators upper.txt": "'G0'",
    "train cells.h5ad --regulators human_tf": "human_tfs",
    "train cells.h5ad --set data.genes=most": "data.genes",
    "perturb RUN --knock-out NOTHING": "NOTHING",
    "compare RUN --by cell_typ": "cell_typ",
    # Runs and networks
    "train --resume mine": "mine",
    "report cells.h5ad": "cells.h5ad",
    "evaluate other.csv RUN/truth.csv": "same kind of names",
    "evaluate zero.csv RUN/truth.csv": "zero.csv",
    "evaluate nowhere.csv RUN/truth.csv": "nowhere.csv does not exist",
    "evaluate RUN cells.h5ad": "cells.h5ad",
    "evaluate RUN RUN/truth.csv --cell-type c": "cell type 'c'",
    "evaluate RUN/truth.csv RUN/truth.csv": "truth.csv",
    "evaluate RUN RUN/truth.csv --regulators al": "al",
    "evaluate RUN RUN/truth.csv --data pbm.yaml": "pbm.yaml",
    "evaluate other.csv RUN/truth.csv --output other.csv": "other.csv",
}


def assert_refused(arguments, sentence, capfd):
    before = sorted(Path.cwd().rglob("*"))
    assert main(arguments) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1 and sentence in printed
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize("command", SENTENCES)
def test_a_mistake_is_one_sentence_that_names_the_cause(
    command, tiny_run, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    for name, write in FILES.items():
        if name in re.split(r"[ =/]", command):
            write(tmp_path / name)
    assert_refused(
        [part.replace("RUN", str(tiny_run)) for part in shlex.split(command)],
        SENTENCES[command],
        capfd,
    )


def unfinished(run) -> None:
    (run / "edges.parquet").unlink()
    shutil.rmtree(run / "model")


def other_cells(run) -> None:
    config = (run / "config.yaml").read_text()
    cells().write_h5ad(run / "cells.h5ad")
    changed = re.sub(r"  path: .*", f"  path: {run / 'cells.h5ad'}", config, count=1)
    (run / "config.yaml").write_text(re.sub(r"label_key: .*", "label_key: cell_type", changed))


OF_RUNS = {
    ("predict cells.h5ad RUN --output y.h5ad", unfinished): "cut off",
    ("perturb RUN --knock-out R1", other_cells): "cell_type",
}


@pytest.mark.parametrize(("command", "change"), OF_RUNS)
def test_what_is_wrong_with_a_run_is_told_apart_from_wrong_settings(
    command, change, tiny_run, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run, "run")
    change(tmp_path / "run")
    for name in ("cells.h5ad", "other.csv"):
        FILES[name](tmp_path / name)
    assert_refused(shlex.split(command.replace("RUN", "run")), OF_RUNS[command, change], capfd)


def test_a_tilde_is_the_home_of_the_user(tmp_path, monkeypatch, capfd):
    """After an equals sign, too, where shells leave it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for command in (
        "train ~/none.h5ad",
        "init ~/none.h5ad --output=~/mine.yaml",
        "train --set data.path=~/none.h5ad",
    ):
        command = command.replace("train --set", "train pbmc.yaml --set")
        assert main(shlex.split(command)) == 2
        assert f"{tmp_path / 'none.h5ad'} does not exist" in " ".join(
            capfd.readouterr().err.split()
        )
