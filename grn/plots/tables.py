"""The tables that pictures draw: their columns, in one form."""

from __future__ import annotations

import numpy as np
import pandas as pd

from grn.errors import DataError


def columns_of(
    table: pd.DataFrame,
    wanted: str,
    *,
    texts: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
    gaps: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> pd.DataFrame:
    """`table` with texts as str, numbers as float64 and rows counted from 0. Raises DataError.

    wanted: what the picture draws, in messages.   texts, numbers, gaps: columns that it needs.   optional: numbers that
    it may have. In gaps and optional, values may be missing.
    """
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"This picture draws {wanted}, and was given a {type(table).__name__}; give a table.")
    for column in (*texts, *numbers, *gaps):
        if column not in table:
            raise DataError(f"This picture draws {wanted}, and the table has no column {column!r}; give one that has.")
    found = table.reset_index(drop=True)
    for column in texts:
        found[column] = found[column].astype(str).astype(object)
    for column in (*numbers, *gaps, *(name for name in optional if name in table)):
        found[column] = pd.to_numeric(found[column]).astype(np.float64)
        if column in numbers and not np.isfinite(found[column]).all():
            row = int(np.isfinite(found[column]).to_numpy().argmin())
            raise DataError(f"The table, row {row + 1}: {column} is {found[column][row]}; correct or remove the row.")
    return found
