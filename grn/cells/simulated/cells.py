"""Cells with a planted signed network: our own generator behind `path: "simulated:"`.

Regulators form a directed acyclic graph (network.py); the first of them, the masters,
have a level per cell type. A regulated gene is produced at sum_j k_ij h_ij, with h = hill(x_j) for
an activator and 1 - hill(x_j) for a repressor, so that a gene may have repressors alone. Edges and
their signs may differ between cell types; a gene that a type leaves without regulators has a basal
production. Composition, a factor on each gene's production, differs between types without
regulation. Regulators pass their log-normal noise on to their targets: within a cell type, it is
all that distinguishes regulators. Counts are Poisson around production times the cell's size.

Of all arrays of size C x N or R x N only the sparse counts are kept: 500 cells over 40 000 genes
take seconds. So the noise is drawn again wherever it is needed, from a copy of the generator.

Letters: C cells, N genes, R regulators, T cell types.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.simulated.interventions import TRUTH as GUIDES
from grn.cells.simulated.interventions import Screen
from grn.cells.simulated.network import (
    COMPOSITION,
    PlantedNetwork,
    Regulation,
    masters,
    own_generator,
    plant,
)
from grn.config.schema import SimulatedConfig, Simulation

TRUTH = "truth"  # key in uns of the planted edges: see PlantedNetwork.table
STEEPNESS = 2.0  # Hill coefficient
MASTER_SD = 0.8  # sd of the log levels of a master over cell types
MEAN_SD = 0.5  # sd of the log mean expression over genes
BLOCK = 2**21  # numbers that are held densely at a time


def simulate(config: SimulatedConfig) -> AnnData:
    """Return simulated cells, [C, N].

    X: counts, CSR float32.
    obs: cell_type and, where regulators are intervened on, intervention and guide.
    var: is_regulator.
    uns: truth, the planted edges (see PlantedNetwork.table) and, where regulators are intervened
        on, guides, the table that says which of them work.
    Raises ConfigError.
    """
    config = Simulation.of(config)
    screen = Screen.of(config)
    generator = np.random.default_rng(config.seed)
    network = plant(config, generator)
    shape = (config.cell_types, config.genes)
    composition = np.exp(
        config.composition * own_generator(config, COMPOSITION).standard_normal(shape)
    )
    cell_type = np.arange(config.cells) % config.cell_types
    level = np.exp(
        MASTER_SD * generator.standard_normal((config.cell_types, masters(config.regulators)))
    )
    before_noise = copy.deepcopy(generator)
    remaining = None if screen is None else screen.remaining
    noise = _noise(config, generator)
    regulators, response = _regulators(
        network, level, composition, cell_type, config, noise, remaining
    )
    first = config.regulators
    targets = Regulation.of(network, slice(first, None), first)

    def production() -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the production of every gene, [c, N], in one block of c cells after the other."""
        for rows, block in _noise(config, copy.deepcopy(before_noise)):
            block[:, :first] = regulators[rows]
            block[:, first:] *= targets.production(response[rows], cell_type[rows])
            block[:, first:] *= composition[cell_type[rows], first:]
            yield rows, block

    mean = sum(block.sum(axis=0) for _, block in production()) / config.cells
    means = config.depth * _log_normal(generator, MEAN_SD, config.genes) / mean
    sizes = _log_normal(generator, config.size_sd, config.cells)
    counts = sparse.vstack(
        [
            sparse.csr_matrix(
                generator.poisson(block * means * sizes[rows, None]).astype(np.float32)
            )
            for rows, block in production()
        ],
        format="csr",
    )
    counted = [("R", config.regulators), ("G", config.genes - config.regulators)]
    names = np.array(
        [f"{letter}{number + 1}" for letter, of in counted for number in range(of)], dtype=object
    )
    types = [f"type {number + 1}" for number in range(config.cell_types)]
    obs = {"cell_type": pd.Categorical([types[number] for number in cell_type])}
    uns = {TRUTH: network.table(names, types)}
    if screen is not None:
        obs |= {column: pd.Categorical(values) for column, values in screen.obs.items()}
        uns[GUIDES] = screen.guides
    return AnnData(
        counts,
        obs=pd.DataFrame(obs, index=[f"cell{number + 1}" for number in range(config.cells)]),
        var=pd.DataFrame(
            {"is_regulator": np.arange(config.genes) < config.regulators}, index=names
        ),
        uns=uns,
    )


def read_truth(adata: AnnData) -> pd.DataFrame | None:
    """Return the planted edges of simulated cells (see PlantedNetwork.table); None for other
    data.
    """
    truth = adata.uns.get(TRUTH)
    return (
        truth
        if isinstance(truth, pd.DataFrame) and {"source", "target", "sign"} <= set(truth)
        else None
    )


def _noise(
    config: Simulation, generator: np.random.Generator
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield factors of noise on production, [c, N], in one block of c cells after the other."""
    step = max(BLOCK // config.genes, 1)
    for start in range(0, config.cells, step):
        rows = slice(start, min(start + step, config.cells))
        yield rows, _log_normal(generator, config.noise, (rows.stop - start, config.genes))


def _regulators(
    network: PlantedNetwork,
    level: np.ndarray,
    composition: np.ndarray,
    cell_type: np.ndarray,
    config: Simulation,
    noise: Iterator[tuple[slice, np.ndarray]],
    remaining: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the production of the regulators, [C, R], and the Hill response to each, [C, R].

    Before interventions, a regulator's production has the mean 1 over the cells. The response to
    that mean is one half.

    level [T, masters]: of each master in each cell type.
    composition [T, N]: factors on production.
    cell_type [C]: the number of each cell's type.
    noise: factors on production, see _noise.
    remaining [C, R]: the share of production that interventions leave; None: all of it.
    """
    regulators = config.regulators
    production = np.concatenate([block[:, :regulators] for _, block in noise])
    response = np.zeros(production.shape)
    regulation = Regulation.of(network, slice(regulators), regulators)
    for gene in range(regulators):
        production[:, gene] *= (
            level[cell_type, gene]
            if gene < level.shape[1]
            else regulation.only(gene).production(response, cell_type)[:, 0]
        )
        production[:, gene] *= composition[cell_type, gene]
        production[:, gene] /= production[:, gene].mean()
        if remaining is not None:
            production[:, gene] *= remaining[:, gene]
        power = production[:, gene] ** STEEPNESS
        response[:, gene] = power / (1 + power)
    return production, response


def _log_normal(
    generator: np.random.Generator, sd: float, size: int | tuple[int, int]
) -> np.ndarray:
    """Draw log-normal numbers of mean 1. sd: of their logarithms."""
    return np.exp(sd * generator.standard_normal(size) - sd**2 / 2)
