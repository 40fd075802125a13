"""Programmes: groups of genes that rise and fall together in most tissues, whatever regulates them.

Ribosomal genes follow growth and the depth; mitochondrial genes follow damage; heat shock and
immediate-early genes follow the way in which cells were taken out of a tissue; haemoglobin follows
burst red cells. An edge to such a target may be true, and is rarely the one that was asked for. The
lists are files in programme_lists, each with its source. A gene in several lists belongs to the
programme that is the first of them in NAMES.

Letters: C cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import get_args

import numpy as np
import pandas as pd

from grn.config.schema import Programme

NAMES: tuple[str, ...] = get_args(Programme)
LEAST_SD = 1e-6
# above this share of its weight in one programme, a regulator's activity is the programme's
MOSTLY = 0.5


def programme_of(gene: str) -> str:
    """Return the programme of a gene by its symbol, human or mouse, in upper or lower case; "" for
    none.

    >>> names = ["RPL13A", "Rpl13a", "RPS6KA1", "mt-Co1", "MT.CO1", "Hspa1a", "STAT1"]
    >>> [programme_of(name) for name in names]
    ['ribosomal', 'ribosomal', '', 'mitochondrial', 'mitochondrial', 'heat_shock', '']
    """
    name = gene.upper().replace(".", "-")  # R writes a dot for a hyphen
    return next((programme for programme in NAMES if _rule(programme).holds(name)), "")


def programmes_of(genes: Iterable[str]) -> np.ndarray:
    """Return the programme of each gene, an array of str objects; "" for none."""
    names = pd.Series(list(genes), dtype=object).astype(str)
    known: Mapping[str, str] = {name: programme_of(name) for name in names.unique()}
    return names.map(known).to_numpy(object)


def with_programme(edges: pd.DataFrame) -> pd.DataFrame:
    """Add the column programme, of each edge's target, to a table of edges, before `between` and
    `cells`; return the table.
    """
    place = next(
        (place for place, name in enumerate(edges.columns) if name in ("between", "cells")),
        edges.shape[1],
    )
    edges.insert(place, "programme", programmes_of(edges["target"]))
    return edges


def sentence(targets: Iterable[str]) -> str:
    """Return a sentence about the certain edges with a target in a programme; "" where there are
    none.

    targets: one for each certain edge.

    >>> sentence(["RPL3", "RPS2", "FOS", "STAT1"])
    'Of 4 certain edges, 3 (75 %) have a target of a common programme, \
rarely the regulation that is asked for: \
ribosomal 2, immediate-early 1.'
    """
    found = pd.Series(programmes_of(targets), dtype=object)
    inside = found[found != ""].value_counts()  # the largest first
    if inside.empty:
        return ""
    said = ", ".join(f"{in_words(str(name))} {number}" for name, number in inside.items())
    have = "has" if inside.sum() == 1 else "have"
    return (
        f"Of {len(found)} certain edges, {inside.sum()} ({inside.sum() / len(found):.0%}) {have} a "
        "target of a common "
        f"programme, rarely the regulation that is asked for: {said}.".replace("%)", " %)")
    )


def mostly_of(regulons: pd.DataFrame, genes: pd.Index) -> dict[str, str]:
    """Return, by regulator, the programme that has more than MOSTLY of the weight of its targets;
    other regulators are left out.

    regulons: a table of edges: source, target, weight.
    genes: of the cells; other targets do not count.
    """
    there = regulons[regulons["target"].isin(genes)].drop_duplicates(["source", "target"])
    size = there["weight"].abs()
    own = size.groupby(
        [there["source"], pd.Series(programmes_of(there["target"]), there.index)]
    ).sum()
    share = own / own.groupby(level=0).transform("sum")
    return {str(source): str(name) for source, name in share[share > MOSTLY].index if name}


def parts_of(programme: str, genes: Iterable[str]) -> list[np.ndarray]:
    """Return the positions of the genes of each part of a programme. The cell cycle has two parts,
    its phases; other programmes have one. Parts without a gene are left out.
    """
    names = [gene.upper().replace(".", "-") for gene in genes]
    found = (np.flatnonzero([rule.holds(name) for name in names]) for rule in _parts_of(programme))
    return [part for part in found if len(part)]


def score(values: np.ndarray) -> np.ndarray:
    """Return a programme's score in each cell, float32 [C]: the mean of its standardised genes.

    values [C, n]: multiplicities of its n genes.
    """
    sd = values.std(0)
    return ((values - values.mean(0)) / np.where(sd > LEAST_SD, sd, 1)).mean(1).astype(np.float32)


def in_words(programme: str) -> str:
    """Return the name of a programme as a sentence writes it.

    >>> in_words("immediate_early"), in_words("heat_shock")
    ('immediate-early', 'heat shock')
    """
    return programme.replace("immediate_early", "immediate-early").replace("_", " ")


class Rule:
    """The genes of one list: whole names, and beginnings of names except some.

    lines: a name; or its beginning and *; or, with a ! before it, an exception.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        entries = [line.strip() for line in lines if line.strip() and line[0] not in "#["]
        listed = [entry for entry in entries if not entry.startswith("!")]
        self.names = frozenset(entry for entry in listed if not entry.endswith("*"))
        self.beginnings = tuple(entry[:-1] for entry in listed if entry.endswith("*"))
        self.exceptions = tuple(entry[1:].rstrip("*") for entry in entries if entry.startswith("!"))

    def holds(self, name: str) -> bool:
        """Return whether a gene is in the list. name: in upper case."""
        begins = bool(self.beginnings) and name.startswith(self.beginnings)
        return name in self.names or (
            begins and not (self.exceptions and name.startswith(self.exceptions))
        )


@cache
def _rule(programme: str) -> Rule:
    """Return the genes of a programme."""
    return Rule(_list_of(programme).splitlines())


@cache
def _parts_of(programme: str) -> list[Rule]:
    """Return the genes of each part of a programme, which headings in brackets divide."""
    parts = re.split(r"^\[.*\]$", _list_of(programme), flags=re.MULTILINE)
    return [Rule(part.splitlines()) for part in (parts[1:] or parts)]


def _list_of(programme: str) -> str:
    """Read the list of a programme."""
    return (
        files("grn.cells.genes").joinpath("programme_lists", f"{programme}.txt").read_text("utf-8")
    )
