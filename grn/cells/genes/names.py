"""Genes: their names, and the choice of genes and regulators.

Names are plain strings throughout: "NA" and "nan" are genes.

Letters: C cells, N genes.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from grn.cells.genes.lists import listed_genes
from grn.cells.obs import column_of
from grn.cells.preprocessing.moments import residual_variance, variance
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError
from grn.runtime.tables import CONTROL

# barcodes (R writes a dot), numbered cells
OF_CELLS = re.compile(r"[ACGT]{8,}([-.]\d+)?|cell[ _.-]?\d+", re.I)
MONTH = "(?:Mar|Sep|Dec|Oct|Nov|Apr|Feb)"
DATE = re.compile(rf"\d{{1,2}}-{MONTH}|{MONTH}-\d{{1,2}}|\d{{4}}-\d\d-\d\d.*", re.I)
ENSEMBL_ID = re.compile(r"ENS[A-Z]*G\d{6,}(\.\d+)?")


@dataclass(frozen=True)
class Chosen:
    """The genes and regulators that are used.

    positions: of the genes in the data, sorted, int64.
    regulators: positions of regulators among these genes, int64; None: every gene may regulate.
    named: positions in the data of the regulators that data.regulators lists, used or not, int64;
        None: it lists none.
    listed, listed_regulators: the names that data.genes and data.regulators list; none where they
        list none.
    """

    positions: np.ndarray
    regulators: np.ndarray | None
    named: np.ndarray | None
    listed: list[str]
    listed_regulators: list[str]


class ToVocabulary(NamedTuple):
    """A map from values of the M genes of a file to values of the N genes of a vocabulary.

    matrix: CSR float32 [M, N], 1 where a gene of the file is a gene of the vocabulary.
    shared [N]: bool, which genes of the vocabulary the file has.
    names [M]: of the file's genes.
    repeated: genes of the vocabulary that the file has several times. Their values are added.
    """

    matrix: sparse.csr_matrix
    shared: np.ndarray
    names: list[str]
    repeated: list[str]


def gene_names(var: pd.DataFrame, gene_key: str | None) -> list[str]:
    """Return the names of genes from a column of var. A gene without a name there has its name in
    the index.

    gene_key: of the column; None: the index.
    Raises DataError where var has no such column.
    """
    index = [str(name) for name in var.index]
    if gene_key is None:
        return index
    column, absent = column_of(var, gene_key, "data.gene_key", "var"), without_name(var, gene_key)
    return [
        own if missing else str(name)
        for name, own, missing in zip(column, index, absent, strict=True)
    ]


def without_name(var: pd.DataFrame, gene_key: str | None) -> np.ndarray:
    """Return which genes have no name in the column `gene_key` of var, bool [N]."""
    if gene_key is None:
        return np.zeros(len(var), dtype=bool)
    return (var[gene_key].isna() | (var[gene_key].astype(str) == "")).to_numpy()


def is_numbered(names: Sequence[object]) -> bool:
    """Return whether names are 0, 1, 2, ... or 1, 2, 3, ..., as AnnData and R call rows without
    names.
    """
    first = str(names[0]) if len(names) > 1 else ""
    return first in ("0", "1") and all(
        str(name) == str(place) for place, name in enumerate(names, int(first))
    )


def column_of_names(var: pd.DataFrame) -> str | None:
    """Return a column of var that could hold the names of genes: texts without spaces, most of them
    different, and no numbers. None where there is none.
    """
    for key in var.columns:
        texts = var[key].astype(str)
        named = (
            2 * texts.nunique() > len(texts)
            and not pd.to_numeric(texts, errors="coerce").notna().any()
        )
        if named and texts.str.fullmatch(r"\S+").all():
            return str(key)
    return None


def column_with(wanted: Iterable[str], var: pd.DataFrame) -> tuple[str, int]:
    """Return the column of var that has the most of some names, as data.gene_key calls it (null is
    the index), and how many it has.
    """
    columns = {"null": var.index.to_series(), **{str(key): var[key] for key in var}}
    names = set(wanted)
    found = {key: len(names.intersection(column.astype(str))) for key, column in columns.items()}
    best = max(found, key=lambda key: found[key])
    return best, found[best]


def refuse_control_characters(names: Sequence[str]) -> None:
    """Raise DataError for an empty name, and for one that tables, lists with one name a line, or
    XML cannot hold.
    """
    odd = next(
        (place for place, name in enumerate(names) if not name.strip() or CONTROL.search(name)),
        None,
    )
    if odd is not None:
        raise DataError(
            f"Gene {odd + 1} of {len(names)} has a name that no table can hold ({names[odd]!r}); "
            "rename it"
        )


def once_each(names: Sequence[str], config: DataConfig) -> tuple[list[str], np.ndarray]:
    """Return the names of the genes, each once, and the position among them of each column of the
    data, int64.

    names: of the columns.
    Raises DataError where a name occurs more than once and data.duplicates is refuse, and where
    data.duplicates is sum but data.values are no counts, which alone can be added.
    """
    refuse_control_characters(names)
    position = {name: place for place, name in enumerate(dict.fromkeys(names))}
    summed = config.duplicates == "sum"
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if (summed and config.values == "expression") or (repeated and not summed):
        problem = f"Some gene names occur more than once ({len(repeated)}: {examples(repeated)})"
        advice = (
            "set {field} to sum to add their counts, or data.gene_key to a column of var with "
            "unique names"
        )
        if summed:
            problem = "{field} is sum, but data.values is expression"
            advice = "set {field} to refuse: counts alone add"
        elif any(map(DATE.fullmatch, repeated)):
            advice = (
                "they look like dates, which spreadsheets make of names such as MARCH1: export "
                "them as text"
            )
        raise DataError(problem, field="data.duplicates", advice=advice)
    return list(position), np.array([position[name] for name in names], np.int64)


def merge_duplicates(values: sparse.csr_matrix, place: np.ndarray) -> sparse.csr_matrix:
    """Add up the columns of each gene; return CSR [C, N].

    values: CSR [C, columns].
    place [columns]: see once_each.
    """
    if np.array_equal(place, np.arange(len(place))):
        return values
    merged = (
        values
        @ sparse.csr_matrix((np.ones(len(place), np.float32), (np.arange(len(place)), place)))
    ).tocsr()
    merged.sort_indices()
    return merged


def choose(
    training: sparse.csr_matrix,
    names: Sequence[str],
    config: DataConfig,
    var: pd.DataFrame | None = None,
) -> Chosen:
    """Choose genes and regulators by `data.genes` and `data.regulators`.

    training: values of the training cells, CSR [C, N].
    names [N]: of the genes.
    var: the table of the genes. Where no listed gene is found, the error names a column of it that
        has such names.
    Raises DataError where no listed gene or regulator is found.
    """
    named = choose_regulators(names, config.regulators, var)
    positions = choose_genes(training, names, config.genes, named, config.values, var)
    listed = listed_genes(config.genes, "data.genes")
    wanted = listed_genes(config.regulators, "data.regulators")
    vocabulary = [names[position] for position in positions]
    regulators = (
        None
        if named is None
        else _found(wanted, vocabulary, "data.regulators", "among the chosen genes")
    )
    return Chosen(positions, regulators, named, listed, wanted)


def choose_genes(
    counts: sparse.csr_matrix,
    names: Sequence[str],
    choice: int | str,
    keep: np.ndarray | None,
    values: str,
    var: pd.DataFrame | None = None,
) -> np.ndarray:
    """Return the positions of the chosen genes, sorted, int64.

    counts: values of the training cells, CSR [C, N].
    names [N]: of the genes.
    choice: `data.genes`.
    keep: positions of the listed regulators. Those with a value above 0 are kept in addition to the
        most variable genes. None: none is listed.
    values: `data.values`.
    var: see choose.
    Raises DataError where no listed gene is found.
    """
    if choice == "all" or (isinstance(choice, int) and choice >= len(names)):
        return np.arange(len(names))
    if isinstance(choice, str):
        return _found(listed_genes(choice, "data.genes"), names, "data.genes", var=var)
    scores = variance(counts) if values == "expression" else residual_variance(counts)
    chosen = np.argsort(-scores, kind="stable")[:choice]
    if keep is not None:
        expressed = np.asarray((counts > 0).sum(axis=0)).ravel() > 0
        chosen = np.union1d(chosen, keep[expressed[keep]])
    return np.sort(chosen)


def choose_regulators(
    names: Sequence[str], choice: str | list[str], var: pd.DataFrame | None = None
) -> np.ndarray | None:
    """Return the positions of the regulators, int64; None: every gene may regulate.

    names [N]: of the genes.
    choice: `data.regulators`.
    var: see choose.
    Raises DataError where no listed regulator is found.
    """
    if choice == "all":
        return None
    return _found(listed_genes(choice, "data.regulators"), names, "data.regulators", var=var)


def _found(
    listed: Sequence[str],
    names: Sequence[str],
    field: str,
    where: str = "in the data",
    var: pd.DataFrame | None = None,
) -> np.ndarray:
    """Return the positions of the listed genes among the names, int64.

    field: of the configuration, that lists them.
    where: the place of the names, for the error.
    var: see choose.
    Raises DataError where none is found.
    """
    found = np.flatnonzero(np.isin(names, listed)).astype(np.int64)
    if found.size == 0:
        problem = (
            f"None of the genes of {{field}} ({examples(listed)}) is {where} ({examples(names)})"
        )
        key, number = ("", 0) if var is None else column_with(listed, var)
        advice = (
            near_miss(listed, names)
            or "use other genes, or set data.gene_key to a column of var with such names"
        )
        if number:
            advice = f"set data.gene_key to {key}, which has {number} of them"
        raise DataError(problem, field=field, advice=advice)
    return found


def refuse_cells_as_genes(names: Sequence[str], cells: Sequence[str], where: str) -> None:
    """Raise DataError where most genes are named like cells and most cells are not. (Where genes
    are short sequences, both are.)

    names, cells: the names of genes and of cells.
    where: the name of the data in messages.
    """
    if (example := first_of_most(names, OF_CELLS)) and not first_of_most(cells, OF_CELLS):
        problem = f"The genes of {where} are named like cells ({example!r})"
        raise DataError(
            problem, field="data.path", advice="transpose it, so that a row is a cell (adata.T)"
        )


def first_of_most(names: Sequence[str], pattern: re.Pattern[str]) -> str:
    """Return the first name that matches, if more than half of the names do; else an empty text."""
    matching = [name for name in names if pattern.fullmatch(name)]
    return matching[0] if 2 * len(matching) > len(names) else ""


def near_miss(wanted: Iterable[str], known: Iterable[str]) -> str | None:
    """Return a text about wanted names that nearly match known ones: how many they are, how they
    differ, and what to do. None where there are none.
    """
    known = list(map(str, known))
    exact = set(known)
    wanted = [name for name in dict.fromkeys(map(str, wanted)) if name not in exact]
    for form, why in (
        (plain, "spaces or unusual characters ({}); correct the names"),
        (
            str.casefold,
            "upper and lower case ({}), as mouse and human symbols do; use the names of one "
            "species",
        ),
        (
            without_version,
            "the versions of their Ensembl ids ({}); write both with them or both without",
        ),
        (
            as_r_writes,
            "signs that R replaces ({}); write the names as they were (in R: check.names = FALSE)",
        ),
    ):
        own = {form(name): name for name in reversed(known)}
        if near := [name for name in wanted if form(name) in own]:
            how_many = "1 name differs" if len(near) == 1 else f"{len(near)} names differ"
            return f"{how_many} only in " + why.format(f"{near[0]!a} and {own[form(near[0])]!a}")
    return None


def plain(name: str) -> str:
    """Return a name without spaces and invisible characters, and with - for every dash."""
    letters = unicodedata.normalize("NFKC", name)
    kinds = [(letter, unicodedata.category(letter)) for letter in letters]
    return "".join(
        "-" if kind == "Pd" else letter for letter, kind in kinds if kind not in ("Zs", "Cf")
    )


def without_version(name: str) -> str:
    """Return an Ensembl id without its version; any other name as it is."""
    return name.partition(".")[0] if ENSEMBL_ID.fullmatch(name) else name


def as_r_writes(name: str) -> str:
    """Return a name as R's make.names writes it, with a dot for every sign. Names in which Seurat
    wrote - for _ become equal to it, too.
    """
    dotted = re.sub(r"[^0-9A-Za-z.]", ".", name)
    return f"X{dotted}" if dotted[:1].isdigit() else dotted


def examples(names: Sequence[str], most: int = 3) -> str:
    """Return a text of names in quotes: at most so many of them."""
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")
