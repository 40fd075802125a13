"""The genes that have an edge, as the nodes of a graph."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd


def nodes_of(edges: pd.DataFrame) -> dict[str, bool]:
    """Each gene with an edge, and whether it regulates one: regulators first, in the order of the edges."""
    sources, targets = (pd.unique(edges[end]) for end in ("source", "target"))
    return {str(gene): True for gene in sources} | {str(gene): False for gene in targets if gene not in set(sources)}


def known_numbers(edge: dict[str, Any], names: list[str]) -> dict[str, float]:
    """The numbers of an edge that are no NaN, which JSON cannot hold."""
    return {name: float(edge[name]) for name in names if not math.isnan(edge[name])}
