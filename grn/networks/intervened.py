"""One column for a gene that has two keys: its messenger's, and that of the guides which took it
away.

What a regulator does is what the model says of its removal: the change of its messenger's key and
the guides' key together. In the unit of weights, the usual sd of a regulator, a loss of all of it
is mean / sd units. A gene that was not measured has its guides' key alone, and the typical mean /
sd of the others.

Letters: N genes, T of them intervened on, R regulators, n and r: of them after the merging.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from scipy.stats import hypergeom
from torch import Tensor

from grn.cells.cells import Cells
from grn.edges.weights import Network, Table
from grn.evidence.caused import Caused
from grn.evidence.q_values import SIGNIFICANT, Evidence

NOTHING = 0.2  # sds; an effect whose 95 % interval is within it is none
LEAST = 10  # effects of a gene whose place in the order is asked for
SHARED, CHANCE = (
    1 / 3,
    1e-3,
)  # least share of what a gene causes that one upstream of it does, and its p-value


@dataclass(frozen=True)
class Merge:
    """A map of the evidence of guides' keys to the genes that were intervened on.

    rows [n]: the genes that stay, positions in the vocabulary: those that were measured, and those
        that were intervened on without it.
    regulators [r]: positions among these rows.
    first [r]: the column [R] that a regulator's evidence is from: its messenger's key where it has
        one.
    pairs [2, T]: for each intervened gene, its guides' column among [R] and its regulator's among
        [r].
    names [n]: of the rows.
    intervened [T]: names.
    certain [N, T]: what the guides' weights are multiplied by; None: 1.
    """

    rows: np.ndarray
    regulators: np.ndarray
    first: np.ndarray
    pairs: np.ndarray
    names: tuple[str, ...]
    intervened: tuple[str, ...]
    sign: float
    certain: np.ndarray | None = None

    @classmethod
    def of(cls, cells: Cells, regulators: np.ndarray, caused: Caused | None = None) -> Merge | None:
        """regulators [R]: of the model, the guides' keys among them; None where nothing was done to
        the cells.

        caused: what their guides say counts as far as it is certain; None: as it is.
        """
        done = cells.interventions
        if done is None:
            return None
        rows = np.setdiff1d(np.arange(len(cells.vocabulary)), done.key[done.place >= 0])
        gene = np.where(done.place >= 0, done.place, done.key)  # whose regulator the guides' key is
        counted = regulators[~np.isin(regulators, done.key)]
        merged = np.unique(np.concatenate([counted, gene]))
        owner = dict(zip(gene.tolist(), done.key.tolist(), strict=True))
        keys = [each if each in set(counted.tolist()) else owner[each] for each in merged.tolist()]
        return cls(
            rows=rows,
            regulators=np.searchsorted(rows, merged),
            first=np.searchsorted(regulators, np.array(keys)),
            pairs=np.stack([np.searchsorted(regulators, done.key), np.searchsorted(merged, gene)]),
            names=tuple(cells.vocabulary[row] for row in rows),
            intervened=done.names,
            sign=done.sign,
            certain=None if caused is None else caused.certainty,
        )

    def map(
        self, mean: Tensor, sd: Tensor, units: Tensor, regulators: Tensor
    ) -> Callable[[Tensor], Tensor]:
        """Weights [.., N, R] for a usual sd of each key -> [.., n, r].

        mean, sd [N]: of all genes.
        units [R]: the usual sd of each key, in `sd`.
        regulators [R]: their positions.
        """
        rows = torch.as_tensor(self.rows, device=units.device)
        found = units.new_zeros(len(units), len(self.first))
        keys, columns = torch.as_tensor(self.pairs, device=units.device)
        first = torch.as_tensor(self.first, device=units.device)
        of_guides = torch.isin(first, keys)
        found[first[~of_guides], (~of_guides).nonzero()[:, 0]] = 1
        # sds of a regulator in its means
        usual = units * sd[regulators] / mean[regulators].clamp(min=1e-6)
        typical = usual[first[~of_guides]].median() if (~of_guides).any() else usual.new_ones(())
        scale = torch.where(of_guides[columns], typical, usual[first[columns]])
        whole = units[keys] * sd[regulators][keys]  # of the guides: how much of one a usual sd is
        found[keys, columns] = self.sign * scale / whole.clamp(min=1e-9)
        if self.certain is None:
            return lambda weights: weights[..., rows, :] @ found
        # The slope on the guides of few cells is noise, and a whole guide is many sds of it.
        factor = units.new_ones(len(mean), len(units))
        factor[:, keys] = torch.as_tensor(self.certain).to(factor)
        return lambda weights: (weights * factor)[..., rows, :] @ found

    def columns(self, table: Table) -> Table:
        """Return the columns of the regulators' own keys, [n, r] of [N, R]."""
        return table[self.rows][:, self.first]

    def observed(self, weights: np.ndarray) -> np.ndarray:
        """Of weights [N, R] those of the regulators' messengers, [n, r]; NaN of one without."""
        return np.where(np.isin(self.first, self.pairs[0]), np.nan, self.columns(weights))

    def evidence(self, found: Evidence) -> Evidence:
        tables = {name: self.columns(getattr(found, name)) for name in ("q", "confidence", "slope")}
        return replace(found, **tables)

    def with_caused(self, network: Network, caused: Caused) -> Network:
        """Return the network with what was caused; NaN for regulators that nobody intervened on."""

        def table(values: np.ndarray) -> np.ndarray:
            found = np.full(network.weight.shape, np.nan, np.float32)
            found[:, self.pairs[1]] = values[self.rows]
            return found

        return replace(
            network,
            caused=table(caused.effect),
            caused_low=table(caused.low),
            caused_high=table(caused.high),
            caused_q=table(caused.q),
        )


def compared(network: Network) -> list[str]:
    """Sentences: how many effects were caused, and how often observation had the sign or the
    direction wrong.
    """
    assert network.caused is not None and network.caused_q is not None, "the caller has asked"
    assert (
        network.caused_low is not None
        and network.caused_high is not None
        and network.observed is not None
    )
    caused = network.caused_q <= SIGNIFICANT
    lines = [
        f"{int(caused.sum())} effects of {int(np.isfinite(network.caused).any(0).sum())} "
        f"interventions at a false discovery rate of {SIGNIFICANT}, downstream effects among them."
    ]
    if network.q is not None:
        certain = (
            (network.q <= SIGNIFICANT) & np.isfinite(network.observed) & np.isfinite(network.caused)
        )
        both = certain & caused
        nothing = certain & (
            np.maximum(np.abs(network.caused_low), np.abs(network.caused_high)) < NOTHING
        )
        if both.any():
            wrong = float((np.sign(network.caused[both]) != np.sign(network.observed[both])).mean())
            lines.append(
                f"Of {int(certain.sum())} certain associations of regulators that were intervened "
                f"on, {int(both.sum())} are effects, of which observation has {wrong:.0%} with the "
                f"wrong sign; {nothing.sum() / certain.sum():.0%} are none, as the target moved by "
                f"less than {NOTHING} sds."
            )
    return lines


def order_of(caused: Caused, names: tuple[str, ...]) -> pd.DataFrame:
    """Return which intervened gene is upstream of which, by nested effects: columns source, target,
    shared, of_source, of_target.

    What a gene causes, those upstream of it cause, too. A row for each pair of intervened genes of
    which the first causes at least SHARED of what the second does, more than by chance, and a
    smaller share the other way round.
    Source: nested effects models, Markowetz et al. 2007.
    """
    sign = np.where(caused.q <= SIGNIFICANT, np.sign(caused.effect), 0)
    count, rows = np.abs(sign).sum(0), []
    for first in range(len(names)):
        for second in range(len(names)):
            if first != second and min(count[first], count[second]) >= LEAST:
                shared = float(((sign[:, first] == sign[:, second]) & (sign[:, first] != 0)).sum())
                of_first, of_second = shared / count[first], shared / count[second]
                chance = hypergeom.sf(shared - 1, len(sign), count[first], count[second])
                if of_second >= SHARED and of_second > of_first and chance < CHANCE:
                    rows.append((names[first], names[second], int(shared), of_first, of_second))
    table = pd.DataFrame(rows, columns=["source", "target", "shared", "of_source", "of_target"])
    return table.sort_values("of_target", ascending=False, kind="stable", ignore_index=True)


def in_words(upstream: pd.DataFrame) -> list[str]:
    """Return the strongest rows of `order_of` in a sentence; none where there is no row."""
    pairs = ", ".join(f"{row.source} -> {row.target}" for row in upstream.head(8).itertuples())
    return (
        [f"Upstream -> downstream, by effects that contain each other: {pairs}."] if pairs else []
    )
