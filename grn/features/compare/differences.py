"""Edges that differ between two conditions, in each cell type and in all types together, with p-
and q-values.

    y_i = levels + sum_j (beta_ij + s/2 delta_ij) x_j          s: -1 or +1, the condition of a cell

i is a target, j its tested regulators: certain edges of a network, or its strongest. Levels (of
types, donors and conditions, and what follows the depth within each) are taken out of all genes,
and the shared slopes beta of each cell type out of y_i and of s/2 x_j; what is left gives delta. So
neither a gene that is switched on nor types with other slopes, mixed differently, count as a
difference.

The error of delta comes from squared residuals (White's sandwich; of a donor, residuals are added
up first), so that neither a noisier condition nor one in which a regulator varies more counts.
p-values compare delta, in units of its error, with that of conditions dealt anew to the same
residuals.

Letters: C cells, T targets, K regulators of each, D donors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from scipy.stats import false_discovery_control, t
from torch import Tensor

from grn.cells.cells import Cells
from grn.cells.preprocessing.moments import mean_and_sd
from grn.evidence.q_values import SIGNIFICANT
from grn.features.arguments.conditions import ALL, Compared
from grn.features.findings.summary import certain
from grn.runtime.errors import DataError
from grn.runtime.messages import Say
from grn.runtime.threads import threads_for

FEWEST = 20  # cells of a type in each condition
FEWEST_EXPRESSING = 10  # cells in which a target is seen, and a regulator in each condition
ENOUGH = 100  # certain edges that are tested alone; where there are fewer, the strongest are
STRONGEST = 2000
ROOM = 10  # cells of the smaller condition for each regulator of a target
PIECE = 2**22  # values of a batch of targets, C x T x K
LEAST = 1e-6  # of a variance, relative to that of all cells: regulators may be copies of each other
LEVEL = 0.95  # of the intervals


def compare_edges(
    cells: Cells,
    compared: Compared,
    edges: pd.DataFrame,
    edges_by_type: pd.DataFrame,
    *,
    permutations: int = 500,
    seed: int = 0,
    say: Say,
) -> pd.DataFrame:
    """A table for all cell types together (cell_type `all`) and each alone, by q_value and
    |effect|; see grn.compare.

    edges, edges_by_type: of the run, the strongest first.
    Raises DataError.
    """
    names = sorted(set(compared.types))
    unit = mean_and_sd(cells.multiplicity[compared.rows])[1].double().numpy()
    tables, tested = [], {}
    for name in [ALL, *names] if len(names) > 1 else names:
        part = compared.of_type(name)
        title = f"Cell type {name!r}" if name != ALL else "All cells together"
        title += " ({} and {} cells)".format(*part.sizes)
        states = [
            name,
            *(f"{name}, {condition}" for condition in part.names),
        ]  # of a run with these conditions
        of_type = edges_by_type[edges_by_type["cell_type"].isin(states)] if name != ALL else edges
        pairs, which = pairs_of_type(edges, of_type)
        pairs = _comparable(cells, part, pairs)
        if pairs.empty:
            say(
                f"{title}: left out, as each condition needs {FEWEST} cells, {FEWEST_EXPRESSING} "
                "with the regulator."
            )
            continue
        tables.append(
            compare_pairs(cells, part, pairs, unit, permutations, seed).assign(cell_type=name)
        )
        tested[name] = title, f"{len(tables[-1])} {which} edges", _least(part, permutations)
    if not tables:
        raise DataError("No cell type has enough cells in both conditions for edges to be compared")
    table = pd.concat(tables, ignore_index=True)
    # Types are many chances of a false edge: their pairs count as one set of tests, those of all
    # cells as another.
    table["q_value"] = table.groupby(table["cell_type"] == ALL)["p_value"].transform(
        false_discovery_control
    )
    for name, (title, what, least) in tested.items():
        found = int(((table["cell_type"] == name) & (table["q_value"] <= SIGNIFICANT)).sum())
        say(f"{title}: {found} of {what} differ at q <= {SIGNIFICANT:g}.{least}")
    first = ["cell_type", "source", "target", "effect", "low", "high", "p_value", "q_value"]
    table = table[[*first, *table.columns.drop(first)]]
    return table.iloc[np.lexsort([-table["effect"].abs(), table["q_value"]])].reset_index(drop=True)


def pairs_of_type(edges: pd.DataFrame, of_type: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Columns source and target of the edges that are tested in a type, and what they are in a
    word.

    Few pairs, chosen without a look at the conditions: the correction for many tests leaves the
    more to be found.
    """
    chosen, which = certain(of_type).drop_duplicates(["source", "target"]), "certain"
    if len(chosen) < ENOUGH:
        chosen, which = edges.head(STRONGEST), "strong"
    return chosen[["source", "target"]].astype(str), which


def _least(part: Compared, permutations: int) -> str:
    """Return how small a q-value can be, where that is not small."""
    ways = part.divisions
    if part.donors is not None and ways is not None and ways * SIGNIFICANT < 1:
        return (
            f" With {part.donors.max() + 1} donors, no q-value is below {1 / ways:.2g}; more are "
            "needed."
        )
    if (permutations + 1) * SIGNIFICANT < 1:
        return (
            f" With {permutations} permutations, no q-value is below {1 / (permutations + 1):.2g}."
        )
    return ""


def _comparable(cells: Cells, part: Compared, pairs: pd.DataFrame) -> pd.DataFrame:
    """Columns source and target, as vocabulary positions: pairs whose genes are seen in enough
    cells, and of each target the first regulators that there is room for. Empty where a condition
    has too few cells.
    """
    seen = [
        np.asarray((cells.multiplicity[part.rows[part.sign == sign]] != 0).sum(0)).ravel()
        for sign in (-1, 1)
    ]
    places = pd.Index(cells.vocabulary)
    pairs = pd.DataFrame({end: places.get_indexer(pairs[end]) for end in ("source", "target")})
    enough = (np.minimum(*seen) >= FEWEST_EXPRESSING)[pairs["source"]]
    pairs = pairs[enough & (seen[0] + seen[1] >= FEWEST_EXPRESSING)[pairs["target"]]]
    return pairs[
        pairs.groupby("target").cumcount()
        < (min(part.sizes) // ROOM if min(part.sizes) >= FEWEST else 0)
    ]


def compare_pairs(
    cells: Cells,
    part: Compared,
    pairs: pd.DataFrame,
    unit: np.ndarray,
    permutations: int,
    seed: int,
) -> pd.DataFrame:
    """Each pair of a regulator and a target, by vocabulary position: the whole table but for
    cell_type and q_value.

    unit [all genes]: the sd that an effect is in.
    """
    values = cells.multiplicity[part.rows].tocsc()
    basal = torch.as_tensor(cells.basal[part.rows], dtype=torch.float64)
    generator = np.random.default_rng([seed, *b"divisions"])
    signs = torch.as_tensor(
        np.stack([part.sign, *(part.dealt_anew(generator) for _ in range(permutations))])
    )
    tables, scores = [], []
    for batch, regulators in _batches(pairs, len(part.rows)):
        genes, place = np.unique(batch.to_numpy(), return_inverse=True)
        place = place.reshape(-1, regulators, 2)
        left, spread = _without_levels(
            torch.as_tensor(values[:, genes].toarray()).double(), basal, part
        )
        with threads_for(batch.size / 2 * len(left) * regulators):
            fit = SlopeFit(left.T[place[:, :, 0]], left.T[place[:, 0, 1]], part)
            effect, error, first, second = (
                each.numpy().ravel() for each in fit.differences(signs[0])
            )
            scores.append(np.stack([fit.scores(sign).numpy().ravel() for sign in signs]))
        scale = (spread / unit[genes])[place].reshape(-1, 2)
        scale = scale[:, 1] / scale[:, 0]
        numbers = {"effect": effect, "error": error, "first": first, "second": second}
        tables.append(batch.assign(**{name: each * scale for name, each in numbers.items()}))
    table, score = pd.concat(tables), np.abs(np.concatenate(scores, 1))
    known = np.isfinite(score[0])
    table, score = table[known], score[:, known]
    null = np.sort(score[np.isfinite(score)])
    table["p_value"] = 1 - np.searchsorted(null, score[0] * (1 - 1e-9)) / max(len(null), 1)
    half, level = table["error"] * _quantile(part), _level_change(part, values)
    names = np.asarray(cells.vocabulary, object)
    return pd.DataFrame(
        {
            "source": names[table["source"]],
            "target": names[table["target"]],
            "effect": table["effect"],
            "low": table["effect"] - half,
            "high": table["effect"] + half,
            "p_value": table["p_value"],
            f"weight_{part.names[0]}": table["first"],
            f"weight_{part.names[1]}": table["second"],
            "level_source": level[table["source"]],
            "level_target": level[table["target"]],
        }
    )


def _batches(pairs: pd.DataFrame, cells: int) -> Iterator[tuple[pd.DataFrame, int]]:
    """Pairs of a few targets with the same number of regulators, target by target;
    and this number.
    """
    regulators = pairs.groupby("target")["source"].transform("size")
    for number, same in pairs.sort_values("target", kind="stable").groupby(regulators):
        step = max(PIECE // (cells * int(number)), 1) * int(number)
        for start in range(0, len(same), step):
            yield same.iloc[start : start + step], int(number)


def _without_levels(values: Tensor, basal: Tensor, part: Compared) -> tuple[Tensor, np.ndarray]:
    """Values [C, N] less the levels of each stratum in each condition and what follows `basal` in
    it, in units of what is left of their sd; and these units [N].
    """
    group = 2 * torch.as_tensor(part.strata) + torch.as_tensor(part.sign > 0)
    size = torch.bincount(group).clamp(min=1).double()

    def mean(of_cells: Tensor) -> Tensor:
        sums = torch.zeros(len(size), of_cells.shape[1], dtype=torch.float64).index_add_(
            0, group, of_cells
        )
        return (sums / size[:, None])[group]

    depth = basal[:, None] - mean(basal[:, None])
    values = values - mean(values)
    values -= depth * mean(depth * values) / mean(depth.square()).clamp(min=1e-9)
    spread = values.square().mean(0).sqrt().clamp(min=1e-6)
    return values / spread, spread.numpy()


def _quantile(part: Compared) -> float:
    """Return how many errors an interval reaches to either side: by Student's t, with two units
    fewer than cells or donors.
    """
    units = len(part.rows) if part.donors is None else int(part.donors.max()) + 1
    return float(t.ppf((1 + LEVEL) / 2, max(units - 2, 1))) * (units / max(units - 1, 1)) ** 0.5


def _level_change(part: Compared, values: sparse.csc_matrix) -> np.ndarray:
    """The change of each gene's mean from the first condition to the second, [N]: within each type
    that has both, and of these the mean over their cells.
    """
    cells = pd.DataFrame({"type": part.types, "sign": part.sign})
    of_type = cells.groupby("type")["sign"].transform("size").to_numpy()
    of_side = cells.groupby(["type", "sign"])["sign"].transform("size").to_numpy()
    both = of_side < of_type
    return values.T @ (both * part.sign * of_type / of_side) / max(int(both.sum()), 1)


class SlopeFit:
    """The fits of a few targets. x [T, K, C] and y [T, C]: without levels, cells type by type as
    `part` has them.
    """

    def __init__(self, x: Tensor, y: Tensor, part: Compared):
        self.x, self.y = x, y[:, None]
        ends = np.flatnonzero(np.append(part.types[1:] != part.types[:-1], True)) + 1
        self.types = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self.bases = [torch.linalg.qr(x[..., cells].mT)[0] for cells in self.types]
        self.rest = self._without_shared(self.y)
        self.donor = None if part.donors is None else torch.as_tensor(part.donors)
        # Residuals of a fit are smaller than errors: as many cells count as it leaves free.
        used = x.shape[1] * (1 + len(self.types)) + 2 * len(np.unique(part.strata))
        self.correction = (
            (x.shape[2] / max(x.shape[2] - used, x.shape[2] / 4)) ** 0.5
            if self.donor is None
            else 1.0
        )

    def scores(self, sign: Tensor) -> Tensor:
        """Return how many errors, computed as if no slope differed, each difference is away from 0,
        [T, K].

        sign [C]: of each cell's condition.
        """
        operator, _ = self._operator(sign)
        return (operator @ self.rest.mT)[..., 0] / self._error(operator * self.rest)

    def differences(self, sign: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The differences, their errors, and the slopes where sign is -1 and +1, each [T, K]."""
        operator, left = self._operator(sign)
        effect = operator @ self.rest.mT
        error = self._error(operator * (self.rest - effect.mT @ left)) * self.correction
        rest = self.y - effect.mT @ (self.x * sign / 2)
        shared = torch.linalg.solve(_gram(self.x), self.x @ rest.mT)
        return effect[..., 0], error, (shared - effect / 2)[..., 0], (shared + effect / 2)[..., 0]

    def _operator(self, sign: Tensor) -> tuple[Tensor, Tensor]:
        """Return the operator that makes differences of residuals, and their features without
        shared slopes, each [T, K, C].
        """
        left = self._without_shared(self.x * sign / 2)
        return torch.linalg.inv(_gram(left)) @ left, left

    def _without_shared(self, values: Tensor) -> Tensor:
        """[T, any, C] less what the regulators explain of it in each type."""
        parts = [
            (values[..., cells], basis) for cells, basis in zip(self.types, self.bases, strict=True)
        ]
        return torch.cat([part - (part @ basis) @ basis.mT for part, basis in parts], -1)

    def _error(self, contribution: Tensor) -> Tensor:
        """The root of the summed squares of the contributions of cells [T, K, C], or of donors."""
        if self.donor is not None:
            sums = contribution.new_zeros(*contribution.shape[:2], int(self.donor.max()) + 1)
            contribution = sums.index_add_(-1, self.donor, contribution)
        return contribution.square().sum(-1).sqrt()


def _gram(x: Tensor) -> Tensor:
    return x @ x.mT + LEAST * x.shape[-1] * torch.eye(x.shape[-2], dtype=x.dtype)
