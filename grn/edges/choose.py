"""The edges of a network that are exported: chosen by weight, confidence, q-value, sign, regulators
and targets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grn.cells.genes.lists import read_gene_list
from grn.cells.genes.names import near_miss, refuse_control_characters
from grn.edges.signed_network import sign_has_meaning
from grn.runtime.errors import DataError
from grn.runtime.tables import does_not_exist

OBSERVED = (
    "weight",
    "sd",
    "effect",
    "effect_se",
    "q_value",
    "confidence",
    "between",
    "indirect",
    "cells",
)
NUMBERS = (*OBSERVED, "caused", "caused_low", "caused_high", "caused_q")
"""Columns of edge tables that are numbers; other programs' tables lack most of them."""
PROGRAMME = "programme"
"""The column of edge tables that is a text: of the target, see grn/cells/genes/programmes.py."""
COLUMNS = (*NUMBERS[:6], PROGRAMME, *NUMBERS[6:])
"""Both, in the order of tables."""


@dataclass(frozen=True)
class ChosenEdges:
    """edges: source, target, weight and those of NUMBERS and PROGRAMME that are known, the most
    certain first, then by falling |weight|, without weights of 0.

    genes: all genes of the network, those without an edge too.
    about: uns["grn"] of the network, of which `sign` says what the signs mean.
    cells: which cells the network is of, in words.
    absent: the regulators and targets that were asked for and have no edge in the network, by
        filter.
    """

    edges: pd.DataFrame
    genes: tuple[str, ...]
    about: dict[str, Any]
    cells: str
    absent: dict[str, list[str]]

    @property
    def signed(self) -> bool:
        return sign_has_meaning(str(self.about.get("sign", "")))

    @property
    def numbers(self) -> list[str]:
        return [name for name in NUMBERS if name in self.edges]


COLUMN = {
    "regulators": "source",
    "targets": "target",
    "sign": "weight",
    "min_weight": "weight",
    "min_confidence": "confidence",
    "max_q_value": "q_value",
}
"""Filter -> the column that it looks at."""


def gene_names(
    choice: Sequence[str] | str | os.PathLike[str] | None, field: str
) -> list[str] | None:
    """Names of genes: a list of them, a file with one a line, or names with commas between them.

    Raises DataError.
    """
    if choice is None:
        return None
    if isinstance(choice, (str, os.PathLike)):
        text = os.fspath(choice)
        if Path(text).is_file():
            return read_gene_list(text, field)
        if re.search(r"[/\\]|\.(txt|csv|tsv|gz|list)$", text):  # a file, and no name
            raise DataError(
                does_not_exist(Path(text), "give {field} names, or a file with one a line."),
                field=field,
            )
        choice = re.split("[,;]", text)
    return [str(name).strip() for name in choice if str(name).strip()]


def choose(
    edges: pd.DataFrame,
    genes: Sequence[str],
    about: dict[str, Any],
    filters: Mapping[str, Any],
    *,
    cells: str = "all cells",
) -> ChosenEdges:
    """Return the edges that pass all filters.

    edges: a table as in edges.parquet; others as in ChosenEdges.

    filters: those of COLUMN and top_k, as `grn.export` has them; None: anything. top_k is applied
        last: it counts the edges that are left.
    Raises DataError where none passes, where a column is needed that the network lacks, and where a
    sign is asked for that means nothing.
    """
    columns = [
        "source",
        "target",
        *(name for name in COLUMNS if name in edges and edges[name].notna().any()),
    ]
    chosen = edges.loc[edges["weight"] != 0, columns]
    refuse_control_characters(pd.unique(pd.concat([chosen["source"], chosen["target"]])).tolist())
    for field, column in COLUMN.items():
        value = filters.get(field)
        if value is None:
            continue
        signs = field != "sign" or sign_has_meaning(str(about.get("sign", "")))
        if column not in chosen or not signs:
            lacking = (
                f"this network has no column {column}"
                if signs
                else "the signs of these weights mean nothing"
            )
            raise DataError(
                "{field} is " + f"{value}, but {lacking}", field=field, advice="leave it out"
            )
        found = chosen[column]
        if column in ("source", "target"):
            passes = found.isin(list(value))
        elif field == "sign":
            passes = found > 0 if value == "up" else found < 0
        else:
            passes = found <= value if field == "max_q_value" else found.abs() >= value
        left = chosen[passes]
        if left.empty:
            hint = None
            if column in ("source", "target"):
                known = [str(name) for name in pd.unique(found)]
                hint = (
                    near_miss([str(name) for name in value], known)
                    or f"names are like {', '.join(known[:3])}"
                )
            elif field != "sign":
                hint = f"their sizes are {found.abs().min():.6g} to {found.abs().max():.6g}"
            raise DataError(
                f"None of the {len(chosen)} edges passes {{field}} {value}",
                field=field,
                advice=hint,
            )
        chosen = left
    chosen = chosen.iloc[np.argsort(-chosen["weight"].abs().to_numpy(), kind="stable")]
    if (top_k := filters.get("top_k")) is not None:
        chosen = chosen[chosen.groupby("target", sort=False, observed=True).cumcount() < top_k]
    if "q_value" in chosen:
        chosen = chosen.iloc[np.argsort(chosen["q_value"].fillna(1).to_numpy(), kind="stable")]
    absent = {
        field: sorted(set(filters.get(field) or ()) - set(edges[COLUMN[field]].astype(str)))
        for field in ("regulators", "targets")
    }
    return ChosenEdges(chosen.reset_index(drop=True), tuple(map(str, genes)), about, cells, absent)
