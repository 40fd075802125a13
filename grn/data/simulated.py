"""Cells with a planted signed network: our own generator behind `path: "simulated:"`.

Regulators form a directed acyclic graph; the first of them, the masters, have a level per cell type. A regulated gene
is produced at sum_j k_ij h_ij, with h = hill(x_j) for an activator and 1 - hill(x_j) for a repressor, so that a gene
may have repressors alone. Production has log-normal noise, which regulators pass on to their targets: within a cell
type, this noise is all that distinguishes one regulator from another. Counts are Poisson around production times the
cell's size.

Of all arrays of size C x N or R x N only the counts are kept, which are sparse: 500 cells over 40 000 genes take
seconds. Random tables are drawn row by row, and the noise is drawn again wherever it is needed, from a copy of the
generator.

Letters: C cells, N genes, R regulators.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.config.schema import DataConfig, SimulatedConfig
from grn.errors import ConfigError, DataError

TRUTH = "truth"  # key in uns of the planted edges: a data frame with source, target, sign
STEEPNESS = 2.0  # Hill coefficient
MASTER_SD = 0.8  # sd of the log levels of a master over cell types
MEAN_SD = 0.5  # sd of the log mean expression over genes
BLOCK = 2**21  # numbers that are held densely at a time


def open_simulated(name: str, config: DataConfig) -> AnnData:
    """The source `simulated:` of data.path. Raises DataError where a name follows the colon."""
    if name:
        raise DataError(f"simulated:{name} is not known; write `simulated:` and set the fields of data.simulated.")
    return simulate(config.simulated)


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
    level = np.exp(MASTER_SD * generator.standard_normal((config.cell_types, _masters(config.regulators))))
    before_noise = copy.deepcopy(generator)
    regulators, response = _regulators(network, level[cell_type], config, _noise(config, generator))
    production = _Production(network, regulators, response, config, before_noise)
    means = config.depth * _log_normal(generator, MEAN_SD, config.genes) / production.mean()
    sizes = _log_normal(generator, config.size_sd, config.cells)
    counts = sparse.vstack(
        [
            sparse.csr_matrix(generator.poisson(block * means * sizes[rows, None]).astype(np.float32))
            for rows, block in production
        ],
        format="csr",
    )
    names = _names(config)
    edges = network.tocoo()
    return AnnData(
        counts,
        obs=pd.DataFrame(
            {"cell_type": pd.Categorical([f"type {number + 1}" for number in cell_type])},
            index=[f"cell{number + 1}" for number in range(config.cells)],
        ),
        var=pd.DataFrame({"is_regulator": np.arange(config.genes) < config.regulators}, index=names),
        uns={
            TRUTH: pd.DataFrame(
                {
                    "source": names[edges.row],
                    "target": names[edges.col],
                    "sign": np.sign(edges.data).astype(np.int64),
                },
                index=[str(edge) for edge in range(edges.nnz)],
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


def _plant(config: SimulatedConfig, generator: np.random.Generator) -> sparse.csr_matrix:
    """Signed strengths, CSR [R, N]. A regulator is regulated by earlier ones only, a master by none."""
    regulators, genes = config.regulators, config.genes
    earlier = np.minimum(np.arange(genes), regulators)  # regulators that come before each gene
    earlier[: _masters(regulators)] = 0
    wanted = np.minimum(generator.integers(1, config.regulators_per_target + 1, genes), earlier)
    source, target = _lowest(earlier, wanted, regulators, generator)
    starts = np.searchsorted(source, np.arange(regulators + 1))
    own = [target[start:end] for start, end in pairwise(starts)]
    sign = np.concatenate([np.where(generator.random(genes) < config.repression, -1.0, 1.0)[each] for each in own])
    strength = np.concatenate([generator.uniform(1.0, 3.0, genes)[each] for each in own])
    return sparse.csr_matrix((sign * strength, target, starts), shape=(regulators, genes))


def _lowest(
    earlier: np.ndarray, wanted: np.ndarray, regulators: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Edges (source, target), sorted: each gene's regulators are the `wanted` lowest of random numbers, one for each of
    the `earlier` ones, and so drawn without replacement."""
    genes = np.arange(len(wanted))
    drawn = np.full((max(int(wanted.max()), 1), len(wanted)), np.inf)  # the lowest numbers so far
    regulator = np.zeros(drawn.shape, dtype=np.int64)
    highest, row = drawn[0].copy(), np.zeros(len(wanted), dtype=np.int64)  # the highest of them, and its row
    for number in range(regulators):
        draw = generator.random(len(wanted))
        better = np.flatnonzero((draw < highest) & (number < earlier))
        drawn[row[better], better], regulator[row[better], better] = draw[better], number
        row[better] = drawn[:, better].argmax(axis=0)
        highest[better] = drawn[row[better], better]
    rank = drawn.argsort(axis=0).argsort(axis=0)
    kept = rank < wanted
    source, target = regulator[kept], np.broadcast_to(genes, kept.shape)[kept]
    order = np.lexsort((target, source))
    return source[order], target[order]


def _masters(regulators: int) -> int:
    return max(1, regulators // 2)


def _noise(config: SimulatedConfig, generator: np.random.Generator) -> Iterator[tuple[slice, np.ndarray]]:
    """Noise on production, [c, N] for one block of c cells after the other."""
    step = max(BLOCK // config.genes, 1)
    for start in range(0, config.cells, step):
        rows = slice(start, min(start + step, config.cells))
        yield rows, _log_normal(generator, config.noise, (rows.stop - start, config.genes))


def _regulators(
    network: sparse.csr_matrix, level: np.ndarray, config: SimulatedConfig, noise: Iterator[tuple[slice, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Production of the regulators [C, R], each with mean 1 over the cells, and the Hill response to each, half at its
    mean. level [C, masters]."""
    production = np.concatenate([block[:, : config.regulators] for _, block in noise])
    response = np.empty(production.shape)
    columns = network[:, : config.regulators].tocsc()
    masters = level.shape[1]
    for gene in range(config.regulators):
        production[:, gene] *= level[:, gene] if gene < masters else _respond(response, columns[:, [gene]])[:, 0]
        production[:, gene] /= production[:, gene].mean()
        power = production[:, gene] ** STEEPNESS
        response[:, gene] = power / (1 + power)
    return production, response


class _Production:
    """Production of every gene, [c, N] for one block of c cells after the other; it can be iterated repeatedly."""

    def __init__(
        self,
        network: sparse.csr_matrix,
        regulators: np.ndarray,
        response: np.ndarray,
        config: SimulatedConfig,
        before_noise: np.random.Generator,
    ):
        self.regulators, self.response, self.config, self.before_noise = regulators, response, config, before_noise
        self.targets = network[:, config.regulators :].tocsc()

    def __iter__(self) -> Iterator[tuple[slice, np.ndarray]]:
        regulators = self.config.regulators
        for rows, block in _noise(self.config, copy.deepcopy(self.before_noise)):
            block[:, :regulators] = self.regulators[rows]
            block[:, regulators:] *= _respond(self.response[rows], self.targets)
            yield rows, block

    def mean(self) -> np.ndarray:
        """Of each gene over the cells, [N]."""
        total = np.zeros(self.config.genes)
        for _, block in self:
            total += block.sum(axis=0)
        return total / self.config.cells


def _respond(response: np.ndarray, strength: sparse.csc_matrix) -> np.ndarray:
    """sum_j k h for activators plus sum_j k (1 - h) for repressors, which is sum_j s h - sum of negative s."""
    return response @ strength - np.asarray(strength.minimum(0).sum(axis=0)).ravel()


def _log_normal(generator: np.random.Generator, sd: float, size) -> np.ndarray:
    """Log-normal numbers of mean 1."""
    return np.exp(sd * generator.standard_normal(size) - sd**2 / 2)
