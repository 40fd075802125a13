"""Text files (.csv, .tsv, .txt): a matrix of numbers with a header and row names, read strictly, line by line.

pandas would read "NA" as missing and TRUE as 1, and cut long lines off; here anything that is not a number is refused,
with its line and column. Names are plain strings.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.genes import ENSEMBL_ID, OF_CELLS, first_of_most, listed_genes
from grn.cells.readers import reading
from grn.config.schema import DataConfig
from grn.errors import DataError
from grn.io.tables import unpacked

ENDINGS = tuple(f"{ending}{packed}" for ending in (".csv", ".tsv", ".txt") for packed in ("", ".gz"))


def read_text(path: Path, config: DataConfig) -> AnnData:
    """A text file, plain or .gz, separated by tabs, commas, semicolons or spaces, as cells by genes.

    The header may lack the corner, as R writes it. Genes may repeat, cells may not. Names that are listed in
    data.regulators and data.genes count as genes. Raises DataError, also where data.orientation is wrong.
    """
    known = {*listed_genes(config.regulators, "data.regulators"), *listed_genes(config.genes, "data.genes")}
    with reading(f"{path} cannot be read as a matrix of text in UTF-8"):
        with unpacked(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            rows, columns, values = _read(text)
        by_cells = config.orientation == "cells_by_genes"
        cells, genes = (rows, columns) if by_cells else (columns, rows)
        _check_names(rows, columns, cells)
    if found := _is_transposed(cells, genes, known):
        problem = f"{path} is read as {config.orientation}, but {found}"
        other = "genes_by_cells" if by_cells else "cells_by_genes"
        raise DataError(problem, field="data.orientation", advice=f"set {{field}} to {other}")
    adata = AnnData(values if by_cells else values.T.tocsr())
    # Afterwards, as AnnData would warn of genes that repeat.
    adata.obs, adata.var = (pd.DataFrame(index=pd.Index(names, dtype=object)) for names in (cells, genes))
    return adata


def _read(file: TextIO) -> tuple[list[str], list[str], sparse.csr_matrix]:
    """Names of the rows, names of the columns, and the values, float32 where that is exact. Raises ValueError."""
    lines = _lines(file)
    _, header = next(lines, (0, []))
    columns: list[str] = []
    names: list[str] = []
    entries: list[tuple[np.ndarray, np.ndarray]] = []
    for line, fields in lines:
        if not names and len(fields) >= len(header):  # a header without its corner has one field less than the rows
            columns = [name.strip() for name in header[len(header) + 1 - len(fields) :]]
        names.append(fields[0].strip())
        values = _numbers(line, fields[1:], columns)
        stored = np.flatnonzero(values)
        entries.append((stored.astype(np.int32), values[stored]))
    entries.append((np.zeros(0, np.int32), np.zeros(0)))  # of a table without rows
    indices, numbers = (np.concatenate(part) for part in zip(*entries, strict=True))
    starts = np.concatenate([[0], np.cumsum([len(stored) for stored, _ in entries[:-1]])])
    narrow = numbers.astype(np.float32)
    exact = narrow if (narrow == numbers).all() else numbers  # counts are exact in half the memory
    shape = (len(names), len(columns))
    return names, columns, sparse.csr_matrix((exact, indices, starts), shape=shape)


def _lines(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that holds something, and its number. The first such line decides the separator."""
    above, first = next(((number, line) for number, line in enumerate(file, 1) if line.strip()), (1, ""))
    separator = "\t" if "\t" in first else max(",; ", key=first.count)
    above -= 1
    reader = csv.reader(chain([first], file), delimiter=separator, skipinitialspace=True, strict=True)
    for fields in reader:
        if fields and fields != [""]:
            yield above + reader.line_num, fields


def _numbers(line: int, fields: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    """A row as finite float64. Raises ValueError."""
    read = _number if "_" in "".join(fields) else float  # Python reads 1_0 as 10
    try:
        values = np.fromiter(map(read, fields), np.float64, len(fields))
    except ValueError:
        values = np.array([_number(field) for field in fields])
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32))
    fits = len(fields) == len(columns) > 0
    if fits and finite.all():
        return values
    problem = f"line {line} has {len(fields) + 1} fields where {len(columns) + 1} are expected"
    if fits:
        first = int(finite.argmin())
        problem = f"line {line}: column {columns[first]!r} is {fields[first]!r}, which is not a finite number"
    raise ValueError(problem)


def _number(text: str) -> float:
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def _check_names(rows: Sequence[str], columns: Sequence[str], cells: Sequence[str]) -> None:
    """Raises ValueError for a table without rows, two cells of one name, and numbers, or nothing, in place of names.

    Numbers that are names (Entrez ids, rows counted from 0) are whole and all different.
    """
    problem = None if rows else "it has no header with a row below it"
    for place, names in {"the first line": columns, "the first column": rows}.items():
        numbers = [_number(name) for name in names]
        whole = all(map(float.is_integer, numbers)) and len(set(names)) == len(names)
        if "" in names:
            problem = problem or f"name {names.index('') + 1} in {place} is empty"
        elif all(map(math.isfinite, numbers)) and not whole:
            problem = problem or f"it has numbers in {place} ({', '.join(names[:3])}), where names belong"
    twice, times = Counter(cells).most_common(1)[0] if cells else ("", 0)
    if problem or times > 1:
        raise ValueError(problem or f"it has {times} cells called {twice!r}")


def _is_transposed(cells: Sequence[str], genes: Sequence[str], known_genes: Collection[str]) -> str:
    """What shows that the other orientation is the right one; an empty text where nothing does."""
    among_cells = len(set(known_genes).intersection(cells))
    if among_cells > len(set(known_genes).intersection(genes)):
        return f"{among_cells} names of its cells are known gene names"
    if example := first_of_most(genes, OF_CELLS):
        return f"names of its genes look like names of cells ({example!r})"
    if example := first_of_most(cells, ENSEMBL_ID):
        return f"names of its cells look like genes ({example!r})"
    return ""
