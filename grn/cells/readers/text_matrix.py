"""Text files (.csv, .tsv, .txt): a matrix of numbers with a header and row names, read strictly,
line by line.

pandas would read "NA" as missing and TRUE as 1, and cut long lines off; here anything that is not a
number is refused, with its line and column. Names are plain strings.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.genes.lists import listed_genes
from grn.cells.genes.names import ENSEMBL_ID, OF_CELLS, first_of_most
from grn.cells.readers import add_note, reading
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError
from grn.runtime.tables import encoding_of, number_advice, unpacked

OF_ENSEMBL = re.compile(r"ENS[A-Z]*\d{6,}(\.\d+)?")  # genes, transcripts, proteins
PLACES = ["chr", "start", "end", "strand", "length"]  # of genes, in the tables of featureCounts
COMMENTS = ("# ", "##")
# texts that stand for a number and are none
VALUES = {"", "na", "nan", "n/a", "null", "none", "inf", "-inf", "true", "false"}
ENDINGS = tuple(
    f"{ending}{packed}" for ending in (".csv", ".tsv", ".txt") for packed in ("", ".gz")
)


def read_text(path: Path, config: DataConfig) -> AnnData:
    """Read a text file, plain or .gz, separated by tabs, commas, semicolons or spaces.

    The header may lack its first field, as R writes it. Columns of texts may follow the names of
    the rows, for example gene_name or a cell type: they go to var or obs. Names of genes may
    repeat, names of cells may not. Genes that data.regulators and data.genes list help to see
    whether data.orientation is right.

    Raises DataError, also where data.orientation is wrong.
    """
    known = {
        *listed_genes(config.regulators, "data.regulators"),
        *listed_genes(config.genes, "data.genes"),
    }
    with reading(f"{path} cannot be read as a matrix of text in UTF-8"):
        with unpacked(path) as file:
            encoding = encoding_of(file.peek(2))
            with io.TextIOWrapper(file, encoding=encoding, newline="") as text:
                rows, columns, values, texts = _read(path, text)
        by_cells = config.orientation == "cells_by_genes"
        if texts and not by_cells:
            rows, texts = _symbols(rows, texts)
        cells, genes = (rows, columns) if by_cells else (columns, rows)
        _check_names(rows, columns, cells)
    if found := _is_transposed(cells, genes, known):
        problem = f"{path} is read as {config.orientation}, but {found}"
        other = "genes_by_cells" if by_cells else "cells_by_genes"
        raise DataError(problem, field="data.orientation", advice=f"set {{field}} to {other}")
    adata = AnnData(values if by_cells else values.T.tocsr())
    # Afterwards, as AnnData would warn of genes that repeat.
    adata.obs, adata.var = (
        pd.DataFrame(index=pd.Index(names, dtype=object)) for names in (cells, genes)
    )
    table = adata.obs if by_cells else adata.var
    for name, column in texts.items():
        table[name] = column
    if texts:
        what, first = ("cells", "obs") if by_cells else ("genes", "var")
        listed = ", ".join(map(repr, texts))
        add_note(
            adata,
            f"Columns of {path} that are about {what}, and no values, are in {first} ({listed}).",
        )
    return adata


Texts = dict[str, list[str]]


def _read(path: Path, file: TextIO) -> tuple[list[str], list[str], sparse.csr_matrix, Texts]:
    """Return the names of the rows, the names of the columns, the values, CSR, float32 where that
    is exact and else float64, and the columns of texts between the names of the rows and the
    values.

    path: of the file, for messages.
    Raises ValueError, DataError.
    """
    lines = _lines(file)
    _, header = next(lines, (0, []))
    columns: list[str] = []
    names: list[str] = []
    texts: Texts = {}
    # a separator at the end of every line makes an empty last field, which is no column
    last: int | None = None
    entries: list[tuple[np.ndarray, np.ndarray]] = []
    for line, fields in lines:
        # a header without its corner has one field less than the rows
        if not names and len(fields) >= len(header):
            columns = [name.strip() for name in header[len(header) + 1 - len(fields) :]]
            last = -1 if columns[-1:] == [""] and fields[-1] == "" else None
            columns = columns[:last]
            texts = {name: [] for name in columns[: _described(columns, fields[1:])]}
            columns = columns[len(texts) :]
        names.append(fields[0].strip())
        for column, field in zip(texts.values(), fields[1:], strict=False):
            column.append(field.strip())
        spare = [field for field in fields[last or len(fields) :] if field]
        values = _numbers(path, line, [*fields[1 + len(texts) : last], *spare], columns)
        stored = np.flatnonzero(values)
        entries.append((stored.astype(np.int32), values[stored]))
    entries.append((np.zeros(0, np.int32), np.zeros(0)))  # of a table without rows
    indices, numbers = (np.concatenate(part) for part in zip(*entries, strict=True))
    starts = np.concatenate([[0], np.cumsum([len(stored) for stored, _ in entries[:-1]])])
    narrow = numbers.astype(np.float32)
    exact = narrow if (narrow == numbers).all() else numbers  # counts are exact in half the memory
    shape = (len(names), len(columns))
    return names, columns, sparse.csr_matrix((exact, indices, starts), shape=shape), texts


def _described(columns: Sequence[str], fields: Sequence[str]) -> int:
    """Return how many columns, from the first one, describe the rows: texts that nobody could mean
    as numbers, or the places of genes, as featureCounts has them.

    fields: of the first row, without its name.
    """
    if [name.casefold() for name in columns[: len(PLACES)]] == PLACES:
        return len(PLACES)
    meant = (
        math.isfinite(_number(each)) or number_advice(each) or each.strip().casefold() in VALUES
        for each in fields
    )
    texts = next((place for place, number in enumerate(meant) if number), 0)
    return texts if len(set(columns[:texts])) == texts else 0


def _symbols(ids: list[str], texts: Texts) -> tuple[list[str], Texts]:
    """Return the names of genes and the columns of var. Where ids stand beside symbols, the symbols
    are the names, and the id is the name of a gene without a symbol.

    ids: names of the rows.
    texts: columns that describe them, at least one.
    """
    key, symbols = next(iter(texts.items()))
    are_ids = first_of_most(ids, ENSEMBL_ID) or all(math.isfinite(_number(each)) for each in ids)
    if not are_ids or key.casefold() in PLACES or first_of_most(symbols, OF_ENSEMBL):
        return ids, texts
    names = [symbol or own for symbol, own in zip(symbols, ids, strict=True)]
    return names, {
        "gene_ids": ids,
        **{name: column for name, column in texts.items() if name != key},
    }


def _lines(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line that is not empty. The first one decides the
    separator; comments above it, as featureCounts and BD Rhapsody write them, are skipped.
    """
    filled = (
        each for each in enumerate(file, 1) if each[1].strip() and not each[1].startswith(COMMENTS)
    )
    above, first = next(filled, (1, ""))
    separator = "\t" if "\t" in first else max(",; ", key=first.count)
    above -= 1
    reader = csv.reader(
        chain([first], file), delimiter=separator, skipinitialspace=True, strict=True
    )
    for fields in reader:
        if fields and fields != [""]:
            yield above + reader.line_num, fields


def _numbers(path: Path, line: int, fields: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    """Return the fields of a row as finite numbers, float64 [columns].

    path, line: for messages.
    Raises ValueError, and DataError for a decimal comma.
    """
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
        problem = (
            f"line {line}: column {columns[first]!r} is {fields[first]!r}, which is not a finite "
            "number"
        )
        if advice := number_advice(fields[first]):
            raise DataError(f"{path} cannot be read ({problem})", field="data.path", advice=advice)
    raise ValueError(problem)


def _number(text: str) -> float:
    """Return a text as a number, NaN where it is none. Python would read 1_0 as 10."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def _check_names(rows: Sequence[str], columns: Sequence[str], cells: Sequence[str]) -> None:
    """Raise ValueError for a table without rows, two cells with one name, and numbers or empty
    texts in place of names.

    Numbers may be names (Entrez ids, rows counted from 0) if they are whole and all different.
    """
    problem = None if rows else "it has no header with a row below it"
    for place, names in {"the first line": columns, "the first column": rows}.items():
        numbers = [_number(name) for name in names]
        whole = all(map(float.is_integer, numbers)) and len(set(names)) == len(names)
        if "" in names:
            problem = problem or f"name {names.index('') + 1} in {place} is empty"
        elif all(map(math.isfinite, numbers)) and not whole:
            problem = (
                problem or f"it has numbers in {place} ({', '.join(names[:3])}), where names belong"
            )
    twice, times = Counter(cells).most_common(1)[0] if cells else ("", 0)
    if problem or times > 1:
        raise ValueError(problem or f"it has {times} cells called {twice!r}")


def _is_transposed(cells: Sequence[str], genes: Sequence[str], known_genes: Collection[str]) -> str:
    """Return the sign that rows and columns are exchanged, as a part of a sentence; an empty text
    where there is none.

    cells, genes: names, as the file was read.
    known_genes: of lists.
    """
    among_cells = len(set(known_genes).intersection(cells))
    if among_cells > len(set(known_genes).intersection(genes)):
        return f"{among_cells} names of its cells are known gene names"
    if example := first_of_most(genes, OF_CELLS):
        return f"names of its genes look like names of cells ({example!r})"
    if example := first_of_most(cells, ENSEMBL_ID):
        return f"names of its cells look like genes ({example!r})"
    return ""
