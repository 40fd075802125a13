"""Tables for spreadsheets:
names that would be run as formulas are texts, and numbers are numbers.
"""

from __future__ import annotations

import pandas as pd
import pytest

from grn.runtime.tables import spreadsheet_safe


@pytest.mark.parametrize("kind", [object, "string", "category"])
def test_names_that_begin_like_formulas_get_an_apostrophe_and_numbers_stay(kind):
    names = ["=HYPERLINK(1)", "+A", "-B", "@C", "HLA-A", "A=B"]
    before = pd.DataFrame({"source": pd.Series(names, dtype=kind), "weight": range(-3, 3)})
    found = spreadsheet_safe(before)
    assert found["source"].tolist() == ["'=HYPERLINK(1)", "'+A", "'-B", "'@C", "HLA-A", "A=B"]
    pd.testing.assert_series_equal(found["weight"], before["weight"])
    assert before["source"].tolist() == names, "the caller's table stays as it is"


def test_rows_and_columns_that_are_called_after_types_are_safe_too():
    names = pd.Index(["=a", "b"], name="given")
    found = spreadsheet_safe(pd.DataFrame([[1, 2], [3, 4]], names, names))
    assert list(found.index) == list(found.columns) == ["'=a", "b"] and found.index.name == "given"
    assert found.to_numpy().tolist() == [[1, 2], [3, 4]]
