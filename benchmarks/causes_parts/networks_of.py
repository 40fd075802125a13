"""The networks of grn and of simple methods, of the same cells: source, target, weight.

Letters: C cells, N genes, T interventions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from interventions import COMPONENTS, PENALTY, Screen
from peers.cached import PreparedSet, run_peer
from peers_by_type import ridge_within
from sets import digest, folder

from grn.networks.baselines import pearson

VARIABLE, SEEN = 500, 0.05  # genes of Kang's cells, and the share of cells that have a factor


@dataclass(frozen=True, eq=False)
class Observed:
    """Cells that methods learn from.

    counts, values [C, N]: raw, and log1p of counts scaled to one total.
    group [C]: type or replicate, within which cells are alike.
    """

    name: str
    counts: np.ndarray
    values: np.ndarray
    genes: list[str]
    regulators: list[str]
    group: np.ndarray


def kang() -> tuple[Observed, np.ndarray]:
    """Return Kang's cells, of the genes that vary most and of the factors that many cells have,
    and each cell's condition.
    """
    import anndata

    adata = anndata.read_h5ad(folder() / "kang_ifnb.h5ad")
    counts = adata.X.toarray().astype(float)
    total = counts.sum(1, keepdims=True)
    values = np.log1p(counts / total * np.median(total))
    factor = np.isin(adata.var_names, (folder() / "human_tfs.txt").read_text().split())
    factor &= (counts > 0).mean(0) > SEEN
    kept = factor.copy()
    kept[np.argsort(-values.var(0), kind="stable")[:VARIABLE]] = True
    genes = list(map(str, adata.var_names[kept]))
    group = adata.obs["cell_type_predicted"].to_numpy(str)
    observed = Observed(
        "kang", counts[:, kept], values[:, kept], genes, list(adata.var_names[factor]), group
    )
    return observed, adata.obs["condition"].to_numpy(str)


def papalexi(screen: Screen, training: np.ndarray) -> Observed:
    """Return the screen's training cells; regulators are known factors and genes that were
    intervened on.
    """
    factors = set((folder() / "human_tfs.txt").read_text().split()) | set(screen.targets)
    left = "+".join(sorted(set(screen.replicate[training])))
    return Observed(
        f"papalexi_{left}",
        screen.adata.X[np.flatnonzero(training)].toarray().astype(float),
        screen.values[training],
        screen.genes,
        [gene for gene in screen.genes if gene in factors],
        screen.replicate[training],
    )


def correlations(cells: Observed, cache: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the networks of methods that know nothing of interventions."""
    given = cells.values, cells.genes, cells.regulators
    yield "Pearson", pearson(*given)
    yield "ridge within types", ridge_within(cells.values, list(cells.group), *given[1:])
    values = cells.values.astype(np.float32)
    prepared = PreparedSet(
        cells.name,
        values,
        cells.genes,
        cells.regulators,
        digest(cells.counts, cells.genes, "log1p at the mean total"),
    )
    yield "GRNBoost2", run_peer("grnboost2", prepared, folder=cache)[0]


def interventional(screen: Screen, training: np.ndarray) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the networks of methods that learn from interventions: an edge's weight is the change
    that its source's loss makes, with the other sign.
    """
    changes = measured_changes(screen, training)
    genes, sd = screen.genes, screen.values[training].std(0) + 1e-9
    sources = [gene for gene in screen.targets if gene in genes]
    mean = np.mean(list(changes.values()), axis=0) / sd
    yield "mean of all", _table({source: -mean for source in sources}, genes)
    linear = Embeddings.of(screen.values[training], genes, changes)
    yield "linear, embeddings", _table({each: -linear.change(each) / sd for each in sources}, genes)
    own = {source: -changes[source] / sd for source in sources if source in changes}
    yield "mean change", _table(own, genes)


def _table(weights: dict[str, np.ndarray], genes: list[str]) -> pd.DataFrame:
    table = pd.DataFrame(weights, index=genes).rename_axis("target").reset_index()
    table = table.melt("target", var_name="source", value_name="weight")
    return table[table["source"] != table["target"]].reset_index(drop=True)


def measured_changes(screen: Screen, training: np.ndarray) -> dict[str, np.ndarray]:
    """Return the mean change of every intervention [N] of some cells, in log multiplicities."""
    control = screen.values[training & screen.control].mean(0)
    return {
        target: screen.values[training & (screen.target == target)].mean(0) - control
        for target in screen.targets
        if (training & (screen.target == target)).any()
    }


@dataclass(frozen=True)
class Embeddings:
    """A linear model of changes from gene embeddings, change = sd (E W E_j + mean): leading
    directions of the correlations as E, W by ridge. Source: Ahlmann-Eltze et al. 2025.
    """

    genes: list[str]
    sd: np.ndarray
    embedding: np.ndarray  # [N, D]
    slopes: np.ndarray  # [D, D]
    mean: np.ndarray  # [N], in sds

    @classmethod
    def of(cls, values: np.ndarray, genes: list[str], changes: dict[str, np.ndarray]) -> Embeddings:
        sd = values.std(0) + 1e-9
        z = (values - values.mean(0)) / sd
        size, vectors = np.linalg.eigh(z.T @ z / len(z))
        embedding = vectors[:, -COMPONENTS:] * np.sqrt(size[-COMPONENTS:])
        known = [name for name in changes if name in genes]
        effects = np.stack([changes[name] / sd for name in known])
        perturbed = embedding[[genes.index(name) for name in known]]
        left, right = (
            each.T @ each + PENALTY * np.eye(COMPONENTS) for each in (embedding, perturbed)
        )
        mean = effects.mean(0)
        apart = embedding.T @ (effects - mean).T @ perturbed
        slopes = np.linalg.solve(left, apart) @ np.linalg.inv(right)
        return cls(genes, sd, embedding, slopes, mean)

    def change(self, gene: str) -> np.ndarray:
        """Return the change [N] after the loss of a gene, in log multiplicities."""
        own = self.embedding[self.genes.index(gene)]
        return self.sd * (self.embedding @ self.slopes @ own + self.mean)
