"""A prior network (motifs, ChIP, another tool's base network): which edges are candidates, or are
penalised less.

The fit penalises pairs that the prior does not list more, by as much as held-out cells say
(grn/evidence/prior_strength.py). To `restrict`, the network that was read is left with the listed
pairs alone, as pySCENIC prunes its modules by motifs.

Letters: N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from grn.cells.cells import Cells
from grn.cells.genes.names import near_miss
from grn.config.schema import NetworkConfig
from grn.edges.edge_table import find_columns, names, numbers, read_table, unknown_columns
from grn.edges.weights import Network
from grn.runtime.errors import DataError

COLUMNS = (
    ("source", "target"),
    ("TF", "target"),
    ("Gene1", "Gene2"),
    ("regulatoryGene", "targetGene"),
)
UNLISTED = 0.5  # of `weigh`: the factor of pairs that the prior does not list
Use = Literal["restrict", "weigh"]


@dataclass(frozen=True)
class Prior:
    """Prior knowledge of pairs of genes.

    factor [N, R]: 0 to 1; 0: no candidate.
    listed: pairs of the file among the genes.
    pairs: of the file.
    use: restrict | weigh.
    path: of the file.
    """

    factor: np.ndarray
    listed: int
    pairs: int
    use: Use
    path: str

    @property
    def strength(self) -> np.ndarray:
        """[N, R], what the fit knows: 0 for a pair that is not listed, and up to 1, by the weights
        of the file.
        """
        return self.factor if self.use == "restrict" else (self.factor - UNLISTED) / (1 - UNLISTED)

    def applied(self, network: Network) -> Network:
        """Return the network of the candidates; other pairs have the weight 0, the confidence 0.5
        and the q-value 1.
        """
        if self.use == "weigh":
            return network
        none = self.factor == 0

        def kept(values: np.ndarray, otherwise: float) -> np.ndarray:
            return np.where(none, otherwise, values).astype(values.dtype)

        return replace(
            network,
            weight=kept(network.weight, 0),
            sd=kept(network.sd, 0),
            total=kept(network.total, 0),
            confidence=None if network.confidence is None else kept(network.confidence, 0.5),
            q=None if network.q is None else kept(network.q, 1),
            of_states={name: self.applied(of) for name, of in network.of_states.items()},
        )

    def candidates(
        self, table: pd.DataFrame, genes: tuple[str, ...], regulators: np.ndarray
    ) -> pd.DataFrame:
        """Return the rows of an edge table whose pairs are candidates."""
        if self.use == "weigh":
            return table
        rows = pd.Index(genes, dtype=object).get_indexer(table["target"])
        columns = pd.Index(np.asarray(genes, dtype=object)[regulators]).get_indexer(table["source"])
        return table[self.factor[rows, columns] > 0].reset_index(drop=True)


def read_prior(path: str, use: Use, genes: tuple[str, ...], regulators: Sequence[str]) -> Prior:
    """Return the prior in a csv, tsv or parquet file with the columns source, target and, if it
    likes, weight.

    regulators [R]: the gene of each key; of a screen, guides are keys of their own, and have the
        pairs of their gene.
    Raises DataError where the file cannot be read, or no pair is among the genes.
    """
    sources, key = np.unique(np.array(regulators, object), return_inverse=True)
    table = read_table(Path(path))
    columns = find_columns(table, COLUMNS)
    if columns is None:
        raise unknown_columns(path, table, COLUMNS[:1])
    source, target = (names(path, table[name]) for name in columns)
    row = pd.Index(genes, dtype=object).get_indexer(target)
    column = pd.Index(sources).get_indexer(source)
    size = np.ones(len(table))
    if weight := find_columns(table, [("weight",)]):
        size = np.abs(numbers(path, table[weight[0]]))
    here = (row >= 0) & (column >= 0) & (np.asarray(source) != np.asarray(target)) & (size > 0)
    if not here.any():
        raise DataError(
            f"None of the {len(table)} edges of {path} ({{field}}) is from a regulator to another "
            f"gene of these cells",
            field="network.prior",
            advice=near_miss([*source, *target], genes)
            or f"its sources must be named like the regulators, such as {regulators[0]!r}",
        )
    strength = np.zeros((len(genes), len(sources)), np.float32)
    np.maximum.at(strength, (row[here], column[here]), size[here] / size[here].max())
    listed, strength = int((strength > 0).sum()), strength[:, key]
    if use == "restrict":
        factor = (strength > 0).astype(np.float32)  # a candidate is one, whatever its weight
    else:
        factor = np.where(strength > 0, UNLISTED + (1 - UNLISTED) * strength, UNLISTED).astype(
            np.float32
        )
    return Prior(factor, listed, len(table), use, path)


def prior_of(settings: NetworkConfig, cells: Cells) -> Prior:
    """Return the prior of a configuration, for the genes and regulators of the cells. Raises
    DataError.
    """
    assert settings.prior is not None
    gene = np.array(cells.vocabulary, object)
    if (done := cells.interventions) is not None:
        gene[done.key] = done.names
    regulators = gene if cells.regulators is None else gene[cells.regulators]
    return read_prior(settings.prior, settings.prior_use, cells.vocabulary, regulators.tolist())


def summary(prior: Prior) -> str:
    """Return a sentence about the prior."""
    others = {
        "restrict": "are no candidates",
        "weigh": "are penalised more by the fit, where that helps",
    }
    return (
        f"The prior {prior.path} lists {prior.listed} of {prior.factor.size} pairs of a regulator "
        f"and a gene ({prior.pairs} in the file); the others {others[prior.use]}."
    )
