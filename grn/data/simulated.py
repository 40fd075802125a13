"""Cells with a planted signed network: our own generator behind `path: "simulated:"`.

Regulators form a directed acyclic graph; the first of them, the masters, have a level per cell type. A regulated gene
is produced at sum_j k_ij h_ij, with h = hill(x_j) for an activator and 1 - hill(x_j) for a repressor, so that a gene
may have repressors alone. Production has log-normal noise, which the regulators hand on: it is what tells regulators
apart within a cell type. Counts are Poisson around production times the cell's size.

Letters: C cells, N genes, R regulators.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.config import SimulatedConfig
from grn.errors import ConfigError

TRUTH = "truth"  # uns key of the planted edges: a data frame with source, target, sign
STEEPNESS = 2.0  # Hill coefficient
MASTER_SD = 0.8  # sd of the log levels of a master over cell types
MEAN_SD = 0.5  # sd of the log mean expression over genes
SIZE_SD = 0.25  # sd of the log size over cells


def simulate(config: SimulatedConfig) -> AnnData:
    """Counts in X (CSR), obs["cell_type"], var["is_regulator"], the planted network in uns["truth"]."""
    if config.regulators >= config.genes:
        raise ConfigError(
            f"data.simulated.regulators {config.regulators} leaves no target among {config.genes} genes; "
            "it must be smaller than data.simulated.genes."
        )
    generator = np.random.default_rng(config.seed)
    network = _plant(config, generator)
    cell_type = np.arange(config.cells) % config.cell_types
    production = _produce(network, cell_type, config, generator)
    means = config.depth * _log_normal(generator, MEAN_SD, config.genes)
    sizes = _log_normal(generator, SIZE_SD, config.cells)
    counts = generator.poisson(production * means * sizes[:, None])
    names = _names(config)
    source, target = np.nonzero(network)
    return AnnData(
        sparse.csr_matrix(counts.astype(np.float32)),
        obs=pd.DataFrame(
            {"cell_type": pd.Categorical([f"type {number + 1}" for number in cell_type])},
            index=[f"cell{number + 1}" for number in range(config.cells)],
        ),
        var=pd.DataFrame({"is_regulator": np.arange(config.genes) < config.regulators}, index=names),
        uns={
            TRUTH: pd.DataFrame(
                {
                    "source": names[source],
                    "target": names[target],
                    "sign": np.sign(network[source, target]).astype(np.int64),
                },
                index=[str(edge) for edge in range(source.size)],
            )
        },
    )


def read_truth(adata: AnnData) -> pd.DataFrame | None:
    """The planted edges (source, target, sign) of simulated cells; None for any other data."""
    truth = adata.uns.get(TRUTH)
    return truth if isinstance(truth, pd.DataFrame) and {"source", "target", "sign"} <= set(truth) else None


def _names(config: SimulatedConfig) -> np.ndarray:
    regulators = [f"R{number + 1}" for number in range(config.regulators)]
    targets = [f"G{number + 1}" for number in range(config.genes - config.regulators)]
    return np.array(regulators + targets, dtype=object)


def _plant(config: SimulatedConfig, generator: np.random.Generator) -> np.ndarray:
    """Signed strengths [R, N] (0: no edge). A regulator is regulated by earlier ones only, a master by none."""
    regulators, genes = config.regulators, config.genes
    masters = _masters(regulators)
    earlier = np.minimum(np.arange(genes), regulators)  # regulators that come before each gene
    earlier[:masters] = 0
    wanted = np.minimum(generator.integers(1, config.regulators_per_target + 1, genes), earlier)
    # Ranks of random numbers: each gene's regulators are its `wanted` lowest, without replacement.
    draw = np.where(np.arange(regulators)[:, None] < earlier, generator.random((regulators, genes)), np.inf)
    edge = draw.argsort(axis=0).argsort(axis=0) < wanted
    sign = np.where(generator.random((regulators, genes)) < config.repression, -1.0, 1.0)
    return edge * sign * generator.uniform(1.0, 3.0, (regulators, genes))


def _masters(regulators: int) -> int:
    return max(1, regulators // 2)


def _produce(
    network: np.ndarray, cell_type: np.ndarray, config: SimulatedConfig, generator: np.random.Generator
) -> np.ndarray:
    """Production [C, N], each gene with mean 1 over the cells."""
    regulators = config.regulators
    masters = _masters(regulators)
    level = np.exp(MASTER_SD * generator.standard_normal((config.cell_types, masters)))
    noise = _log_normal(generator, config.noise, (config.cells, config.genes))
    production = np.empty((config.cells, config.genes))
    production[:, :masters] = level[cell_type]
    response = np.empty((config.cells, regulators))  # Hill response to each regulator, half at its mean
    for gene in range(regulators):
        if gene >= masters:
            production[:, gene] = _respond(response[:, :gene], network[:gene, gene])
        production[:, gene] *= noise[:, gene]
        production[:, gene] /= production[:, gene].mean()
        power = production[:, gene] ** STEEPNESS
        response[:, gene] = power / (1 + power)
    production[:, regulators:] = _respond(response, network[:, regulators:]) * noise[:, regulators:]
    return production / production.mean(axis=0)


def _respond(response: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """sum_j k h for activators plus sum_j k (1 - h) for repressors, which is sum_j s h - sum of negative s."""
    return response @ strength - np.minimum(strength, 0).sum(axis=0)


def _log_normal(generator: np.random.Generator, sd: float, size) -> np.ndarray:
    """Log-normal numbers of mean 1."""
    return np.exp(sd * generator.standard_normal(size) - sd**2 / 2)
