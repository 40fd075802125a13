"""Rows of earlier runs stay unchanged; rows of equal keys are replaced."""

from __future__ import annotations

import shutil

import networks
import numpy as np
import pandas as pd
import pytest
from peers import NAMES
from results_file import merged, ordered, write
from sets import SETS

KEYS = ["set", "method"]


def table(*rows: tuple[str, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*KEYS, "auprc"])


def test_new_rows_join_the_old_and_replace_those_of_the_same_set_and_method(tmp_path):
    path = tmp_path / "results" / "networks.csv"
    write(path, merged(path, table(("a", "ridge", 0.1), ("a", "grn", np.nan), ("b", "ridge", 0.3)), KEYS))
    write(path, merged(path, table(("b", "genie3", 0.4), ("a", "ridge", 0.2)), KEYS))
    found = pd.read_csv(path)
    expected = table(("a", "grn", np.nan), ("b", "ridge", 0.3), ("b", "genie3", 0.4), ("a", "ridge", 0.2))
    pd.testing.assert_frame_equal(found, expected)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_no_such_table_is_left_alone(tmp_path):
    path = tmp_path / "networks.csv"
    path.write_text("set,something\na,1\n")
    with pytest.raises(SystemExit, match="no column 'method'"):
        merged(path, table(("a", "ridge", 0.2)), KEYS)
    assert path.read_text() == "set,something\na,1\n"


def test_rows_come_in_the_order_that_is_asked_for():
    rows = ordered(
        table(("b", "x", 1), ("a", "y", 2), ("a", "x", 3), ("new", "x", 4)), set=["a", "b"], method=["x", "y"]
    )
    assert rows["auprc"].tolist() == [3, 2, 1, 4]


def test_the_published_table_comes_back_as_it_is(tmp_path):
    published = networks.HERE / "results" / "networks.csv"
    path = tmp_path / "networks.csv"
    shutil.copy(published, path)
    before = pd.read_csv(path)
    table = merged(path, before[before["method"] == "ridge"], KEYS)
    write(path, ordered(table, set=list(SETS), method=[networks.OURS, *NAMES]))
    assert path.read_text() == published.read_text()
