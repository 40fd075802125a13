"""Text files (.csv, .tsv, .txt): a matrix of numbers with a header and row names, read strictly, line by line.

pandas would read "NA" as missing and TRUE as 1, and cut long lines off; here anything that is not a number is refused,
with its line and column. Names are plain strings.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO, get_args

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.genes import ENSEMBL_ID, OF_CELLS, first_of_most, read_gene_list
from grn.config.schema import DataConfig, Orientation
from grn.errors import DataError
from grn.io.atomic import number_advice, unpacked

ENDINGS = tuple(f"{ending}{packed}" for ending in (".csv", ".tsv", ".txt") for packed in ("", ".gz"))

OF_EDGES = ({"source", "target"}, {"tf", "target"}, {"gene1", "gene2"}, {"regulatorygene", "targetgene"})
"""Columns of lists of edges, in lower case; no matrix has two genes or cells of these names."""


def read_text(path: Path, config: DataConfig) -> AnnData:
    """The text file in the orientation of `config`; names listed in data.regulators and data.genes count as genes.

    Raises DataError, also where data.orientation is missing.
    """
    _refuse_configuration(path)
    _refuse_edges(path)
    if config.orientation is None:
        raise DataError(
            f"{path} is a text file, which does not say what its rows are; set data.orientation to cells_by_genes (a "
            "row per cell) or genes_by_cells (a row per gene)."
        )
    known = [] if config.regulators == "all" else _listed(config.regulators, "data.regulators")
    if isinstance(config.genes, str) and config.genes != "all":
        known = [*known, *_listed(config.genes, "data.genes")]
    return read_text_matrix(path, config.orientation, known)


def _refuse_configuration(path: Path) -> None:
    """Raises DataError for a configuration that is called .txt, as some editors name every text."""
    if path.is_file() and not path.name.endswith(".gz"):
        with path.open(encoding="utf-8", errors="replace") as file:
            begins = (line for line in islice(file, 100) if line.strip() and not line.startswith("#"))
            if re.fullmatch(r"[a-z_]+:\s*({.*)?", next(begins, "").rstrip()):
                raise DataError(
                    f"{path} looks like a configuration, where cells are expected; give it a name that ends in .yaml."
                )


def _refuse_edges(path: Path) -> None:
    """Raises DataError for a list of edges, by the names of its columns."""
    with unpacked(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text:
        header = _header(path, text)[1]
    refuse_columns_of_edges(path, header)


def refuse_columns_of_edges(path: Path, header: Sequence[str]) -> None:
    """Raises DataError for the columns of a list of edges."""
    own = {name.strip().casefold() for name in header}
    if any(columns <= own for columns in OF_EDGES):
        raise DataError(
            f"{path} is a list of edges (its columns are {', '.join(header[:4])}), where cells are expected; give a "
            "matrix of cells and genes (grn.read_network and grn evaluate read lists of edges)."
        )


def _listed(choice: str | list[str], field: str) -> list[str]:
    return read_gene_list(choice, field) if isinstance(choice, str) else choice


def read_text_matrix(path: Path, orientation: Orientation, known_genes: Collection[str] = ()) -> AnnData:
    """A text file, plain or .gz, separated by tabs, commas, semicolons or spaces, as cells by genes.

    orientation: cells_by_genes (a row per cell) or genes_by_cells.   known_genes: names that are surely genes.
    The header may lack the corner, as R writes it. Genes may repeat, cells may not. Raises DataError.
    """
    try:
        with unpacked(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            rows, columns, values = _read(path, text)
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not text in UTF-8; save it as UTF-8, or rename it with the ending of its format."
        ) from None
    _refuse_numbers(path, columns, "the first line", "give the file a header with names")
    _refuse_numbers(path, rows, "the first column", "give every row a name")
    _refuse_transposed(path, orientation, rows, columns, known_genes)
    by_cells = orientation == "cells_by_genes"
    cells, genes = (rows, columns) if by_cells else (columns, rows)
    twice, times = Counter(cells).most_common(1)[0]
    if times > 1:
        raise DataError(f"{path} has {times} cells called {twice!r}; give each cell a name of its own.")
    adata = AnnData(values if by_cells else values.T.tocsr())
    adata.obs = pd.DataFrame(index=pd.Index(cells, dtype=object))
    adata.var = pd.DataFrame(index=pd.Index(genes, dtype=object))
    return adata


def _read(path: Path, file: TextIO) -> tuple[list[str], list[str], sparse.csr_matrix]:
    """Names of the rows and of the columns, and the values between them."""
    separator, header, above = _header(path, file)
    reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
    names: list[str] = []
    columns: list[str] = []
    entries: list[tuple[np.ndarray, np.ndarray]] = []
    for fields in _rows(path, reader, above):
        line = above + reader.line_num
        if not columns:
            columns = _columns(path, header, fields, line)
            _refuse_no_matrix(path, line, fields)
        if len(fields) != len(columns) + 1:
            raise DataError(
                f"{path}, line {line} has {len(fields)} fields where {len(columns) + 1} are expected; give every line "
                "a name and one number per column."
            )
        names.append(fields[0].strip())
        if "\0" in names[-1]:
            raise DataError(f"{path}, line {line} has a null character in its name; write the file again.")
        if not names[-1]:
            raise DataError(f"{path}, line {line} begins with an empty name; name the row, or remove it.")
        values = _numbers(path, line, fields[1:], columns)
        stored = np.flatnonzero(values)
        entries.append((stored.astype(np.int32), values[stored]))
    if not entries:
        raise DataError(f"{path} has a header but no rows; give a matrix with row names.")
    indices, numbers = (np.concatenate(part) for part in zip(*entries, strict=True))
    starts = np.concatenate([[0], np.cumsum([len(stored) for stored, _ in entries])])
    narrow = numbers.astype(np.float32)
    exact = narrow if (narrow == numbers).all() else numbers  # counts are exact in half the memory
    return names, columns, sparse.csr_matrix((exact, indices, starts), shape=(len(names), len(columns)))


def _header(path: Path, file: TextIO) -> tuple[str, list[str], int]:
    """The separator, the fields of the first line that holds something, and its number."""
    number, text = next(((number, line.rstrip("\r\n")) for number, line in enumerate(file, 1) if line.strip()), (0, ""))
    if not text:
        raise DataError(f"{path} is empty; give a matrix with a header and row names.")
    if text.lstrip().startswith("<"):
        raise DataError(f"{path} begins with {text.strip()[:30]!r}, as a web page does; download the table again.")
    separator = "\t" if "\t" in text else max(",; ", key=text.count)
    if separator not in text:
        raise DataError(
            f"{path} has a single column, {text[:60]!r}, where names and numbers are expected; separate them by tabs "
            "or commas."
        )
    try:
        return separator, next(csv.reader([text], delimiter=separator, skipinitialspace=True, strict=True)), number
    except csv.Error as problem:
        raise DataError(f"{path}, line {number} cannot be read ({problem}); close or remove its quotes.") from None


def _rows(path: Path, reader, above: int) -> Iterator[list[str]]:
    """The lines that hold something."""
    line = 0
    try:
        for fields in reader:
            line = reader.line_num
            if fields and fields != [""]:
                yield fields
    except csv.Error as problem:  # a quote that is never closed, or one inside a name
        raise DataError(
            f"{path}, line {above + line + 1} cannot be read ({problem}); close or remove its quotes."
        ) from None


def _columns(path: Path, header: Sequence[str], fields: Sequence[str], line: int) -> list[str]:
    """Names of the columns: the header without its corner, or all of it where rows have one field more."""
    if len(fields) not in (len(header), len(header) + 1):
        if header[0].startswith("#"):
            raise DataError(f"{path} begins with a comment ({header[0][:30]!r}); remove the lines above the header.")
        raise DataError(
            f"{path}, line {line} has {len(fields)} fields, but the header has {len(header)}; give every line a name "
            "and one number per column."
        )
    corner = len(header) + 1 - len(fields)
    columns = [name.strip() for name in header[corner:]]
    if "\0" in "".join(columns):
        raise DataError(f"{path} has a null character in the names of its columns; write it again.")
    if "" in columns:
        raise DataError(f"{path} has no name for column {columns.index('') + corner + 1}; name it or remove it.")
    return columns


def _numbers(path: Path, line: int, fields: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    """A row as finite float64."""
    try:
        values = np.fromiter(map(float, fields), np.float64, len(fields))
    except ValueError:
        values = np.array([_number(field) for field in fields])
    if "_" in "".join(fields):  # Python reads 1_0 as 10
        values = np.array([_number(field) for field in fields])
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32))
    if not finite.all():
        first = int(finite.argmin())
        text = fields[first].strip()
        found = f"is {text[:60]!r}, which is not a finite number" if text else "is empty"
        advice = number_advice(text) or "correct it, or remove columns that hold no expression"
        raise DataError(f"{path}, line {line}: column {columns[first]!r} {found}; {advice}.")
    return values


def _refuse_no_matrix(path: Path, line: int, row: Sequence[str]) -> None:
    """Raises DataError where the first row shows that the table is no matrix, or has a name too many.

    Nothing is said of what may be wrong by itself: an empty name, values that are missing, and numbers with commas.
    """
    name, *values = (field.strip() for field in row)
    if not name or any(value.casefold() in MISSING or number_advice(value) for value in values):
        return
    texts = [value for value in values if not math.isfinite(_number(value))]
    shown = ", ".join(value[:20] for value in (name, *values[:3]))
    if len(values) > 1 and len(texts) == len(values):
        problem = "holds no number, as the table is no matrix of expression; give the one with the counts"
    elif texts == values[:1] and name.isdecimal() and len(values) > 2:
        problem = "has two names, a number and a text; remove the first column if it counts the rows, else the second"
    elif texts == values[:1] and len(values) == 2 and not name.isdecimal():
        problem = (
            "is a value of a cell and a gene, where a matrix belongs; write a row for each cell and a column for each "
            "gene, as pandas.DataFrame.pivot does"
        )
    else:
        return
    raise DataError(f"{path}, line {line} ({shown}) {problem}.")


MISSING = {"", "na", "nan", "n/a", "null", "none", "inf", "-inf"}


def _number(text: str) -> float:
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def _refuse_numbers(path: Path, names: Sequence[str], where: str, advice: str) -> None:
    """Raises DataError where numbers that cannot be names stand in the place of names.

    Numbers that are names (Entrez ids, rows counted from 0) are whole and all different.
    """
    numbers = [_number(name) for name in names]
    if all(map(math.isfinite, numbers)) and (len(set(names)) < len(names) or not all(map(float.is_integer, numbers))):
        raise DataError(f"{path} has numbers in {where} ({', '.join(names[:3])}), where names belong; {advice}.")


def _refuse_transposed(
    path: Path, orientation: str, rows: Sequence[str], columns: Sequence[str], known_genes: Collection[str]
) -> None:
    """Raises DataError where the names show that the other orientation is the right one."""
    by_cells = orientation == "cells_by_genes"
    cells, genes = (rows, columns) if by_cells else (columns, rows)
    of_cells, of_genes = ("row", "column") if by_cells else ("column", "row")
    if (among_cells := len(set(known_genes).intersection(cells))) > len(set(known_genes).intersection(genes)):
        found = f"{among_cells} of its {of_cells} names are known gene names"
    elif example := first_of_most(genes, OF_CELLS):
        found = f"its {of_genes} names look like names of cells ({example!r})"
    elif example := first_of_most(cells, ENSEMBL_ID):
        found = f"its {of_cells} names look like genes ({example!r})"
    else:
        return
    other = next(each for each in get_args(Orientation) if each != orientation)
    raise DataError(f"{path} is read as {orientation}, but {found}; set data.orientation to {other}.")
