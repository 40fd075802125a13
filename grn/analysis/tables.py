"""Text tables and parquet files as plain strings: genes may be called "NA" or "nan"."""

from __future__ import annotations

import csv
import difflib
import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from grn.errors import DataError, one_line

# Columns that hold a regulator, its target and a value, by the tool that names them so.
Columns = tuple[str, ...]


def read_table(path: Path) -> pd.DataFrame:
    """A table with its header; text files (csv, tsv, also .gz) as strings, the separator being read off the first line.

    A first line that is itself an edge, as arboreto and TRRUST write it, gives columns named 0, 1, 2, ..., and so does
    the header 0,1,2,... that pandas gives a table without names. Spaces after separators do not count. Raises DataError
    for files that are missing, empty or no table.
    """
    check_exists(path)
    if path.name.lower().endswith((".parquet", ".pq")):
        return _read_parquet(path)
    line = first_line(path)
    separator = max("\t,;", key=line.count)
    if separator not in line:
        raise DataError(
            f"{path} has one column, {line[:60]!r}, where regulator, target and more are expected; separate them by "
            "tabs or commas."
        )
    header = next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    bare = is_edge(header)
    try:
        table = pd.read_csv(
            path,
            sep=separator,
            header=None if bare else 0,
            dtype=str,
            keep_default_na=False,
            na_filter=False,
            skipinitialspace=True,
            encoding="utf-8-sig",
        )
    except (pd.errors.ParserError, UnicodeDecodeError) as problem:
        raise DataError(
            f"{path} cannot be read as a table ({one_line(problem)}); give every row as many columns as the first."
        ) from None
    if table.empty:
        raise DataError(f"{path} has a header and no rows; give a table with edges.")
    table.columns = [str(column).strip() for column in table.columns]
    return table


def check_exists(path: Path) -> None:
    if path.exists():
        return
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    hint = f"did you mean {path.parent / near[0]}?" if near else "give the path of a file that does."
    raise DataError(f"{path} does not exist; {hint}")


def first_line(path: Path) -> str:
    """The first line that holds something; raises DataError where there is none."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            for line in file:
                if line.strip():
                    return line.rstrip("\r\n")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError):
        raise DataError(f"{path} is not text; give a csv, tsv, parquet or h5ad file under its own ending.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; give a file.") from None
    raise DataError(f"{path} is empty; give a table with edges.")


def is_edge(row: Sequence[str]) -> bool:
    """Whether a line is regulator, target and a number or a word of TRRUST's, not a header."""
    if _is_counting(row) or (_is_counting(row[1:]) and not row[0]):
        return False
    return len(row) >= 3 and (_is_number(row[2]) or row[2] in {"Activation", "Repression", "Unknown"})


def _is_counting(row: Sequence[str]) -> bool:
    """Whether a line is 0, 1, 2, ...: what pandas writes for columns without names (after an empty cell: its index)."""
    return list(row) == [str(number) for number in range(len(row))]


def find_columns(table: pd.DataFrame, accepted: Iterable[Columns]) -> Columns | None:
    """The first of the sets that the table has, whatever their case, by the table's own names."""
    own = {str(column).casefold(): str(column) for column in reversed(list(table.columns))}
    for names in accepted:
        if all(name.casefold() in own for name in names):
            return tuple(own[name.casefold()] for name in names)
    return None


def unknown_columns(path: Path, table: pd.DataFrame, accepted: Iterable[Columns]) -> DataError:
    found = ", ".join(map(str, table.columns[:8])) + (", ..." if len(table.columns) > 8 else "")
    sets = " or ".join(f"({', '.join(names)})" for names in accepted)
    return DataError(f"{path} has the columns {found}; name them {sets}.")


def names(path: Path, column: pd.Series) -> np.ndarray:
    """Gene names as plain strings; raises DataError for one that is empty."""
    missing = column.isna().to_numpy() | (column.astype(str) == "").to_numpy()
    if missing.any():
        raise DataError(
            f"{path}, row {int(missing.argmax()) + 1}: {column.name} is empty; name the gene or remove the row."
        )
    return column.astype(str).to_numpy(dtype=object)


def numbers(path: Path, column: pd.Series) -> np.ndarray:
    """A column as finite float64; raises DataError with the first value that is none."""
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~np.isfinite(values)
    if bad.any():
        first = int(bad.argmax())
        others = f" (and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
        raise DataError(
            f"{path}, row {first + 1}{others}: {column.name} is {str(column.iloc[first])!r}, which is no finite "
            "number; correct or remove the row."
        )
    return values


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow

    try:
        table = pd.read_parquet(path)
    except (MemoryError, PermissionError):  # the machine's, not the file's: the boundary has sentences for them
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as problem:
        raise DataError(
            f"{path} cannot be read as parquet ({one_line(problem)}); it is damaged or another format: write it again."
        ) from None
    if table.empty:
        raise DataError(f"{path} has no rows; give a table with edges.")
    return table


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
