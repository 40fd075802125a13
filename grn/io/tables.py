"""Text files and tables that a user gives or that a run has written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def spreadsheet_safe(frame: pd.DataFrame) -> pd.DataFrame:
    """A table for a csv whose names no spreadsheet runs as formulas: an apostrophe stands before a first =, +, - or @.

    That is so for texts in columns, in the index and in the names of columns; numbers stay as they are.
    """

    def safe(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value

    found = frame.rename(columns=safe, index=safe)
    for place, kind in enumerate(found.dtypes):
        if kind.kind not in "biufcmM":
            found.isetitem(place, found.iloc[:, place].astype(object).map(safe))
    return found
