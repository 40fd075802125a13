"""The universe: the pairs of regulator and gene on which networks are scored, and the true edges among them.

Letters: R regulators, N genes, K true edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from grn.cells.genes import near_miss
from grn.errors import DataError


@dataclass(frozen=True)
class Universe:
    """Every ordered pair of a regulator and another gene.

    regulators [R], genes [N]: sorted names; every regulator is one of the genes.
    edges: K rows source, target, sign (+1, -1; 0: unknown), each pair once, no self loops.
    left_out: number of edges of the reference with a gene outside of those to which it is restricted.
    """

    regulators: pd.Index
    genes: pd.Index
    edges: pd.DataFrame
    left_out: int

    @property
    def pairs(self) -> int:
        return len(self.regulators) * (len(self.genes) - 1)

    @property
    def density(self) -> float:
        """Share of the pairs that are true edges: the precision of guessing."""
        return len(self.edges) / self.pairs

    def codes(self, table: pd.DataFrame) -> np.ndarray:
        """A number for the pair (source, target) of each row, int64; -1 for self loops and pairs outside."""
        source = self.regulators.get_indexer(table["source"])
        target = self.genes.get_indexer(table["target"])
        inside = (source >= 0) & (target >= 0) & (table["source"].to_numpy() != table["target"].to_numpy())
        return np.where(inside, source.astype(np.int64) * len(self.genes) + target, -1)

    def with_edges(self, reference: pd.DataFrame) -> Universe:
        """The same pairs with other true edges (source, target, sign), as those of one cell type. They may be none."""
        edges = unique_edges(reference)
        named = edges["source"].isin(self.genes) & edges["target"].isin(self.genes)
        inside = edges[self.codes(edges) >= 0].reset_index(drop=True)
        return replace(self, edges=inside, left_out=int((~named).sum()))


def make_universe(
    reference: pd.DataFrame, regulators: Iterable[str] | str | None = None, genes: Iterable[str] | None = None
) -> Universe:
    """The universe of a reference (source, target, sign), as in BEELINE (Pratapa et al. 2020).

    genes: restricts it to true edges between these genes, as a reference may name genes that were not measured.
    regulators: None: every gene of the reference; "reference": the genes that regulate in it; else names, of which
    those in the reference are used. Raises DataError where no true edge is left.
    """
    edges = unique_edges(reference)
    whole, left_out = edges, 0
    measured = None if genes is None else pd.Index(genes).unique()
    if measured is not None:
        inside = edges["source"].isin(measured) & edges["target"].isin(measured)
        left_out = int((~inside).sum())
        edges = edges[inside]
    if edges.empty:
        raise DataError(_no_edge_between(measured, whole))
    named = pd.Index(pd.unique(pd.concat([edges["source"], edges["target"]]))).sort_values()
    if regulators is None:
        chosen = named
    elif isinstance(regulators, str):
        chosen = pd.Index(edges["source"].unique()).sort_values()
    else:
        listed = pd.Index(list(regulators))
        chosen = named[named.isin(listed)]
        kept = edges["source"].isin(chosen)
        if not kept.any():
            near = near_miss(map(str, listed), map(str, pd.unique(edges["source"])))
            raise DataError(
                f"None of the {len(listed)} regulators has an edge in the reference, whose regulators are named like "
                f"{edges['source'].iloc[0]!r}; {near or 'give names as they are in the reference'}.",
                field="regulators",
            )
        edges = edges[kept]
    return Universe(chosen, named, edges.reset_index(drop=True), left_out)


def _no_edge_between(measured: pd.Index | None, edges: pd.DataFrame) -> str:
    """Why a restriction to some genes, `measured`, leaves no edge of the reference, and what to do."""
    if measured is None or edges.empty:
        return "The reference has no edge between two different genes; give one with such edges."
    found = f"No edge of the reference is between two of the {len(measured)} genes that are scored"
    if near := near_miss(map(str, pd.unique(pd.concat([edges["source"], edges["target"]]))), map(str, measured)):
        return f"{found}, but {near}."
    return (
        f"{found}: these are named like {', '.join(measured[:1])!r}, and it has {str(edges['source'].iloc[0])!r} to "
        f"{str(edges['target'].iloc[0])!r}; use the same kind of names in both, or score more genes."
    )


def unique_edges(reference: pd.DataFrame) -> pd.DataFrame:
    """Each pair once, without self loops; the sign of a pair that is listed with both signs is unknown (0)."""
    table = reference.loc[reference["source"] != reference["target"], ["source", "target", "sign"]]
    by_pair = table.groupby(["source", "target"], sort=False)["sign"]
    # Where a pair has both signs, its smallest and largest sign cancel; a known sign outweighs an unknown one.
    sign = np.sign(np.sign(by_pair.min()) + np.sign(by_pair.max())).astype(np.int64)
    return sign.rename("sign").reset_index()
