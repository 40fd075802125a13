"""Reads reference networks, from files and from memory: the truth of a simulation, curated or measured edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from grn.analysis.evaluation.universe import unique_edges
from grn.errors import DataError
from grn.networks.edge_tables import (
    Columns,
    cell_types,
    find_columns,
    names,
    numbers,
    read_table,
    refuse_twin_columns,
    unknown_columns,
)

WORDS = {"+": 1, "activation": 1, "-": -1, "repression": -1, "unknown": 0, "?": 0, "": 0}

# The columns of each format; formats with more columns come first. The third column holds the sign, as word or number.
TRRUST: tuple[Columns, ...] = (("TF", "Target", "Regulation"), ("0", "1", "2", "3"))
PLANTED: tuple[Columns, ...] = (("source", "target", "sign"),)
DECOUPLER: tuple[Columns, ...] = (("source", "target", "weight"), ("source", "target", "mor"))
BEELINE: tuple[Columns, ...] = (("Gene1", "Gene2", "Type"),)
UNSIGNED: tuple[Columns, ...] = (("Gene1", "Gene2"), ("source", "target"))
FORMATS = {"TRRUST": TRRUST, "planted": PLANTED, "decoupler": DECOUPLER, "BEELINE": BEELINE, "unsigned": UNSIGNED}
CURATED = ("TRRUST", "decoupler")


@dataclass(frozen=True)
class ReferenceNetwork:
    """edges: source, target, sign, each pair once, no self loops.   format: a key of FORMATS.

    conflicts: pairs listed with both signs, which count as unknown.
    by_type: edges of each cell type, by label; empty where the table has no column cell_type. `edges` are their union.
    """

    edges: pd.DataFrame
    format: str
    conflicts: int
    by_type: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def curated(self) -> bool:
        """Whether the signs were curated rather than planted or measured, which the format shows."""
        return self.format in CURATED


def open_reference_file(path: Path) -> ReferenceNetwork:
    """A table (csv, tsv, parquet), TRRUST's also without a header; see reference_of_table. Raises DataError."""
    path = Path(path)
    if path.is_dir() and not path.name.lower().endswith((".parquet", ".pq")):
        raise DataError(
            f"{path} is a folder, where a table of the true edges is expected; give the network first, and the "
            "table after it."
        )
    return reference_of_table(read_table(path), path)


def reference_of_table(table: pd.DataFrame, where: Path | str) -> ReferenceNetwork:
    """A table with the columns of one of FORMATS; `where` names it in errors.

    A pair that is listed with both signs has sign 0; with one sign and as unknown, it has that sign. A column cell_type
    gives each label edges of its own. Raises DataError.
    """
    refuse_twin_columns(where, table)
    table = table.rename(columns=str)
    found = ((name, find_columns(table, accepted)) for name, accepted in FORMATS.items())
    name, columns = next((each for each in found if each[1]), ("", None))
    if columns is None:
        shown = [*TRRUST[:1], *PLANTED, *DECOUPLER[:1], *BEELINE, *UNSIGNED[:1]]
        raise unknown_columns(where, table, shown)
    edges = pd.DataFrame({"source": names(where, table[columns[0]]), "target": names(where, table[columns[1]])})
    if name == "unsigned":
        edges["sign"] = 0
    elif name == "decoupler":
        edges["sign"] = np.sign(numbers(where, table[columns[2]])).astype(np.int64)
    else:
        edges["sign"] = _signs(where, table[columns[2]])
    unique = unique_edges(edges)
    if unique.empty:
        raise DataError(f"{where} has no edge between two different genes; give a reference with such edges.")
    labels = cell_types(where, table)
    by_type = {} if labels is None else {label: unique_edges(edges[labels == label]) for label in pd.unique(labels)}
    return ReferenceNetwork(unique, name, _conflicts(edges), by_type)


def _signs(where: Path | str, column: pd.Series) -> np.ndarray:
    """Signs from the words in WORDS, or from numbers equal to 1, -1 or 0; a missing sign is unknown (0)."""
    words = column.astype(str).str.strip().str.casefold().mask(column.isna(), "")
    values = pd.to_numeric(words, errors="coerce")
    signs = words.map(WORDS).fillna(values.where(values.isin([-1, 0, 1])))
    if signs.isna().any():
        first = int(signs.isna().to_numpy().argmax())
        raise DataError(
            f"{where}, row {first + 1}: {column.name} is {str(column.iloc[first])!r}, which is not a sign; write one "
            f"of {_listed(['+', '-', '?', 'Activation', 'Repression', 'Unknown', '1', '-1', '0'])}."
        )
    return signs.to_numpy(dtype=np.int64)


def _conflicts(edges: pd.DataFrame) -> int:
    edges = edges[edges["source"] != edges["target"]]
    by_pair = edges.groupby(["source", "target"])["sign"]
    return int(((by_pair.min() < 0) & (by_pair.max() > 0)).sum())


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
