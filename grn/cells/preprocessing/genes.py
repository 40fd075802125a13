"""Genes: their names, which of them are used, and which of those are regulators.

Names are plain strings throughout: "NA" and "nan" are genes.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.gene_lists import LISTS, read_list
from grn.cells.preprocessing.variable import residual_variance, variance
from grn.config.mistakes import shown
from grn.errors import DataError, nearest
from grn.io.atomic import address_in, as_a_shell_reads, nearest_file, unpacked

# Barcodes, after which R writes a dot, and numbered cells.
OF_CELLS = re.compile(r"[ACGT]{8,}([-.]\d+)?|cell[ _.-]?\d+", re.IGNORECASE)
# What programs measure of each cell, as its total, and write beside its genes.
MEASURED = re.compile(
    r"(n|num|total|sum|log1p_total|log1p_n)_?(counts?|genes?|umis?|features?)(_by_counts)?|total|n(Count|Feature)_\w+|"
    r"(pct|percent)[._]?(counts[._])?(mito?|mt|ribo|rb|hb)\w*|(library|lib)_?size|doublet_?scores?|"
    r"(level_|unnamed: ?)\d+|index|row_?(names?|numbers?)",
    re.IGNORECASE,
)
CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
QUOTED = re.compile(r'"([^"]*)"')  # as R writes names
SEPARATED = re.compile(r"[,;\t]")
DATE = re.compile(
    r"\d{1,2}-(?:Mar|Sep|Dec|Oct|Nov|Apr|Feb)|(?:Mar|Sep|Dec|Oct|Nov|Apr|Feb)-\d{1,2}|\d{4}-\d\d-\d\d.*", re.I
)
CHOICES: dict[str, tuple[str, ...]] = {  # words that a field takes in place of a file
    "data.regulators": ("all",),
    "data.genes": ("all",),
    "regulators": ("reference", "all"),
    "genes": ("reference", "network", "data"),
}
ENSEMBL_ID = re.compile(r"ENS[A-Z]*G\d{6,}(\.\d+)?")


def gene_names(var: pd.DataFrame, gene_key: str | None) -> list[str]:
    """Names from column `gene_key` of var (None: its index); where the column has no name, that of the index is used.

    Raises DataError where var has no such column.
    """
    index = [str(name) for name in var.index]
    if gene_key is None:
        return index
    column = column_of(var, gene_key, "data.gene_key", "var")
    if pd.api.types.is_float_dtype(column) and len(broken := column[column % 1 > 0]):
        raise DataError(
            f"data.gene_key is {gene_key!r}, a column of var that holds numbers, as {broken.iloc[0]:g}; set "
            "data.gene_key to one with the names of the genes."
        )
    absent = without_name(column)
    return [own if missing else str(name) for name, own, missing in zip(column, index, absent, strict=True)]


def unnamed_note(var: pd.DataFrame, gene_key: str | None) -> tuple[str, ...]:
    """A sentence about genes without a name in the column `gene_key` of var, where there are any (see gene_names)."""
    absent = 0 if gene_key is None else int(without_name(var[gene_key]).sum())
    if not absent:
        return ()
    return (
        f"{absent} of {len(var)} genes have no name in the column {gene_key!r} of var (data.gene_key); they keep those "
        "of its index.",
    )


def without_name(column: pd.Series) -> pd.Series:
    """Which rows of a column of var name no gene."""
    return column.isna() | (column.astype(str) == "")


NESTED = (list, tuple, set, dict, np.ndarray, bytes)


def column_of(frame: pd.DataFrame, key: str, field: str, table: str) -> pd.Series:
    """frame[key]; where there is none, raises DataError with the nearest column. field, table: names in messages.

    Raises DataError, too, for two columns of the name, and for one that holds lists or bytes.
    """
    if key in frame:
        column = frame[key]
        if column.ndim > 1:
            raise DataError(
                f"{field} is {key!r}, and {table} has {column.shape[1]} columns of this name; rename all but one."
            )
        if column.dtype == object and column.map(lambda value: isinstance(value, NESTED)).any():
            raise DataError(
                f"{field} is {key!r}, a column of {table} that holds lists or bytes; give one with a text or a number "
                "for each row."
            )
        return column
    columns = [str(column) for column in frame.columns]
    near = nearest(key, columns)
    hint = f"did you mean {near!r}?" if near else f"{table} has {', '.join(map(repr, columns))}."
    if not columns:
        hint = f"{table} has no columns; give an .h5ad file whose {table} has it, or leave {field} out."
    raise DataError(f"{field} is {key!r}, which is not a column of {table}; {hint}")


def refuse_column_of_var(adata: AnnData, columns: Mapping[str, str | None]) -> None:
    """Raises DataError for a column of obs that is one of var: rows and columns may be exchanged.

    columns: the option that names a column, for messages -> the column, None for none.
    """
    for option, key in columns.items():
        if key is not None and key not in adata.obs and key in adata.var:
            raise DataError(
                f"{option} is {key!r}, which is a column of var and not of obs; give a column of obs or, if the rows "
                "are genes, exchange rows and columns, as adata.T does."
            )


def refuse_control_characters(names: Sequence[str]) -> None:
    """Raises DataError for a name that tables, lists with one name a line, or XML could not hold, or that is empty."""
    empty = next((place for place, name in enumerate(names) if not name.strip()), None)
    if empty is not None:
        raise DataError(f"Gene {empty + 1} of {len(names)} has an empty name; name it, or remove it.")
    if CONTROL.search("".join(names)):
        gene = next(name for name in names if CONTROL.search(name))
        raise DataError(f"The gene {gene!r} has a tab or another control character in its name; rename it first.")


def merge_duplicates(
    values: sparse.csr_matrix, names: Sequence[str], duplicates: str
) -> tuple[sparse.csr_matrix, list[str]]:
    """Values, CSR [C, N], and names [N] with every gene once.

    duplicates: of repeated genes, `refuse` raises DataError and `sum` adds their values in the first one's column.
    """
    refuse_control_characters(names)
    position = {name: column for column, name in enumerate(dict.fromkeys(names))}
    if len(position) == len(names):
        return values, list(names)
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if duplicates == "refuse" and (dates := dates_among(repeated)):
        raise DataError(
            f"Some gene names occur more than once and look like dates ({_examples(dates)}), which spreadsheets "
            "make of names such as MARCH1 and MARC1; export the data again, with the names as text."
        )
    if duplicates == "refuse":
        raise DataError(
            f"Some gene names occur more than once ({len(repeated)}: {_examples(repeated)}); set data.duplicates: sum "
            "to add their counts, or data.gene_key to a column of var with unique names."
        )
    columns = np.array([position[name] for name in names])
    gather = sparse.csr_matrix((np.ones(len(names), np.float32), (np.arange(len(names)), columns)))
    merged = (values @ gather).tocsr()
    merged.sort_indices()
    return merged, list(position)


def dates_among(names: Iterable[str]) -> list[str]:
    """Names that a spreadsheet has turned into dates, as 1-Mar of MARCH1."""
    return [name for name in names if DATE.fullmatch(name)]


def genes_note(names: Sequence[str], choice: int | str) -> tuple[str, ...]:
    """Sentences about genes of a list (`data.genes`) that the data [N] lack, and about names that look like dates."""
    notes = []
    if isinstance(choice, str) and choice != "all":
        listed = read_gene_list(choice, "data.genes")
        absent = sorted(set(listed) - set(names))
        if absent:
            notes.append(f"{len(absent)} of {len(listed)} genes of {choice} are {_absent(absent, names)}.")
    if measured := [name for name in names if MEASURED.fullmatch(name)]:
        notes.append(
            f"{len(measured)} gene names are those of measurements or numbers of cells ({_examples(measured)}) and "
            "count as genes; remove these columns if they are none."
        )
    if dates := dates_among(names):
        notes.append(
            f"{len(dates)} gene names look like dates ({_examples(dates)}), which spreadsheets make of names such as "
            "MARCH1; if that was not meant, export the data again, with the names as text."
        )
    return tuple(notes)


def choose_genes(
    counts: sparse.csr_matrix, names: Sequence[str], choice: int | str, keep: np.ndarray | None, values: str
) -> np.ndarray:
    """Positions of the chosen genes, in the order of the data.

    counts: CSR [C, N] of the training cells.   choice: `data.genes`.   values: `data.values`.
    keep: positions of the regulators that were named; those that a training cell expresses are kept in addition to the
    most variable genes. Raises DataError where no listed gene is found.
    """
    if choice == "all":
        return np.arange(len(names))
    if isinstance(choice, int):
        if choice >= len(names):
            return np.arange(len(names))
        scores = variance(counts) if values == "expression" else residual_variance(counts)
        chosen = np.argsort(-scores, kind="stable")[:choice]
        if keep is not None:
            expressed = np.asarray((counts > 0).sum(axis=0)).ravel() > 0
            chosen = np.union1d(chosen, keep[expressed[keep]])
        return np.sort(chosen)
    listed = read_gene_list(choice, "data.genes")
    chosen = np.flatnonzero(np.isin(names, listed))
    if chosen.size == 0:
        raise DataError(_none_found(choice, listed, names))
    return chosen


def choose_regulators(
    names: Sequence[str], choice: str | list[str], cells: Sequence[str] = ()
) -> tuple[np.ndarray | None, str]:
    """Positions of the regulators, int64 (None: every gene), and a sentence about how many were found.

    names [N]: of the genes.   choice: `data.regulators`.   cells: names of the cells, for messages.
    Raises DataError where none is found.
    """
    if choice == "all":
        return None, "Every gene may regulate."
    listed = read_gene_list(choice, "data.regulators") if isinstance(choice, str) else [str(name) for name in choice]
    if not listed:
        raise DataError("data.regulators is an empty list; list genes, or set it to all.")
    found = np.flatnonzero(np.isin(names, listed))
    if alone := sorted({"all", *LISTS} & set(listed) - set(names)):
        raise DataError(f"data.regulators lists {alone[0]!r}, which is no gene; give it alone, or names of genes.")
    if files := [name for name in listed if name not in names and os.path.splitext(name)[1] and os.path.isfile(name)]:
        raise DataError(f"data.regulators lists {files[0]!r}, which is a file; give it alone, or names of genes.")
    if found.size == 0:
        if turned := sorted(set(listed) & set(cells)):
            raise DataError(
                f"None of the genes of data.regulators is among the genes of the data, whose cells have their names "
                f"({turned[0]!r}); transpose it, so that a row is a cell (adata.T)."
            )
        raise DataError(_none_found("data.regulators", listed, names))
    absent = sorted(set(listed) - set(names))
    missing = f"; {len(absent)} are {_absent(absent, names)}" if absent else ""
    return found, f"{found.size} of {len(set(listed))} regulators were found{missing}."


def _absent(absent: Sequence[str], names: Sequence[str]) -> str:
    """The end of a sentence about genes of a list that the data lack: examples, and the reason where it is seen."""
    near = near_miss(absent, names)
    return f"not in the data ({_examples(absent)})" + (f"; {near}" if near else "")


def refuse_cells_as_genes(names: Sequence[str], cells: Sequence[str], where: str) -> None:
    """Raises DataError where most names of genes look like those of cells, and those of the cells do not.

    Both do where the genes are short sequences. where: the data, for messages.
    """
    if (example := first_of_most(names, OF_CELLS)) and not first_of_most(cells, OF_CELLS):
        raise DataError(
            f"The genes of {where} are named like cells ({example!r}); transpose it, so that a row is a cell (adata.T)."
        )


def first_of_most(names: Sequence[str], pattern: re.Pattern) -> str:
    """The first name that matches, where more than half of the names do; else an empty text."""
    matching = [name for name in names if pattern.fullmatch(name)]
    return matching[0] if 2 * len(matching) > len(names) else ""


def read_gene_list(name: str, field: str) -> list[str]:
    """The genes in a file, one a line; blank lines and lines with # are skipped; or those of a published list (LISTS).

    field: its name in messages. Raises DataError for a file that is missing, not text or without genes.
    """
    path = Path(name)
    try:
        path.is_file()
    except OSError as problem:  # as for a long list of names
        raise DataError(
            f"{field} is {name[:40]!r}..., which is no name of a file ({problem.strerror}); give a file, or the genes "
            "themselves, as [A, B]."
        ) from None
    if name in LISTS and not path.is_file():
        return read_list(name)
    if not path.is_file():
        if not name.strip():
            raise DataError(f"{field} is empty; give a file with one gene a line.")
        if path.exists():
            what = "a folder" if path.is_dir() else "a pipe or device"
            raise DataError(f"{field} is {name!r}, which is {what}; give a file with one gene a line.")
        raise DataError(f"{field} is {name!r}, but there is no such file; {_instead(path, field)}")
    try:
        with unpacked(path) as file:
            lines = [line.strip() for line in file.read().decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8; save it as UTF-8, with one gene a line.") from None
    genes = list(dict.fromkeys(QUOTED.sub(r"\1", line) for line in lines if line and not line.startswith("#")))
    if not genes:
        raise DataError(f"{path} lists no genes; write one gene a line.")
    if genes[0].startswith("<"):
        raise DataError(f"{path} begins with {genes[0][:30]!r}, as a web page does; download the list again.")
    several = [line for line in genes if SEPARATED.search(line)]
    if 2 * len(several) > len(genes):
        raise DataError(
            f"{path} has more than a gene on a line ({several[0][:40]!r}); write one gene a line, and nothing beside "
            "it."
        )
    return genes


def _instead(path: Path, field: str) -> str:
    """What to give in place of a list of genes that does not exist: the end of a sentence."""
    if address_in(path):
        return "it is an address: download it first."
    if whole := as_a_shell_reads(path):
        return f"only a shell reads ~ and $ in it: give the whole path, {whole}."
    words = CHOICES.get(field.lstrip("-").removesuffix("="), ())
    if near := nearest(path, [*words, *LISTS], likeness=0.7) or nearest_file(path):
        return f"did you mean {near}?"
    given = [*words, *(["a whole number"] if field == "data.genes" else []), "a file with one gene a line"]
    if field == "data.regulators" and not re.search(r"[./\\]", str(path)):
        names = re.findall(r"[^\s;,|]+", str(path))
        given.append(f"the genes themselves, as [{', '.join(names)}]")
    return f"give {', '.join(given[:-1])}{' or ' if given[1:] else ''}{given[-1]}."


def near_miss(wanted: Iterable[str], known: Iterable[str]) -> str | None:
    """Why names of two lists do not match that nearly do, and what to do; None where that is not so."""
    wanted, known = list(wanted), list(known)
    for form, why in (
        (plain, "spaces or unusual characters ({}); correct the names"),
        (str.casefold, "upper and lower case ({}), as mouse and human symbols do; use the names of one species"),
        (without_version, "the versions of their Ensembl ids ({}); write both with them or both without"),
    ):
        own = {form(name): name for name in reversed(known)}
        for name in wanted:
            if (other := own.get(form(name))) is not None and other != name:
                return "some differ only in " + why.format(f"{name!a} and {other!a}")
    alone = set(known)
    for name in wanted:
        if word := next((word for word in re.split(r"[\s'\"]+", name) if word in alone and word != name), None):
            found = f"({name[:60]!a} and {word!a})"
            return f"some hold more than a name {found}; write each name alone"
    return None


def plain(name: str) -> str:
    """A name without spaces and invisible characters, and with - for every dash."""
    letters = unicodedata.normalize("NFKC", name)
    kinds = [(letter, unicodedata.category(letter)) for letter in letters]
    return "".join("-" if kind == "Pd" else letter for letter, kind in kinds if kind not in ("Zs", "Cf"))


def without_version(name: str) -> str:
    """An Ensembl id without its version; any other name as it is."""
    return name.partition(".")[0] if ENSEMBL_ID.fullmatch(name) else name


def _none_found(field: str, listed: Sequence[str], names: Sequence[str]) -> str:
    near = near_miss(listed, names)
    return (
        f"None of the genes of {field} ({_examples(listed)}) is in the data, whose genes are named like "
        f"{_examples(names)}; "
        + (f"{near}." if near else "use the same kind of names, or set data.gene_key to a column of var that has them.")
    )


def _examples(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(map(shown, names[:most])) + (", ..." if len(names) > most else "")
