"""The edges that are written: chosen from a network by their weight, confidence, q-value, sign, regulators and
targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from grn.cells.genes import near_miss, refuse_control_characters
from grn.errors import DataError
from grn.networks.signed_network import sign_has_meaning

NUMBERS = ("weight", "within", "between", "indirect", "confidence", "q_value")
"""Columns of edge tables that are numbers; read-outs lack some of them."""


@dataclass(frozen=True)
class ChosenEdges:
    """edges: source, target, weight and those of NUMBERS that are known, by falling |weight|, without weights of 0.

    genes: all genes of the network, those without an edge too.   about: uns["grn"] of the network, of which `sign` says
    what the signs mean.   cells: which cells the network is of, in words.   absent, absent_targets: regulators and
    targets that were asked for and have no edge in the network.
    """

    edges: pd.DataFrame
    genes: tuple[str, ...]
    about: dict
    cells: str = "all cells"
    absent: tuple[str, ...] = ()
    absent_targets: tuple[str, ...] = ()

    @property
    def signed(self) -> bool:
        return sign_has_meaning(str(self.about.get("sign", "")))

    @property
    def numbers(self) -> list[str]:
        return [name for name in NUMBERS if name in self.edges]


@dataclass(frozen=True)
class Filters:
    """What an edge must have to be written; None: anything. top_k is applied last: it counts the edges that are left.

    min_weight: least |weight|.   min_confidence: 0 to 1.   max_q_value: 0 to 1.   sign: up | down.
    regulators, targets: names.   top_k: most regulators of a target.
    """

    min_weight: float | None = None
    min_confidence: float | None = None
    max_q_value: float | None = None
    sign: str | None = None
    regulators: Sequence[str] | None = None
    top_k: int | None = None
    targets: Sequence[str] | None = None


def choose(
    edges: pd.DataFrame, genes: Sequence[str], about: dict, filters: Filters, *, cells: str = "all cells"
) -> ChosenEdges:
    """The edges that pass all filters. edges: a table as in edges.parquet; others as in ChosenEdges.

    Raises DataError where none passes, where a column is needed that the network lacks, and where a sign is asked for
    that means nothing.
    """
    known = ["source", "target", *(name for name in NUMBERS if name in edges and edges[name].notna().any())]
    chosen = edges.loc[edges["weight"] != 0, known]
    everything = ChosenEdges(chosen, tuple(map(str, genes)), about, cells)
    if filters.sign is not None and not everything.signed:
        raise DataError(f"--sign is {filters.sign}, but the signs of these weights mean nothing; leave it out.")
    if chosen.empty:
        raise DataError("The network has no edge whose weight is not 0; train with more cells or genes.")
    refuse_control_characters(pd.unique(pd.concat([chosen["source"], chosen["target"]])).tolist())
    for option, value, column, passes in (
        ("--regulators", filters.regulators, "source", lambda found, names: found.isin(list(names))),
        ("--targets", filters.targets, "target", lambda found, names: found.isin(list(names))),
        ("--sign", filters.sign, "weight", lambda found, sign: found > 0 if sign == "up" else found < 0),
        ("--min-weight", filters.min_weight, "weight", lambda found, least: found.abs() >= least),
        ("--min-confidence", filters.min_confidence, "confidence", lambda found, least: found >= least),
        ("--max-q-value", filters.max_q_value, "q_value", lambda found, most: found <= most),
    ):
        if value is None:
            continue
        if column not in chosen:
            raise DataError(f"{option} is {value}, but this network has no column {column}; leave {option} out.")
        left = chosen[passes(chosen[column], value)]
        if left.empty:
            raise DataError(_none_left(option, value, column, chosen))
        chosen = left
    chosen = chosen.iloc[np.argsort(-chosen["weight"].abs().to_numpy(), kind="stable")]
    if filters.top_k is not None:
        chosen = chosen[chosen.groupby("target", sort=False, observed=True).cumcount() < filters.top_k]
    absent = (
        tuple(sorted(set(names or ()) - set(edges[column].astype(str))))
        for names, column in ((filters.regulators, "source"), (filters.targets, "target"))
    )
    return ChosenEdges(chosen.reset_index(drop=True), everything.genes, about, cells, *absent)


def _none_left(option: str, value: object, column: str, edges: pd.DataFrame) -> str:
    start = f"No edge is left: of {len(edges)}, none passes {option}"
    if column in ("source", "target"):
        names = [str(name) for name in value] if isinstance(value, (list, tuple)) else [str(value)]
        some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        first = ", ".join(map(repr, pd.unique(edges[column])[:3]))
        near = near_miss(names, map(str, pd.unique(edges[column])))
        kind = option.removeprefix("--")
        return f"{start} ({some}); {near or f'{kind} with edges are named like {first}'}."
    if option == "--sign":
        return f"{start} {value}; leave it out."
    values = edges[column].abs()
    limit = (
        f"the smallest is {values.min():.6g}" if option.startswith("--max") else f"the largest is {values.max():.6g}"
    )
    return f"{start} {value}, as {limit}; give a weaker limit."
