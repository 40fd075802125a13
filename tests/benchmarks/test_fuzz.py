"""A short version of benchmarks/fuzz.py: damaged files are refused in a sentence, or say what they said before."""

from __future__ import annotations

import random

import pandas as pd
import pytest
from fuzz import KINDS, damaged, fuzz, outcome, wrong

from grn.errors import DataError


def test_no_damaged_file_ends_in_a_fault_and_no_other_model_is_accepted(tmp_path):
    found = fuzz(tmp_path, 6 * len(KINDS), first=100_000)
    bad = wrong(found)
    assert bad.empty, bad.to_string()
    assert len(found) == 6 * len(KINDS) and (found["outcome"] == "refused").mean() > 0.3


def test_most_changes_change_something():
    draw = random.Random(0)
    content = bytes(range(10, 200)) * 3
    assert sum(damaged(content, draw) == content for _ in range(200)) < 40


def refuse() -> str:
    raise DataError("What was found; what to do.")


def fail() -> str:
    raise KeyError("x")


def crash() -> str:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


@pytest.mark.parametrize(
    ("action", "expected"),
    [(lambda: "a", "same"), (lambda: "b", "other"), (refuse, "refused"), (fail, "fault"), (crash, "crash")],
)
def test_outcomes_are_told_apart(action, expected):
    assert outcome(action, "a")[0] == expected


def test_other_cells_may_be_read_and_other_models_may_not():
    rows = [("text", 0, "other", ""), ("model", 1, "other", ""), ("text", 2, "hang", ""), ("model", 3, "same", "")]
    assert wrong(pd.DataFrame(rows, columns=["kind", "number", "outcome", "sentence"]))["number"].tolist() == [1, 2]
