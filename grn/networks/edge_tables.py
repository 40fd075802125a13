"""Reads tables of edges, text or parquet, with gene names as plain strings: genes may be called "NA" or "nan"."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from grn.errors import DataError, one_line
from grn.io.tables import decoded, does_not_exist, number_advice, unpacked

# Columns of the formats that are read.
READ = {"source", "target", "weight", "tf", "gene1", "gene2", "importance", "edgeweight", "regulatorygene"}
READ |= {"targetgene", "mor", "sign", "regulation", "type", "cell_type"}

# The names of the columns that hold regulator, target and, in most formats, a value.
Columns = tuple[str, ...]


def read_table(path: Path) -> pd.DataFrame:
    """A table with its header. Text files (csv, tsv, also .gz) give strings; the first line shows the separator. Of
    a .cyjs file, its edges.

    Where the first line is itself an edge, as in files of arboreto and TRRUST, the columns are named 0, 1, 2, ..., as
    they are under the header 0,1,2,... that pandas writes for a table without names. Rows may begin with R's row names,
    or end with a separator. Columns without a name are left out, and so is the second of two columns with one name,
    unless they differ and are among READ. Spaces around separators are ignored. Raises DataError for files that are
    missing, empty, damaged or not a table.
    """
    check_exists(path)
    name = path.name.lower()
    try:
        if name.endswith(".cyjs"):  # of Cytoscape
            return pd.DataFrame([edge["data"] for edge in json.loads(path.read_text("utf-8"))["elements"]["edges"]])
        return pd.read_parquet(path) if name.endswith((".parquet", ".pq")) else _read_text(path)
    except PermissionError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise DataError(
            f"{path} cannot be read as a table of edges ({one_line(problem)})", advice="give a csv, tsv or parquet file"
        ) from problem


def check_exists(path: Path) -> None:
    if not path.exists():
        raise DataError(does_not_exist(path, "give a path that exists."))


def find_columns(table: pd.DataFrame, accepted: Iterable[Columns]) -> Columns | None:
    """The first set of columns that the table has, in the table's own spelling; upper and lower case are the same."""
    own = {str(column).casefold(): str(column) for column in reversed(list(table.columns))}
    for names in accepted:
        if all(name.casefold() in own for name in names):
            return tuple(own[name.casefold()] for name in names)
    return None


def unknown_columns(where: Path | str, table: pd.DataFrame, accepted: Iterable[Columns]) -> DataError:
    """The error for a table without one of the sets of columns that are accepted."""
    sets = " or ".join(f"({', '.join(names)})" for names in accepted)
    listed = ", ".join(map(str, table.columns[:8])) + (", ..." if len(table.columns) > 8 else "")
    return DataError(
        f"{where} has the columns {listed}", advice=f"it must be a list of edges with a header: name the columns {sets}"
    )


def names(where: Path | str, column: pd.Series) -> np.ndarray:
    """Gene names as plain strings, without the ' before = + - @ that keeps a spreadsheet from running them.

    Raises DataError for an empty name.
    """
    return _labels(where, column).str.replace(r"^'(?=[=+\-@])", "", regex=True).to_numpy(dtype=object)


def cell_types(where: Path | str, table: pd.DataFrame) -> np.ndarray | None:
    """The labels of the rows in the column cell_type; None without one. Raises DataError for an empty label."""
    columns = find_columns(table, [("cell_type",)])
    return None if columns is None else _labels(where, table[columns[0]]).to_numpy(dtype=object)


def _labels(where: Path | str, column: pd.Series) -> pd.Series:
    if (missing := _is_empty(column)).any():
        row = int(missing.argmax()) + 1
        raise DataError(f"{where}, row {row}: {column.name} is empty", advice="name it, or remove the row")
    return column.astype(str)


def _is_empty(column: pd.Series) -> np.ndarray:
    return column.isna().to_numpy() | (column.astype(str).str.strip() == "").to_numpy()


def numbers(
    where: Path | str, column: pd.Series, least: float = -np.inf, most: float = np.inf, *, unknown: bool = False
) -> np.ndarray:
    """A column as finite float64 from `least` to `most`; unknown: an empty cell is NaN.

    Raises DataError with the first other value.
    """
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~(np.isfinite(values) & (values >= least) & (values <= most))
    if unknown:
        bad[bad] = ~_is_empty(column[bad])
    if bad.any():
        first = int(bad.argmax())
        found = str(column.iloc[first])
        others = f" (and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
        between = f" from {least:g} to {most:g}" if np.isfinite(most) else ""
        raise DataError(
            f"{where}, row {first + 1}{others}: {column.name} is {found!r}, which is not a finite number{between}",
            advice=number_advice(found) or "correct or remove the row",
        )
    return values


def _read_text(path: Path) -> pd.DataFrame:
    with unpacked(path) as file:
        text = decoded(file.read())  # all of it: a damaged .gz may fail only at the end
    if "\0" in text:  # pandas would cut a name off there
        raise ValueError("null characters")
    line = next((line for line in text.splitlines() if line.strip()), "")
    separator = max("\t,;", key=line.count)
    fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    first = [field.strip() for field in fields]
    rows = pd.read_csv(
        io.StringIO(text),
        sep=separator,
        header=None,
        names=range(len(first) + 1),  # one more than in the first line: pandas would silently shift longer rows
        dtype=str,
        keep_default_na=False,
        na_filter=False,
        skipinitialspace=True,
    )
    bare = _is_edge(first)
    header = [str(place) for place in range(len(first))] if bare else first
    rows = rows if bare else rows.iloc[1:]
    longer = rows[len(first)] != ""
    if not longer.any():
        header = [*header, ""]
    elif longer.all() and not bare and _are_row_names(rows[0], rows[1]):
        header = ["", *header]
    else:
        row = int(longer.to_numpy().argmax()) + 1
        raise DataError(f"{path}, row {row}, has more fields than the header", advice="correct it")
    rows = rows.apply(lambda column: column.str.strip())
    kept: dict[str, int] = {}
    for place, name in enumerate(header):
        if name and name not in kept:
            kept[name] = place
        elif name.casefold() in READ and (rows[place] != rows[kept[name]]).any():
            raise DataError(f"{path} has two columns called {name!r}, and they differ", advice="keep one of them")
    return rows[list(kept.values())].set_axis(list(kept), axis=1).reset_index(drop=True)


def _is_edge(row: list[str]) -> bool:
    """Whether a line is an edge (regulator, target and a number or a word of TRRUST) and not a header."""
    counting = [str(number) for number in range(len(row))]  # pandas writes 0, 1, 2, ... for columns without names
    if row == counting or ["", *counting[:-1]] == row:
        return False
    return len(row) >= 3 and (_is_number(row[2]) or row[2] in {"Activation", "Repression", "Unknown"})


def _are_row_names(first: pd.Series, second: pd.Series) -> bool:
    """Whether the first field of rows longer than the header names them, as R's write.table does.

    Row names are all different, and by default R numbers the rows. But all regulators of a small table may differ, too:
    different texts are taken for row names only where the next field repeats, as regulators do.
    """
    return first.is_unique and bool(first.str.isdecimal().all() or not second.is_unique)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
