"""Text files and tables that a user gives or that a run has written."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from grn.runtime.errors import DataError, nearest, one_line

if TYPE_CHECKING:
    import pandas as pd

# what tables, lists of a name a line, or XML cannot hold
CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
EDGE = ("source", "target", "weight")  # the columns that every table of edges has


def does_not_exist(path: Path, otherwise: str) -> str:
    """The sentence about a path that does not exist, with the nearest name beside it, or else with
    `otherwise`.
    """
    near = nearest_file(path)
    return f"{path} does not exist; " + (f"did you mean {near}?" if near else otherwise)


def nearest_file(path: Path) -> Path | None:
    """The file or folder beside `path` with the most similar name, if any."""
    shown = path.parent.iterdir() if path.parent.is_dir() else ()
    # A common ending does not make two names alike.
    names = [
        each.name for each in shown if each.suffix != path.suffix or nearest(path.stem, [each.stem])
    ]
    near = nearest(path.name, names)
    return path.parent / near if near else None


@contextmanager
def unpacked(path: Path) -> Iterator[BufferedReader]:
    """`path` opened for reading, decompressed where it is a gzip file: browsers unpack files, and
    keep the name .gz.

    Raises DataError, perhaps only at its end.
    """
    try:
        with path.open("rb") as start:
            packed = start.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            yield cast(BufferedReader, file)
    except (EOFError, gzip.BadGzipFile, zlib.error, IsADirectoryError) as problem:
        raise DataError(
            f"{path} is a folder, or damaged ({one_line(problem)})",
            advice="give a file, or copy it again",
        ) from None


def encoding_of(start: bytes) -> str:
    """The encoding of a text by its first bytes: UTF-16, as Excel writes "Unicode text", or else
    UTF-8.
    """
    return "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def decoded(content: bytes, errors: str = "strict") -> str:
    """A text in UTF-8 or UTF-16."""
    return content.decode(encoding_of(content), errors)


def number_advice(text: str) -> str | None:
    """Return what to do about a number with a decimal comma or with commas between its digits; None
    for other texts.
    """
    if re.fullmatch(r"[-+]?\d*(,\d+)+(\.\d*)?([eE][-+]?\d+)?", text.strip()):
        return "write numbers with a decimal point, and no comma in them"
    return None


@contextmanager
def table_of_run(path: Path) -> Iterator[None]:
    """Within it, what pandas and pyarrow raise for a damaged table of a run becomes a DataError
    about `path`.
    """
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, NotImplementedError) as problem:
        raise DataError(
            f"{path} is missing or damaged ({one_line(problem)})",
            advice="restore it, or train again",
        ) from problem


def read_edge_table(path: Path, **options: Any) -> pd.DataFrame:
    """An edges.parquet or edges_by_type.parquet. options: of pandas.read_parquet.

    Raises DataError where damaged.
    """
    import pandas as pd

    with table_of_run(path):
        table = pd.read_parquet(path, **options)
        for name in options.get("columns", EDGE):
            column = table[name]  # a KeyError names what is missing
            if name == "weight" and (column.dtype.kind != "f" or column.isna().any()):
                raise ValueError(f"its column {name} holds no numbers, or lacks some")
    return table


def spreadsheet_safe(frame: pd.DataFrame) -> pd.DataFrame:
    """A table for a csv with an apostrophe before texts that a spreadsheet would run as formulas
    (=, +, -, @).
    """

    def safe(value: object) -> object:
        return (
            f"'{value}"
            if isinstance(value, str) and value.startswith(("=", "+", "-", "@"))
            else value
        )

    found = frame.rename(columns=safe, index=safe)
    for place, kind in enumerate(found.dtypes):
        if kind.kind not in "biufcmM":
            found.isetitem(place, found.iloc[:, place].astype(object).map(safe))
    return found
