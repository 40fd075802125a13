"""The states of cells: what the model compares cells within, and what its scores may differ by.

Given labels are states (cell types). Along a numeric column (data.state_key) the states are the two
ends and the middle of its range, and a cell between two of them belongs to both in part; with
labels, too, each type has these three. Where the column holds conditions (treated, control), each
type has one state a condition, so that what the treatment does to levels is not taken for
regulation. Without labels and column, states are found: groups of cells in the leading principal
components of all genes. In a screen these would be its effects, and there is one state.

Letters: C cells, N genes, K states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from grn.cells.cells import Cells
from grn.cells.obs import MISSING
from grn.model.regulation import TRACE

KNOTS = (0.0, 0.5, 1.0)  # quantiles of a numeric column at which there is a state
MOST_COMPONENTS, MOST_STATES = 10, 12
FEWEST_CELLS = 30  # in a state that is found, on average
CELLS = 5000  # at most so many cells find the states
LEAST_GENES = 50  # with fewer genes, each one decides about the states, so that none are looked for


@dataclass(frozen=True)
class States:
    """The states that cells belong to.

    membership: float32 [C, K], how much each cell belongs to each state; rows sum to 1.
    names [K]: of the states.
    origin: labels | found | numeric | conditions | one | screen | together.
    alone: cell types (in a condition) of one cell each, which are no states.
    """

    membership: np.ndarray
    names: tuple[str, ...]
    origin: str
    alone: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def summary(self) -> str:
        alone = "".join(
            f" {name!r} has one cell, and so no network of its own." for name in self.alone
        )
        several = (
            f"{len(self)} states: {'; '.join(self.names[:8])}{'; ...' if len(self) > 8 else ''}"
        )
        return {
            "labels": f"The given cell types are the {len(self)} states that cells are compared "
            "within.",
            "numeric": f"Cells are compared within {several}.",
            "conditions": f"Cells are compared within one condition, in {several}.",
            "found": f"There are no labels, so cells are compared within {len(self)} states that "
            "were found.",
            "one": "All cells are compared with each other: no two labels have several cells each, "
            "and no states were found.",
            "screen": "The cells of a screen without labels are compared with each other, as "
            "states that were found would be effects of what was done to them.",
            "together": "Cell types are the only objective, so that all cells are compared with "
            "each other.",
        }[self.origin] + alone


def states_of(cells: Cells, seed: int, *, genes_train: bool = True) -> States:
    """Return the states of the cells: given labels, a numeric column or both, else those that are
    found.

    genes_train: whether genes are predicted. Where labels alone are, a model that knew the states
        would know them.
    """
    if not genes_train:
        return States(np.ones((len(cells), 1), np.float32), ("all cells",), "together")
    types = _of_conditions(cells) if cells.conditions else _of_labels(cells.labels, cells.classes)
    if cells.state is not None and not cells.conditions:
        along, names = _of_numbers(cells.state, cells.state_name)
        if types is None:
            return States(along, names, "numeric")
        both = (types.membership[:, :, None] * along[:, None, :]).reshape(len(along), -1)
        return States(
            both,
            tuple(f"{one}, {other}" for one in types.names for other in names),
            "numeric",
            types.alone,
        )
    if types is not None:
        return types
    if cells.interventions is not None:
        return States(np.ones((len(cells), 1), np.float32), ("all cells",), "screen")
    return found_states(cells.multiplicity, seed)


def _of_labels(labels: np.ndarray, names: Sequence[str]) -> States | None:
    """One state for each label [C] that several cells have; other cells belong to all, in
    proportion to their cells.

    names: of the labels, which are positions in them; -1: missing.
    """
    given, count = np.unique(labels[labels >= 0], return_counts=True)
    present, alone = given[count > 1], tuple(names[label] for label in given[count == 1])
    if len(present) < 2:
        return None
    membership = (labels[:, None] == present).astype(np.float32)
    membership[membership.sum(1) == 0] = membership.sum(0) / membership.sum()
    return States(membership, tuple(names[label] for label in present), "labels", alone)


def _of_conditions(cells: Cells) -> States | None:
    """One state for each condition, or for each type in each condition: `B cell, treated`."""
    assert cells.state is not None, "conditions are of states"
    known, condition = np.isfinite(cells.state), np.nan_to_num(cells.state).astype(np.int64)
    if not cells.classes:
        found = _of_labels(np.where(known, condition, MISSING), cells.conditions)
    else:
        both = np.where(
            known & (cells.labels >= 0), cells.labels * len(cells.conditions) + condition, MISSING
        )
        found = _of_labels(
            both, [f"{name}, {other}" for name in cells.classes for other in cells.conditions]
        )
    return None if found is None else replace(found, origin="conditions")


def _of_numbers(values: np.ndarray, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Memberships [C, K] that change linearly between the quantiles KNOTS of values [C]; equal
    where one is missing.
    """
    known = np.isfinite(values)
    knots = np.unique(np.quantile(values[known], KNOTS))
    membership = np.stack([np.interp(values, knots, row) for row in np.eye(len(knots))], 1)
    membership[~known] = 1 / len(knots)
    return membership.astype(np.float32), tuple(f"{name} {knot:.3g}" for knot in knots)


def found_states(multiplicity: sp.csr_matrix, seed: int) -> States:
    """Return a mixture of normal distributions in the `leading_components` of multiplicity, CSR
    [C, N], with the number of groups that has the lowest Bayesian information criterion.
    """
    from sklearn.mixture import GaussianMixture

    cells, genes = multiplicity.shape
    one = States(np.ones((cells, 1), np.float32), ("all cells",), "one")
    if genes < LEAST_GENES or cells < 2 * FEWEST_CELLS:
        return one
    generator = np.random.default_rng(seed)
    some = (
        np.sort(generator.choice(cells, CELLS, replace=False))
        if cells > CELLS
        else np.arange(cells)
    )
    directions, mean, sd = leading_components(multiplicity[some].toarray(), generator)
    if not len(directions):
        return one
    step = 4096
    position = np.concatenate(
        [
            ((multiplicity[first : first + step].toarray() - mean) / sd) @ directions.T
            for first in range(0, cells, step)
        ]
    )
    best, lowest = None, np.inf
    for states in range(1, min(MOST_STATES, len(some) // FEWEST_CELLS) + 1):
        mixture = GaussianMixture(
            states, covariance_type="full", reg_covar=1e-3, random_state=seed, n_init=2
        )
        mixture.fit(position[some])
        criterion = mixture.bic(position[some])
        if criterion < lowest:
            best, lowest = mixture, criterion
    if best is None or best.n_components == 1:
        return one
    membership = without_traces(best.predict_proba(position).astype(np.float32))
    membership = membership[:, np.argsort(-membership.sum(0), kind="stable")]
    return States(
        membership, tuple(f"state {number + 1}" for number in range(membership.shape[1])), "found"
    )


def without_traces(membership: np.ndarray) -> np.ndarray:
    """Return the memberships [C, S] with those below TRACE set to 0 and the others scaled to sum
    to 1: each state of a cell is a bag to read.
    """
    kept = membership * (membership >= TRACE)
    return kept / kept.sum(-1, keepdims=True)


def leading_components(
    values: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Principal directions [d, N] of values [C, N] that explain more than shuffled genes do; means
    and sds [N].
    """
    from sklearn.utils.extmath import randomized_svd

    mean, sd = values.mean(0), values.std(0)
    sd = np.where(sd > 1e-6, sd, 1)
    standardised = (values - mean) / sd
    count = min(MOST_COMPONENTS, *standardised.shape)
    _, size, directions = randomized_svd(standardised, count, random_state=0)
    _, by_chance, _ = randomized_svd(generator.permuted(standardised, axis=0), 1, random_state=0)
    return directions[size > 1.05 * by_chance[0]], mean, sd
