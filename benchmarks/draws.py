"""Fresh cells with known networks, drawn from a seed, on which `context.py` judges networks.

    sergio_like    regulation by Hill kinetics, steady state of the chemical Langevin equation,
                   technical noise
    sergio_noise   the same technical noise on the noise-free levels of a shared set of SERGIO
    shuffled       every gene of a set permuted over the cells on its own: nothing is left but each
                   gene's values
    typed          networks that differ between cell types, and composition: levels that differ
                   without regulation
    cascades       chains of regulators, with and without the direct edge; our own generator has
                   them, too
    composition    composition alone

Written after the published equations of SERGIO (Dibaeinia and Sinha 2020) and apart from
grn/cells/simulated/cells.py, so that two generators have to agree.

Letters: C cells, N genes, R regulators, K cell types.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit
from sets import COUNTS_SEEN, NetworkSet, digest, folder, sergio

# Kinetics, as published: decay and noise amplitude of every gene, Hill coefficient, range of the
# rates of edges.
DECAY, NOISE, HILL, RATES = 0.8, 1.0, 2, (1.0, 5.0)
TOTAL_RATE, TOTAL_RATE_SD = 6.5, 0.4  # of all edges of a gene: median, sd of the logarithm
OUT_DEGREE_SD = 0.7  # of the logarithm of what a regulator's number of targets is proportional to
LOW, HIGH = (0.5, 1.5), (2.5, 4.5)  # production rate of a master in a type where it is low or high
STEP, STEPS = (
    0.02,
    350,
)  # 7 units of time, 5.6 lifetimes of a molecule, from the steady state without noise
REPRESSED = 1 / 3  # share of the edges that repress
# Technical noise, as published: outlier genes, cells' library sizes, dropout.
OUTLIERS, OUTLIER_LOG = 0.01, (0.8, 1.0)
LIBRARY_SD, COUNTS_PER_GENE = 0.4, 5.0
STEEPNESS = 6.5  # of the dropout's logistic curve
# Typed networks: standard deviations of logarithms, strengths of effects.
WITHIN_SD, LEVEL_SD, MEAN_SD, TARGET_SD, SIZE_SD = 0.5, 0.7, 0.5, 0.25, 0.25
SHARED = 0.15  # share of a regulator's variance within types that common factors make
FACTORS = 2
STRENGTH = (0.25, 0.6)
SHARES = (0.3, 0.7)  # of the variance of a gene's log level that its regulators in a cascade make


@dataclass(frozen=True, eq=False)
class Draw:
    """by_type: columns source, target, sign, cell_type, the edges of each type; None where all
    types have the same.

    Where types differ, the reference of `one` lists the edges of any type; its sign is 0 where
    types disagree.
    """

    one: NetworkSet
    by_type: pd.DataFrame | None = None


def sergio_like(
    seed: int,
    zeros: float,
    cells_per_type: int = 300,
    types: int = 9,
    regulators: int | None = None,
    genes: int | None = None,
) -> Draw:
    """Counts of simulated cells, a share `zeros` of them 0, and the network that was simulated.

    regulators, genes: None: 30 to 40 and 200 to 400, drawn. Half of the regulators are masters.
    """
    generator = np.random.default_rng([seed, 1])
    regulators = int(generator.integers(30, 41)) if regulators is None else regulators
    genes = int(generator.integers(200, 401)) if genes is None else genes
    rate = _network(generator, regulators, genes)
    masters = regulators // 2
    high = generator.random((types, masters)) < 0.5
    basal = np.zeros((types, genes))
    basal[:, :masters] = np.where(
        high, generator.uniform(*HIGH, high.shape), generator.uniform(*LOW, high.shape)
    )
    labels = np.repeat(np.arange(types), cells_per_type)
    levels = _steady_state(generator, rate, basal, labels)
    counts = technical_noise(levels, zeros, generator)
    names = _names(regulators, genes)
    source, target = np.nonzero(rate)
    reference = pd.DataFrame(
        {
            "source": names[source],
            "target": names[target],
            "sign": np.sign(rate[source, target]).astype(int),
        }
    )
    return Draw(_set(f"sergio_like_{zeros:g}_{seed}", counts, names, labels, regulators, reference))


def sergio_noise(name: str, seed: int, zeros: float) -> Draw:
    """Fresh technical noise on the noise-free levels of `sergio_ds1` or `sergio_ds2`."""
    import anndata

    clean = anndata.read_h5ad(folder() / f"{name}.h5ad").layers["clean"]
    clean = np.asarray(clean.toarray() if hasattr(clean, "toarray") else clean, dtype=np.float64)
    counts = technical_noise(clean, zeros, np.random.default_rng([seed, 2]))
    return _with_counts(sergio(name, clean=False), f"{name}_{zeros:g}_{seed}", counts)


def shuffled(one: NetworkSet, seed: int) -> Draw:
    """The set with every gene permuted over all cells on its own; its reference is now wrong for
    every pair.
    """
    matrix = np.random.default_rng([seed, 3]).permuted(one.matrix, axis=0)
    return _with_counts(one, f"{one.name}_shuffled_{seed}", matrix)


def _with_counts(one: NetworkSet, name: str, counts: np.ndarray) -> Draw:
    hashed = digest(counts, one.genes, COUNTS_SEEN)
    return Draw(replace(one, name=name, matrix=counts, hash=hashed))


def typed(
    seed: int,
    depth: float,
    cells_per_type: int,
    types: int = 4,
    regulators: int = 20,
    targets: int = 180,
) -> Draw:
    """Networks of which half of the edges exist in all types, a quarter in one or two, and a
    quarter change sign.

    depth: counts of a typical gene in a typical cell. Regulators have log-normal levels within
        types, a target's is multiplied by e to the sum of effects: strength x (log level of the
        regulator within its type, in sds).
    """
    generator = np.random.default_rng([seed, 4])
    source, target = _pairs(generator, regulators, targets)
    sign = _signs_by_type(generator, len(source), types)
    labels = np.repeat(np.arange(types), cells_per_type)
    factors = generator.standard_normal((len(labels), FACTORS))
    loadings = generator.standard_normal((FACTORS, regulators))
    loadings *= np.sqrt(SHARED) / np.linalg.norm(loadings, axis=0)
    within = factors @ loadings + np.sqrt(1 - SHARED) * generator.standard_normal(
        (len(labels), regulators)
    )
    effect = np.zeros((types, regulators, targets))
    effect[:, source, target] = sign * generator.uniform(*STRENGTH, len(source))
    changes = np.empty((len(labels), targets))
    for number in range(types):
        changes[labels == number] = within[labels == number] @ effect[number]
    changes += TARGET_SD * generator.standard_normal(changes.shape)
    counts = _composed(generator, np.hstack([WITHIN_SD * within, changes]), labels, depth)
    names = _names(regulators, regulators + targets)
    edges = pd.DataFrame({"source": names[source], "target": names[regulators + target]})
    by_type = [
        edges.assign(sign=sign[number], cell_type=_label(number))[sign[number] != 0]
        for number in range(types)
    ]
    agree = np.abs(sign.sum(0)) == np.abs(sign).sum(0)
    reference = edges.assign(sign=np.where(agree, np.sign(sign.sum(0)), 0))
    one = _set(
        f"typed_{depth:g}_{cells_per_type}_{seed}", counts, names, labels, regulators, reference
    )
    return Draw(one, pd.concat(by_type, ignore_index=True))


def cascades(
    seed: int,
    depth: float,
    types: int = 1,
    cells: int = 2400,
    masters: int = 10,
    middle: int = 10,
    targets: int = 180,
) -> Draw:
    """Chains of log levels A -> B -> C, the same in all types, and composition. Every second C has
    an edge from A, too.

    Each B has one master A, and each C one B. What a gene has from its regulators and what is its
    own add up to the spread WITHIN_SD.
    """
    generator = np.random.default_rng([seed, 7])
    regulators, genes = masters + middle, masters + middle + targets
    sign = np.where(generator.random((genes, 2)) < REPRESSED, -1, 1)
    size = generator.uniform(*SHARES, (genes, 2))
    above, within = np.zeros((genes, 2), int), generator.standard_normal((cells, genes))
    edges = []
    for gene in range(masters, genes):
        if gene < regulators:
            of = [generator.integers(masters)]
        else:
            through = generator.integers(masters, regulators)
            of = [through, above[through, 0]][: 1 + gene % 2]
        above[gene, : len(of)] = of
        share = size[gene, : len(of)] / len(of)
        regulated = within[:, of] @ (sign[gene, : len(of)] * np.sqrt(share))
        within[:, gene] = regulated + np.sqrt(1 - share.sum()) * within[:, gene]
        within[:, gene] /= within[:, gene].std()
        edges += [(source, gene, sign[gene, place]) for place, source in enumerate(of)]
    labels = np.repeat(np.arange(types), cells // types)
    counts = _composed(generator, WITHIN_SD * within, labels, depth)
    names = _names(regulators, genes)
    reference = pd.DataFrame(
        [(names[a], names[b], s) for a, b, s in edges], columns=["source", "target", "sign"]
    )
    return Draw(
        _set(f"cascades_{depth:g}_{types}_{seed}", counts, names, labels, regulators, reference)
    )


def simulated_cascades(seed: int, depth: float, types: int = 1) -> Draw:
    """Cascades of the project's own generator: the cells of `path: "simulated:"`, half of whose
    targets end one.
    """
    from grn.cells.simulated.cells import read_truth, simulate
    from grn.config.schema import Simulation

    config = Simulation(
        cells=2400, genes=200, regulators=20, cell_types=types, depth=depth, cascades=90, seed=seed
    )
    cells = simulate(config)
    truth = read_truth(cells)
    labels = cells.obs["cell_type"].cat.codes.to_numpy()
    name = f"simulated_cascades_{depth:g}_{types}_{seed}"
    return Draw(
        _set(name, cells.X.toarray(), cells.var_names.to_numpy(), labels, config.regulators, truth)
    )


def composition(
    seed: int,
    depth: float,
    cells_per_type: int,
    types: int = 4,
    regulators: int = 20,
    targets: int = 180,
) -> Draw:
    """Levels of all genes differ between types, and within a type all genes are independent: there
    is no edge.
    """
    generator = np.random.default_rng([seed, 5])
    labels = np.repeat(np.arange(types), cells_per_type)
    within = WITHIN_SD * generator.standard_normal((len(labels), regulators + targets))
    counts = _composed(generator, within, labels, depth)
    names = _names(regulators, regulators + targets)
    nothing = pd.DataFrame({"source": [], "target": [], "sign": []}).astype({"sign": int})
    one = _set(
        f"composition_{depth:g}_{cells_per_type}_{seed}", counts, names, labels, regulators, nothing
    )
    return Draw(one, nothing.assign(cell_type=[]))


def technical_noise(levels: np.ndarray, zeros: float, generator: np.random.Generator) -> np.ndarray:
    """Counts [C, N] float32, a share `zeros` of them 0: outlier genes, library sizes, dropout,
    Poisson, in this order.

    levels [C, N]: noise-free. The level at which half of the values drop out is found.
        Where more than `zeros` are 0 without any dropout, the size of the libraries is found
        instead, and nothing drops out.
    """
    cells, genes = levels.shape
    outlier = generator.random(genes) < OUTLIERS
    levels = levels * np.where(outlier, np.exp(generator.normal(*OUTLIER_LOG, genes)), 1)
    sizes = genes * COUNTS_PER_GENE * np.exp(LIBRARY_SD * generator.standard_normal((cells, 1)))
    levels = levels / levels.sum(1, keepdims=True) * sizes
    present = -np.expm1(-levels)  # the chance of a count above 0
    if 1 - present.mean() > zeros:
        factor = brentq(lambda log: np.exp(-np.exp(log) * levels).mean() - zeros, 0.0, 20.0)
        return generator.poisson(np.exp(factor) * levels).astype(np.float32)
    log = np.log1p(levels)

    def too_few(half: float) -> float:
        return zeros - 1 + (expit(STEEPNESS * (log - half)) * present).mean()

    half = brentq(too_few, -5.0, log.max() + 5)
    remain = generator.random(levels.shape) < expit(STEEPNESS * (log - half))
    return generator.poisson(levels * remain).astype(np.float32)


def _network(generator: np.random.Generator, regulators: int, genes: int) -> np.ndarray:
    """Signed rates [R, N], a directed acyclic graph: masters have no regulator, other regulators
    have earlier ones.

    How many targets or regulators a gene has is drawn apart from how much there is of it: the sum
    of a gene's rates does not depend on their number.
    """
    popular = np.exp(OUT_DEGREE_SD * generator.standard_normal(regulators))
    rate = np.zeros((regulators, genes))
    for gene in range(regulators // 2, genes):
        earlier = min(gene, regulators)
        chance = popular[:earlier] / popular[:earlier].sum()
        chosen = generator.choice(
            earlier, min(int(generator.integers(1, 5)), earlier), replace=False, p=chance
        )
        sign = np.where(generator.random(len(chosen)) < REPRESSED, -1, 1)
        size = generator.uniform(*RATES, len(chosen))
        total = TOTAL_RATE * np.exp(TOTAL_RATE_SD * generator.standard_normal())
        rate[chosen, gene] = sign * size / size.sum() * total
    return rate


def _steady_state(
    generator: np.random.Generator, rate: np.ndarray, basal: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Levels [C, N] of cells that each went their own way: Euler-Maruyama steps of

        dx = (p - decay x) dt + noise (sqrt(p) dw + sqrt(decay x) dw'),    p = production.

    basal [K, N]: production rates of the masters by type. A regulator's half response is its mean
        over types.
    """
    regulators = len(rate)
    repression = np.minimum(rate, 0).sum(0)
    level, response = np.empty(basal.shape), np.zeros((len(basal), regulators))
    half = np.empty(regulators)
    # the steady state without noise; regulators come in the order of the graph
    for gene in range(basal.shape[1]):
        made = basal[:, gene] + response @ rate[:, gene] - repression[gene]
        level[:, gene] = made / DECAY
        if gene < regulators:
            half[gene] = level[:, gene].mean()
            response[:, gene] = _hill(level[:, gene], half[gene])
    x, basal, rate, half = (
        a.astype(np.float32) for a in (level[labels], basal[labels] - repression, rate, half)
    )
    for _ in range(STEPS):
        production = basal + _hill(x[:, :regulators], half) @ rate
        loss = DECAY * x
        # The two noises are independent, so their sum is one normal number with the sum of the
        # variances.
        x += STEP * (production - loss)
        x += (
            (NOISE * STEP**0.5)
            * np.sqrt(production + loss)
            * generator.standard_normal(x.shape, dtype=np.float32)
        )
        np.maximum(x, 0, out=x)
    return x.astype(np.float64)


def _hill(x: np.ndarray, half: np.ndarray | float) -> np.ndarray:
    power = (x / half) ** HILL
    return power / (1 + power)


def _pairs(
    generator: np.random.Generator, regulators: int, targets: int
) -> tuple[np.ndarray, np.ndarray]:
    """Edges: one to three regulators for each target."""
    chosen = [
        generator.choice(regulators, generator.integers(1, 4), replace=False)
        for _ in range(targets)
    ]
    return np.concatenate(chosen), np.repeat(np.arange(targets), [len(each) for each in chosen])


def _signs_by_type(generator: np.random.Generator, edges: int, types: int) -> np.ndarray:
    """int [K, E]: sign of each edge in each type, 0 where the type lacks it."""
    sign = np.tile(np.where(generator.random(edges) < 0.5, -1, 1), (types, 1))
    order = generator.permutation(edges)
    for edge in order[: edges // 4]:
        lacks = generator.permutation(types)[generator.integers(1, 3) :]
        sign[lacks, edge] = 0
    for edge in order[edges // 4 : edges // 2]:
        flipped = np.zeros(types, dtype=bool)
        while flipped.all() or not flipped.any():
            flipped = generator.random(types) < 0.5
        sign[flipped, edge] *= -1
    return sign


def _composed(
    generator: np.random.Generator, within: np.ndarray, labels: np.ndarray, depth: float
) -> np.ndarray:
    """Counts [C, N] float32 of genes with log levels `within` types; levels of types, means and
    sizes are drawn.
    """
    level = LEVEL_SD * generator.standard_normal((labels.max() + 1, within.shape[1]))
    expected = np.exp(within + level[labels])
    expected *= (
        depth * np.exp(MEAN_SD * generator.standard_normal(within.shape[1])) / expected.mean(0)
    )
    sizes = np.exp(SIZE_SD * generator.standard_normal((len(within), 1)))
    return generator.poisson(expected * sizes).astype(np.float32)


def _names(regulators: int, genes: int) -> np.ndarray:
    names = [f"R{number + 1}" for number in range(regulators)]
    return np.array(
        names + [f"G{number + 1}" for number in range(genes - regulators)], dtype=object
    )


def _label(number: int) -> str:
    return f"type {number + 1}"


def _set(
    name: str,
    counts: np.ndarray,
    names: np.ndarray,
    labels: np.ndarray,
    regulators: int,
    reference: pd.DataFrame,
) -> NetworkSet:
    return NetworkSet(
        name=name,
        genes=list(names),
        values="counts",
        matrix=counts,
        labels=[_label(number) for number in labels],
        regulators=list(names[:regulators]),
        reference=reference,
        universe="reference",
        hash=digest(counts, list(names), COUNTS_SEEN),
    )
