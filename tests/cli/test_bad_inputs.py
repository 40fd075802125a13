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

COUNTS = np.random.default_rng(0).poisson(4.0, (12, 6)).astype(np.float32)
GENES = [f"g{place}" for place in range(6)]
TABLE = pd.DataFrame(COUNTS, columns=GENES).rename(index="c{}".format).to_csv()


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
    "other.csv": lambda path: path.write_text("source,target,weight\nGATA1,KLF1,1\n"),
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
    "train pbmc3.yaml": "did you mean pbmc3k.yaml?",
    "train flat.yaml": "did you mean data.path?",
    "export RUN --output out.csv --format csv --cell-type typ": "did you mean 'type",
    "export RUN --output out.csv --format csv --max-q-value 0": "passes --max-q-value",
    "export RUN --output out.csv --format loom": "the formats are parquet, csv",
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
    "perturb RUN --knock-out NOTHING": "NOTHING",
    "compare RUN --by cell_typ": "cell_typ",
    # Runs and networks
    "train --resume mine": "mine",
    "predict cells.h5ad UNFINISHED --output y.h5ad": "cut off",
    "report cells.h5ad": "cells.h5ad",
    "evaluate other.csv RUN/truth.csv": "same kind of names",
    "evaluate RUN cells.h5ad": "cells.h5ad",
    "evaluate RUN/truth.csv RUN/truth.csv": "truth.csv",
}


@pytest.fixture
def unfinished(tiny_run, tmp_path) -> Path:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (run / "edges.parquet").unlink()
    shutil.rmtree(run / "model")
    return run


@pytest.mark.parametrize("line", SENTENCES)
def test_a_mistake_is_one_sentence_that_names_the_cause(line, command, tiny_run, unfinished):
    for name, write in FILES.items():
        if name in re.split(r"[ =/]", line):
            write(Path(name))
    line_of_run = line.replace("UNFINISHED", str(unfinished)).replace("RUN", str(tiny_run))
    before = sorted(Path.cwd().rglob("*"))
    code, _, error = command(*shlex.split(line_of_run))
    assert code == 2 and error.startswith("error: ") and error.count("\n") == 1
    assert SENTENCES[line] in error and sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize(
    "line",
    [
        "train ~/none.h5ad",
        "init ~/none.h5ad --output=~/mine.yaml",
        "train pbmc.yaml --set data.path=~/none.h5ad",
    ],
)
def test_a_tilde_is_the_home_of_the_user(line, command, tmp_path, monkeypatch):
    """After an equals sign, too, where shells leave it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    code, _, error = command(*shlex.split(line))
    assert code == 2 and f"{tmp_path / 'none.h5ad'} does not exist" in error
