"""Tables for spreadsheets:
names that would be run as formulas are texts, and numbers are numbers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from grn.runtime.tables import spreadsheet_safe


@pytest.mark.parametrize("kind", [object, "string", "category"])
def test_names_that_begin_like_formulas_get_an_apostrophe_and_numbers_stay(kind):
    names = ["=HYPERLINK(1)", "+A", "-B", "@C", "HLA-A", "A=B"]
    frame = pd.DataFrame(
        {"source": names, "weight": [-1.0, 2, 3, 4, 5, np.nan], "rank": range(-3, 3)}
    )
    before = frame.astype({"source": kind})
    found = spreadsheet_safe(before)
    assert found["source"].tolist() == ["'=HYPERLINK(1)", "'+A", "'-B", "'@C", "HLA-A", "A=B"]
    pd.testing.assert_frame_equal(found[["weight", "rank"]], frame[["weight", "rank"]])
    assert before["source"].tolist() == names, "the caller's table stays as it is"


def test_rows_and_columns_that_are_called_after_types_are_safe_too():
    counts = pd.DataFrame([[1, 2], [3, 4]], index=["=a", "b"], columns=["=a", "b"]).rename_axis(
        "given"
    )
    found = spreadsheet_safe(counts)
    assert list(found.index) == list(found.columns) == ["'=a", "b"] and found.index.name == "given"
    np.testing.assert_array_equal(found, counts)
