"""The page for R: arrow turns the tables into types of R itself; where R and arrow are installed,
the page runs.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PAGE = Path(__file__).parents[1] / "docs/outputs.md"
CODE = re.compile(r"```r\n(.*?)```", re.DOTALL)
R = shutil.which("Rscript")


def in_r(kind: pa.DataType) -> str:
    """What arrow's read_parquet makes of a column; other types, 64-bit integers among them, need
    packages or casts.
    """
    if pa.types.is_dictionary(kind):
        return "factor" if is_text(kind.value_type) else "?"
    number = (
        "numeric" if pa.types.is_floating(kind) else "integer" if pa.types.is_int32(kind) else "?"
    )
    return "character" if is_text(kind) else number


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)  # the second by pandas 3


def columns(path: Path) -> dict[str, str]:
    return {field.name: in_r(field.type) for field in pq.read_schema(path)}


def test_every_column_is_text_numbers_or_a_factor(tiny_run):
    numbers = dict.fromkeys(
        ["weight", "sd", "effect", "effect_se", "q_value", "confidence"], "numeric"
    )
    numbers |= dict.fromkeys(["between", "indirect"], "numeric")
    found = columns(tiny_run / "edges.parquet")
    assert found == {
        "source": "character",
        "target": "character",
        "programme": "character",
    } | numbers | {"cells": "integer"}
    assert columns(tiny_run / "edges_by_type.parquet") == found | {"cell_type": "factor"}


def test_the_page_runs_in_r(tiny_run, tmp_path):
    if R is None:
        pytest.skip("R is not installed")
    if subprocess.run([R, "-e", "library(arrow); library(dplyr)"], capture_output=True).returncode:
        pytest.skip("R has no arrow or no dplyr")
    (tmp_path / "runs").mkdir()
    shutil.copytree(tiny_run, tmp_path / "runs/first")
    (code,) = CODE.findall(PAGE.read_text("utf-8"))
    script = tmp_path / "page.R"
    script.write_text(
        f"{code}\nstopifnot(is.character(edges$source), is.numeric(edges$weight))\n", "utf-8"
    )
    done = subprocess.run(
        [R, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert not done.returncode, done.stderr
