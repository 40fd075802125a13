"""The network that simulated cells are made with: a directed acyclic graph of regulators, and their
targets.

Every edge is drawn from the generator of the seed. Differences between cell types are drawn from
generators of their own, so that a share of 0 leaves every other draw as it is.

Letters: E edges, N genes, R regulators, T cell types, C cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy import sparse

from grn.config.schema import Simulation
from grn.runtime.errors import ConfigError

# production of a gene without a regulator; an edge of mean strength adds as much at its half
# response
BASAL = 1.0
HUBS, CONTEXT, COMPOSITION, CASCADES = 1, 2, 3, 5  # the draws that have generators of their own


@dataclass(frozen=True)
class PlantedNetwork:
    """A network, with its edges in the order of their regulators, then of their targets.

    source, target [E]: positions of genes, int64.
    strength [E]: positive.
    sign [E, T]: +1 or -1; 0 in a cell type without this edge.
    basal [N]: production apart from regulation: BASAL where some cell type leaves the gene without
        a regulator, else 0.
    """

    source: np.ndarray
    target: np.ndarray
    strength: np.ndarray
    sign: np.ndarray
    basal: np.ndarray

    @property
    def typed(self) -> bool:
        """Return whether any edge differs between cell types."""
        return bool((self.sign != self.sign[:, :1]).any())

    def table(self, names: np.ndarray, types: list[str]) -> pd.DataFrame:
        """Return the edges as a table: source, target, sign.

        Where edges differ between cell types, an edge has a row for each type that it acts in, with
        the type's name in the column cell_type.

        names [N]: of the genes.
        types [T]: names of the cell types.
        """
        edge, cell_type = np.nonzero(self.sign if self.typed else self.sign[:, :1])
        columns = {
            "source": names[self.source[edge]],
            "target": names[self.target[edge]],
            "sign": self.sign[edge, cell_type].astype(np.int64),
        }
        if self.typed:
            columns["cell_type"] = np.array(types, dtype=object)[cell_type]
        return pd.DataFrame(columns, index=[str(row) for row in range(len(edge))])


@dataclass(frozen=True)
class Regulation:
    """How the responses to regulators become the production of n of the genes.

    parts: one for each cell type, or one for all types.
    basal [n]: see PlantedNetwork.
    """

    parts: list[_Part]
    basal: np.ndarray

    @classmethod
    def of(cls, network: PlantedNetwork, genes: slice, regulators: int) -> Regulation:
        """Return the regulation of some genes of a network. regulators: their number R."""
        types = network.sign.shape[1] if network.typed else 1
        signed = [network.strength * network.sign[:, number] for number in range(types)]
        return cls(
            [_Part.of(network, weight, regulators, genes) for weight in signed],
            network.basal[genes],
        )

    def only(self, gene: int) -> Regulation:
        """Return the regulation of one of the n genes."""
        return Regulation([part.only(gene) for part in self.parts], self.basal[[gene]])

    def production(self, response: np.ndarray, cell_type: np.ndarray) -> np.ndarray:
        """Return the production of the genes in some cells, [c, n], before noise.

        response [c, R]: Hill responses.
        cell_type [c]: the number of each cell's type.
        """
        if len(self.parts) == 1:
            return self.parts[0].respond(response) + self.basal
        production = np.empty((len(response), len(self.basal)))
        for number, part in enumerate(self.parts):
            cells = np.flatnonzero(cell_type == number)
            production[cells] = part.respond(response[cells]) + self.basal
        return production


@dataclass(frozen=True)
class _Part:
    """The production sum_j k_j h_j over activators plus sum_j k_j (1 - h_j) over repressors, of n
    genes; k are strengths and h are responses.

    matrix: CSC [R, n], k of activators and -k of repressors.
    offset [n]: the sum of k over the repressors.
    """

    matrix: sparse.csc_matrix
    offset: np.ndarray

    @classmethod
    def of(
        cls, network: PlantedNetwork, weight: np.ndarray, regulators: int, genes: slice
    ) -> _Part:
        """Return the part of some genes.

        weight [E]: signed strengths, 0 where an edge does not act.
        """

        def matrix(weight: np.ndarray) -> sparse.csc_matrix:
            present = np.flatnonzero(weight)
            starts = np.searchsorted(network.source[present], np.arange(regulators + 1))
            shape = (regulators, len(network.basal))
            return sparse.csr_matrix(
                (weight[present], network.target[present], starts), shape=shape
            )[:, genes].tocsc()

        return cls(matrix(weight), -np.asarray(matrix(np.minimum(weight, 0)).sum(axis=0)).ravel())

    def only(self, gene: int) -> _Part:
        return _Part(self.matrix[:, [gene]], self.offset[[gene]])

    def respond(self, response: np.ndarray) -> np.ndarray:
        """Return the production, [c, n]. response [c, R]: Hill responses."""
        return response @ self.matrix + self.offset


def plant(config: Simulation, generator: np.random.Generator) -> PlantedNetwork:
    """Draw a network in which earlier regulators alone regulate a regulator, and none a master.

    Raises ConfigError.
    """
    _check(config)
    regulators, genes = config.regulators, config.genes
    earlier = np.minimum(np.arange(genes), regulators)  # regulators that come before each gene
    earlier[: masters(regulators)] = 0
    most = config.regulators_per_target
    wanted = (
        np.minimum(generator.integers(1, most + 1, genes), earlier)
        if most
        else np.zeros_like(earlier)
    )
    propensity = (
        np.exp(config.hubs * own_generator(config, HUBS).standard_normal(regulators))
        if config.hubs
        else None
    )
    source, target = _lowest(earlier, wanted, regulators, generator, propensity)
    if config.cascades:
        source, target = _with_cascades(source, target, config)
    starts = np.searchsorted(source, np.arange(regulators + 1))
    own = [target[start:end] for start, end in pairwise(starts)]
    sign = np.concatenate(
        [np.where(generator.random(genes) < config.repression, -1, 1)[each] for each in own]
    )
    strength = np.concatenate([generator.uniform(1.0, 3.0, genes)[each] for each in own])
    signs = _in_context(sign, config)
    regulated = np.zeros((genes, config.cell_types), dtype=bool)
    edge, cell_type = np.nonzero(signs)
    regulated[target[edge], cell_type] = True
    return PlantedNetwork(
        source, target, strength, signs, np.where(regulated.all(axis=1), 0.0, BASAL)
    )


def masters(regulators: int) -> int:
    """Return how many of the regulators are masters: they are the first ones."""
    return max(1, regulators // 2)


def own_generator(config: Simulation, draws: int) -> np.random.Generator:
    """Return a generator for one kind of draws, which leaves all other draws as they are.

    draws: HUBS, CONTEXT, COMPOSITION or CASCADES.
    """
    return np.random.default_rng([config.seed, draws])


def _check(config: Simulation) -> None:
    """Raise ConfigError for settings that contradict each other."""
    middle = config.regulators - masters(config.regulators)
    targets = config.genes - config.regulators
    differ = config.type_specific + config.changed_signs
    problems = {
        f"regulators is {config.regulators}, which leaves no target among {config.genes} "
        "genes": targets <= 0,
        f"cascades is {config.cascades}, but {middle} regulators can pass it on to {targets} "
        "targets": config.cascades > (targets if middle else 0),
        "type_specific and changed_signs add up to more than 1": differ > 1 + 1e-9,
        "type_specific and changed_signs need more than one of cell_types": config.cell_types < 2
        and differ > 0,
    }
    for problem in (problem for problem, found in problems.items() if found):
        raise ConfigError(f"{{field}}: {problem}", field="data.simulated")


def _with_cascades(
    source: np.ndarray, target: np.ndarray, config: Simulation
) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges, sorted, with cascades A -> B -> C in place of all other edges to their B
    and C.

    A is a master. B is another regulator, which may be in several cascades, always with the same A.
    C is a target that is in no other cascade. In every second cascade A acts on C directly, too.

    source, target [E]: of the edges.
    """
    generator, regulators = own_generator(config, CASCADES), config.regulators
    middle = generator.permutation(np.arange(masters(regulators), regulators))
    first = generator.integers(0, masters(regulators), len(middle))
    last = generator.permutation(np.arange(regulators, config.genes))[: config.cascades]
    of = np.arange(len(last)) % len(middle)
    middle, first = middle[: len(last)], first[: len(last)]
    others = ~np.isin(target, np.concatenate([middle, last]))
    source = np.concatenate([source[others], first, middle[of], first[of][1::2]])
    target = np.concatenate([target[others], middle, last, last[1::2]])
    order = np.lexsort((target, source))
    return source[order], target[order]


def _in_context(sign: np.ndarray, config: Simulation) -> np.ndarray:
    """Draw the signs of edges in each cell type, int8 [E, T]. sign [E]: of the edges."""
    edges, types = len(sign), config.cell_types
    signs = np.repeat(sign.astype(np.int8)[:, None], types, axis=1)
    shares = (config.type_specific, config.changed_signs)
    if not any(shares):
        return signs
    generator = own_generator(config, CONTEXT)
    ends = np.rint(np.cumsum(shares) * edges).astype(np.int64)
    specific, changed, _ = np.split(generator.permutation(edges), ends)
    # Each edge has the types in an order of its own, of which it takes the first ones.
    place = generator.random((edges, types)).argsort(axis=1).argsort(axis=1)
    acting = np.where(np.arange(len(specific)) % 2, min(2, types - 1), 1)
    signs[specific] *= place[specific] < acting[:, None]
    other = (types + generator.integers(0, 2, len(changed))) // 2
    signs[changed] *= np.where(place[changed] < other[:, None], -1, 1).astype(np.int8)
    return signs


def _lowest(
    earlier: np.ndarray,
    wanted: np.ndarray,
    regulators: int,
    generator: np.random.Generator,
    propensity: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the regulators of each gene without replacement: those with the lowest random numbers.
    Return the edges (source, target), sorted.

    earlier [N]: how many regulators, from the first on, may regulate the gene.
    wanted [N]: how many do.
    propensity [R]: exponential numbers of these rates are drawn, so that the next regulator is
        chosen in proportion to its propensity. None: all are equal.
    """
    drawn = np.full((max(int(wanted.max()), 1), len(wanted)), np.inf)  # the lowest numbers so far
    regulator = np.zeros(drawn.shape, dtype=np.int64)
    # the highest of them, and its row
    highest, row = drawn[0].copy(), np.zeros(len(wanted), dtype=np.int64)
    for number in range(regulators):
        draw = generator.random(len(wanted))
        if propensity is not None:
            draw = -np.log1p(-draw) / propensity[number]
        better = np.flatnonzero((draw < highest) & (number < earlier))
        drawn[row[better], better], regulator[row[better], better] = draw[better], number
        row[better] = drawn[:, better].argmax(axis=0)
        highest[better] = drawn[row[better], better]
    rank = drawn.argsort(axis=0).argsort(axis=0)
    kept = rank < wanted
    source, target = regulator[kept], np.broadcast_to(np.arange(len(wanted)), kept.shape)[kept]
    order = np.lexsort((target, source))
    return source[order], target[order]
