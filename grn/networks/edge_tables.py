"""Reads tables, text or parquet, with gene names as plain strings: genes may be called "NA" or "nan"."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd

from grn.errors import DataError, one_line
from grn.io.tables import does_not_exist, number_advice, unpacked

ONE_LEVEL = 'give each one name, as table.columns = ["_".join(map(str, names)) for names in table.columns]'

# Columns of the formats that are read: of two that differ, none can be chosen.
READ = {
    "source",
    "target",
    "weight",
    "tf",
    "gene1",
    "gene2",
    "importance",
    "edgeweight",
    "regulatorygene",
    "targetgene",
}
READ |= {"mor", "sign", "regulation", "type", "cell_type"}

# Endings of networks that are no tables, and what they hold; grn export writes most of them.
NO_TABLES = {
    ".gmt": "gene sets",
    **dict.fromkeys((".graphml", ".gml", ".cyjs", ".cx", ".cx2", ".xgmml", ".sif", ".dot"), "a graph"),
}

# The names of the columns that hold regulator, target and, in most formats, a value.
Columns = tuple[str, ...]


def read_table(path: Path) -> pd.DataFrame:
    """A table with its header. Text files (csv, tsv, also .gz) give strings; the first line shows the separator.

    Where the first line is itself an edge, as in files of arboreto and TRRUST, the columns are named 0, 1, 2, ..., as
    they are under the header 0,1,2,... that pandas writes for a table without names. Rows may begin with R's row names,
    or end with a separator. Columns without a name are left out, and so is the second of two columns with one name,
    unless they differ and are among READ. Spaces around separators are ignored. Raises DataError for files that are
    missing, empty, damaged or not a table.
    """
    check_exists(path)
    if what := NO_TABLES.get(path.suffix.lower()):
        raise DataError(
            f"{path} holds {what}, where a table of edges is expected; give one (grn export --format csv writes it)."
        )
    if path.name.lower().endswith((".parquet", ".pq")):
        return _read_parquet(path)
    content = _content(path)
    file = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig")
    try:
        return _read_text(path, file)
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not text in UTF-8; save it as UTF-8, or give a parquet or h5ad file its own ending."
        ) from None


def check_exists(path: Path) -> None:
    if not path.exists():
        raise DataError(does_not_exist(path, "give a path that exists."))


def is_edge(row: Sequence[str]) -> bool:
    """Whether a line is an edge (regulator, target and a number or a word of TRRUST) and not a header."""
    if _is_counting(row) or (_is_counting(row[1:]) and not row[0]):
        return False
    return len(row) >= 3 and (_is_number(row[2]) or row[2] in {"Activation", "Repression", "Unknown"})


def _is_counting(row: Sequence[str]) -> bool:
    """Whether a line is 0, 1, 2, ..., which pandas writes for columns without names."""
    return list(row) == [str(number) for number in range(len(row))]


def refuse_twin_columns(where: Path | str, table: pd.DataFrame) -> None:
    """Raises DataError where a table from Python has two columns of one name; text files keep the first.

    Nor may its columns have several levels.
    """
    if table.columns.nlevels > 1:
        raise DataError(f"{where} has columns of {table.columns.nlevels} levels; {ONE_LEVEL}.")
    if (twice := table.columns.duplicated()).any():
        raise DataError(f"{where} has two columns called {str(table.columns[twice][0])!r}; keep one of them.")


def find_columns(table: pd.DataFrame, accepted: Iterable[Columns]) -> Columns | None:
    """The first set of columns that the table has, in the table's own spelling; upper and lower case are the same."""
    own = {str(column).casefold(): str(column) for column in reversed(list(table.columns))}
    for names in accepted:
        if all(name.casefold() in own for name in names):
            return tuple(own[name.casefold()] for name in names)
    return None


def unknown_columns(where: Path | str, table: pd.DataFrame, accepted: Iterable[Columns]) -> DataError:
    accepted = list(accepted)
    sets = " or ".join(f"({', '.join(names)})" for names in accepted)
    index = [str(name) for name in table.index.names if name is not None and str(name) not in table.columns]
    if index and find_columns(pd.DataFrame(columns=[*index, *table.columns]), accepted):
        return DataError(f"{where} has {' and '.join(index)} in its index; make columns of it: table.reset_index().")
    if problem := no_list_of_edges(table):
        return DataError(f"{where} {problem}, with the columns of one of these formats: {sets}.")
    found = f"the columns {_examples(table)}" if len(table.columns) else "no columns"
    text = isinstance(where, Path) and not where.name.lower().endswith((".parquet", ".pq"))
    above = ", in a line above the first edge" if text else ""
    return DataError(f"{where} has {found}; name them as one of these formats does{above}: {sets}.")


def _examples(table: pd.DataFrame) -> str:
    return ", ".join(map(str, table.columns[:8])) + (", ..." if len(table.columns) > 8 else "")


def no_list_of_edges(table: pd.DataFrame) -> str | None:
    """Why no names of columns are found: the first line is an edge, or the table is a matrix; and what to write.

    A table is a matrix where all but row names are numbers, and a name of a row is that of a column, or rows have no
    names. The first line is an edge where its regulator or target, or its sign, stands in other lines, too. None for
    others, and where a column is called as in a list of edges.
    """
    texts = table.iloc[:, :3].astype(str)
    first = [str(name) for name in texts.columns]
    of_numbers = texts.iloc[:, 1:].map(_is_number).to_numpy()
    if of_numbers.size and of_numbers.all() and set(map(str, table.columns[1:])) & set(texts.iloc[:, 0]):
        return f"is a matrix of numbers ({_examples(table)}), where a list of edges belongs; write a line for each edge"
    if len(table) and _is_counting([str(name) for name in table.columns]) and is_edge(list(table.iloc[0].astype(str))):
        edge = ", ".join(table.iloc[0].astype(str)[:8])  # see read_table: these columns have no names
        return f"has no header: its first line is an edge ({edge}); write a header above it"
    if READ & {name.casefold() for name in first}:
        return None
    if any(set(first[own]) & set(texts.iloc[:, own].to_numpy().ravel()) for own in (slice(2), slice(2, 3))):
        return f"has no header: its first line is an edge ({_examples(table)}); write a header above it"
    if len(table.columns) > 1 and texts.map(_is_number).to_numpy().all():
        return f"is a matrix of numbers ({_examples(table)}), where a list of edges belongs; write a line for each edge"
    return None


def names(where: Path | str, column: pd.Series) -> np.ndarray:
    """Gene names as plain strings. Raises DataError for an empty name."""
    missing = column.isna().to_numpy() | (column.astype(str) == "").to_numpy()
    if missing.any():
        raise DataError(
            f"{where}, row {int(missing.argmax()) + 1}: {column.name} is empty; name the gene, or remove the row."
        )
    if column.dtype.kind in "mMb":
        raise DataError(f"{where}: {column.name} holds dates or true and false; write the names of genes there.")
    nested = column.map(lambda name: isinstance(name, (list, dict, np.ndarray))).to_numpy(bool)
    if nested.any():
        raise DataError(f"{where}, row {int(nested.argmax()) + 1}: {column.name} holds a list; write one gene there.")
    other = column.map(lambda name: not isinstance(name, (str, Integral)) or isinstance(name, bool)).to_numpy(bool)
    if other.any():
        row = int(other.argmax())
        raise DataError(
            f"{where}, row {row + 1}: {column.name} is {str(column.iloc[row])!r}, of the type "
            f"{type(column.iloc[row]).__name__}; give names as texts."
        )
    return column.astype(str).to_numpy(dtype=object)


def cell_types(where: Path | str, table: pd.DataFrame) -> np.ndarray | None:
    """The labels of the rows in the column cell_type; None without one. Raises DataError for an empty label."""
    columns = find_columns(table, [("cell_type",)])
    if columns is None:
        return None
    column = table[columns[0]].astype(object)
    missing = column.isna().to_numpy() | (column.astype(str).str.strip() == "").to_numpy()
    if missing.any():
        raise DataError(
            f"{where}, row {int(missing.argmax()) + 1}: {columns[0]} is empty; name the cell type, or remove the row."
        )
    return column.astype(str).to_numpy(dtype=object)


def numbers(where: Path | str, column: pd.Series) -> np.ndarray:
    """A column as finite float64. Raises DataError with the first value that is not a finite number."""
    if what := other_than_numbers(column):
        raise DataError(f"{where} has {what} in the column {column.name!r}, where numbers belong; give it numbers.")
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~np.isfinite(values)
    if bad.any():
        first = int(bad.argmax())
        others = f" (and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
        raise DataError(
            f"{where}, row {first + 1}{others}: {column.name} is {str(column.iloc[first])!r}, which is not a "
            f"finite number; {number_advice(str(column.iloc[first])) or 'correct or remove the row'}."
        )
    return values


def shares(where: Path | str, column: pd.Series) -> np.ndarray:
    """A column as float64 from 0 to 1. Raises DataError with the first value that is none: other programs give columns
    of this name another meaning, as DoRothEA its confidences A to E.
    """
    if what := other_than_numbers(column):
        raise DataError(f"{where} has {what} in the column {column.name!r}, where numbers belong; give it numbers.")
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        first = int(bad.argmax())
        others = f" (and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
        raise DataError(
            f"{where}, row {first + 1}{others}: {column.name} is {str(column.iloc[first])!r}, which is not a number "
            "from 0 to 1; correct it, or leave the column out."
        )
    return values


def other_than_numbers(column: pd.Series) -> str:
    """What a column holds that pandas would take for numbers without a word: dates, true and false; "" for others."""
    whole = pd.api.types.infer_dtype(column, skipna=True)
    if whole.startswith("mixed") and column.map(lambda value: isinstance(value, (bool, np.bool_, complex))).any():
        return "true, false or complex values"
    return next((what for begin, what in NO_NUMBERS.items() if whole.startswith(begin)), "")


NO_NUMBERS = {
    "boolean": "true and false",
    "complex": "complex numbers",
    "date": "dates",
    "time": "times",
    "period": "times",
    "interval": "intervals",
}
"""How what pandas calls the kind of a column begins -> what it holds."""


def _content(path: Path) -> bytes:
    with unpacked(path) as file:
        return file.read()  # to the end: a damaged .gz may fail only there


def _first_line(path: Path, file: TextIO) -> tuple[str, list[str]]:
    """The separator and the fields of the first line that is not blank."""
    line = next((line.rstrip("\n") for line in file if line.strip()), None)
    if line is None:
        raise DataError(f"{path} is empty; give a table with edges.")
    separator = max("\t,;", key=line.count)
    if separator not in line:
        raise DataError(
            f"{path} has a single column, {line[:60]!r}, where at least regulator and target are expected; separate "
            "them by tabs or commas."
        )
    return separator, [field.strip() for field in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]


def _read_text(path: Path, file: TextIO) -> pd.DataFrame:
    separator, first = _first_line(path, file)
    file.seek(0)
    if "\0" in file.read():
        raise DataError(f"{path} holds null characters, which text has not; write it again.")
    file.seek(0)
    try:
        rows = pd.read_csv(
            file,
            sep=separator,
            header=None,
            names=range(len(first) + 1),  # one more than in the first line: pandas would silently shift longer rows
            dtype=str,
            keep_default_na=False,
            na_filter=False,
            skipinitialspace=True,
        )
    except pd.errors.ParserError:
        raise _no_table(path, file, separator, len(first)) from None
    bare = is_edge(first)
    header = [str(place) for place in range(len(first))] if bare else first
    rows = rows if bare else rows.iloc[1:]
    if rows.empty:
        raise DataError(f"{path} has a header but no rows; give a table with edges.")
    longer = rows[len(first)] != ""
    if not longer.any():
        header = [*header, ""]
    elif longer.all() and not bare and _are_row_names(rows[0], rows[1]):
        header = ["", *header]
    else:
        raise _no_table(path, file, separator, len(first))
    rows = rows.apply(lambda column: column.str.strip())
    earliest = {name: place for place, name in reversed(list(enumerate(header)))}
    for place, name in enumerate(header):
        if name.casefold() in READ and (rows[place] != rows[earliest[name]]).any():
            raise DataError(f"{path} has two columns called {name!r}, and they differ; keep one of them.")
    return pd.DataFrame({name: rows[place] for name, place in earliest.items() if name})[
        [name for place, name in enumerate(header) if name and earliest[name] == place]
    ].reset_index(drop=True)


def _are_row_names(first: pd.Series, second: pd.Series) -> bool:
    """Whether the first field of rows longer than the header names them, as R's write.table does.

    Row names are all different, and by default R numbers the rows. But all regulators of a small table may differ, too:
    different texts are taken for row names only where the next field repeats, as regulators do.
    """
    return first.is_unique and bool(first.str.isdecimal().all() or not second.is_unique)


def _no_table(path: Path, file: TextIO, separator: str, width: int) -> DataError:
    """The error for text that is not a table: names the first line with more than `width` fields, or an open quote."""
    file.seek(0)
    rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
    line = following = 1
    try:
        for row in rows:
            line, following = following, rows.line_num + 1
            if len(row) > width:
                return DataError(
                    f"{path} cannot be read as a table: line {line} has {len(row)} fields, but the first line has "
                    f"{width}; give every line the same number."
                )
    except csv.Error:  # the text after an open quote is longer than the limit of a field
        line = following
    return DataError(
        f"{path} cannot be read as a table: a quote is opened in line {line} and never closed; close it or remove it."
    )


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow

    try:
        table = pd.read_parquet(path)
    except (MemoryError, PermissionError):  # faults of the machine: see cli/exit_codes.py
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as problem:
        raise DataError(
            f"{path} cannot be read as parquet ({one_line(problem)}); it is damaged or of another format: write it "
            "again."
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
