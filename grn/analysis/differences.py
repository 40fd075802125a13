"""Edges that differ between two conditions, in each cell type and in all types together, with p- and q-values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import false_discovery_control, norm, t

from grn.analysis.compare_conditions import ALL, Compared, Divisions, compared_cells
from grn.analysis.compare_slopes import Differences, Sample, SlopeFit, without_levels
from grn.cells.cells import Cells
from grn.cells.preprocessing.moments import mean_and_sd
from grn.errors import DataError, check_known
from grn.messages import Say
from grn.regulation.folds import held_out_cells
from grn.regulation.linear import FOLDS, choose_penalties
from grn.regulation.ridge import Ridge, of_regulators

FEWEST = 20  # cells of a type in each condition
LARGEST = 2**27  # cells x genes that one comparison holds
SIGNIFICANT = 0.05
FEWEST_EXPRESSING = 10  # cells in which a target is seen, and a regulator in each condition
PENALTIES = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]  # per cell, of shared slopes: what held-out cells choose from
# Root of: penalty that held-out cells choose for shared slopes / penalty of the differences. With 1, a fifth of the
# planted differences that were found were those of a correlated regulator; with 3 and more, few cells find less.
RATIO = 2.0
STEP, MOST = 1e-3, 100.0  # of |score|, counted in bins: width of a bin, and the last one
LEVEL = 0.95  # of the intervals


def compare_cells(
    cells: Cells,
    condition: pd.Series,
    donor: pd.Series | None = None,
    *,
    conditions: Sequence[str] | None = None,
    cell_type: str | None = None,
    permutations: int = 200,
    seed: int = 0,
    say: Say,
) -> pd.DataFrame:
    """A table for all cell types together (cell_type `all`) and each alone, by q_value and |effect|; see grn.compare.

    condition, donor [C]: columns of obs. Raises DataError.
    """
    compared = compared_cells(cells, condition, donor, conditions=conditions, say=say)
    most, number = LARGEST // len(cells.vocabulary), len(compared.rows)
    if number > most:
        say(f"{most} of {number} cells are compared, drawn at random: more would take too much memory.")
        compared = compared.taken(np.sort(np.random.default_rng(seed).permutation(number)[:most]))
    unit = mean_and_sd(cells.multiplicity[compared.rows])[1].double().numpy()
    tables = []
    names = compared.type_names
    if cell_type is not None:
        check_known(cell_type, names, "The comparison", "cell type", "cell_type")
        parts = [(cell_type, compared.of_type(cell_type))]
    else:
        parts = [(ALL, compared), *((each, compared.of_type(each)) for each in names if len(names) > 1)]
    for name, part in parts:
        refused = _refused(part)
        genes = None if refused else comparable_genes(cells, part)
        if genes is not None and not len(genes.regulators):
            refused = "no regulator is seen in enough cells of both conditions"
        if refused or genes is None:
            if cell_type is not None or len(names) == 1 or name == ALL:
                raise DataError(f"{_title(name)} cannot be compared: {refused}.")
            say(f"{_title(name)} is left out: {refused}.")
            continue
        _say_limits(name, part, permutations, say)
        table = compare_slopes(cells, part, genes, unit, permutations, seed)
        table.insert(0, "cell_type", name)
        found = table["q_value"]
        say(
            f"{_title(name)}: {int((part.sign < 0).sum())} and {int((part.sign > 0).sum())} cells, "
            f"{len(genes.regulators)} regulators x {len(genes.targets)} genes, {int((found <= SIGNIFICANT).sum())} "
            f"edges differ at q <= 0.05, {int((found <= 0.1).sum())} at q <= 0.1."
        )
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    order = np.lexsort([-table["effect"].abs(), table["q_value"]])
    return table.iloc[order].reset_index(drop=True)


def _title(name: str) -> str:
    return "All cells together" if name == ALL else f"Cell type {name!r}"


def _refused(part: Compared) -> str | None:
    """Why these cells cannot be compared: too few of them, or donors that allow for one division alone."""
    sizes = [int((part.sign == sign).sum()) for sign in (-1, 1)]
    if min(sizes) < FEWEST:
        described = " and ".join(f"{size} in {name!r}" for size, name in zip(sizes, part.names, strict=True))
        return f"it has {described} of the {FEWEST} cells that each condition needs"
    if part.donors is None or Divisions(part.sign, part.types, part.donors).number > 1:
        return None
    return f"its {len(np.unique(part.donors))} donors can be divided into the conditions in one way only"


def _say_limits(name: str, part: Compared, permutations: int, say: Say) -> None:
    """How small a q-value can be, where that is not small."""
    number = Divisions(part.sign, part.types, part.donors).number
    least = 1 / min(number, permutations + 1)
    if least <= SIGNIFICANT:
        return
    if part.donors is not None and number <= permutations:
        say(
            f"{_title(name)}: its {len(np.unique(part.donors))} donors can be divided into the conditions in "
            f"{number:g} ways only, so that no q-value is below {least:.2g}; more donors are needed for 0.05."
        )
    else:
        say(f"With {permutations} permutations, no q-value is below {least:.2g}; 200 permutations are enough.")


class Genes(NamedTuple):
    """Vocabulary positions of the targets [N] and of the regulators [R]; own [R]: of these among the targets."""

    targets: np.ndarray
    regulators: np.ndarray
    own: np.ndarray


def comparable_genes(cells: Cells, compared: Compared) -> Genes:
    """Targets that vary, and regulators that vary in both conditions: else there is no slope to compare."""
    seen, varies = [], []
    for sign in (-1, 1):
        part = cells.multiplicity[compared.rows[compared.sign == sign]]
        seen.append(np.asarray((part != 0).sum(0)).ravel())
        mean = np.asarray(part.mean(0)).ravel()
        varies.append(np.asarray(part.multiply(part).mean(0)).ravel() - mean**2 > 1e-9)
    regulates = np.ones(len(cells.vocabulary), dtype=bool)
    if cells.regulators is not None:
        regulates = np.isin(np.arange(len(cells.vocabulary)), cells.regulators)
    enough = np.minimum(*seen) >= FEWEST_EXPRESSING
    targets = np.flatnonzero((sum(seen) >= FEWEST_EXPRESSING) & (varies[0] | varies[1]))
    regulators = np.flatnonzero(regulates & enough & varies[0] & varies[1])
    return Genes(targets, regulators, np.searchsorted(targets, regulators))


def compare_slopes(
    cells: Cells, compared: Compared, genes: Genes, unit: np.ndarray, permutations: int, seed: int
) -> pd.DataFrame:
    """Every pair of a regulator and another gene: the columns of the whole table but for cell_type.

    unit [all genes]: the sd that an effect is in."""
    values = cells.multiplicity[compared.rows][:, genes.targets].toarray()
    sample, spread = _sample(cells, compared, genes, values)
    sign = torch.as_tensor(compared.sign, dtype=torch.float64)
    x, y, _ = without_levels(sample, sign)
    penalty = _penalties(x, y, sample, seed)
    kappa = float(penalty.median()) / RATIO**2
    fit = SlopeFit(x, y, sign, sample.own, sample.donor, kappa)
    found = fit.differences()
    p = _p_values(sample, compared, found.score.numpy(), kappa, permutations, seed)
    scale = spread[None] / unit[genes.targets][None] / (spread / unit[genes.targets])[genes.own][:, None]
    first, second = _slopes(x, y, sign, sample.own, penalty, found)
    # Residuals of a fit are smaller than errors: as many cells count as it leaves free.
    levels = 2 * len(torch.unique(sample.stratum))
    quantile = norm.ppf((1 + LEVEL) / 2) * (len(x) / max(len(x) - fit.freedom - levels, len(x) / 4)) ** 0.5
    if sample.donor is not None:
        donors = int(sample.donor.max()) + 1
        quantile = t.ppf((1 + LEVEL) / 2, max(donors - 2, 1)) * (donors / (donors - 1)) ** 0.5
    effect, half = found.effect.numpy() * scale, quantile * found.error.numpy() * scale
    # The change of the mean level in each type that has both conditions; the mean over types, weighted by their cells.
    level, weight = np.zeros(values.shape[1]), 0
    for number in range(len(compared.type_names)):
        parts = [(compared.types == number) & (compared.sign == one) for one in (-1, 1)]
        if all(part.any() for part in parts):
            size = int(parts[0].sum() + parts[1].sum())
            level += size * (values[parts[1]].mean(0) - values[parts[0]].mean(0))
            weight += size
    level = level / max(weight, 1)
    tested = np.isfinite(p)
    regulator, target = np.nonzero(tested)
    names = np.asarray(cells.vocabulary, object)
    a, b = compared.names
    return pd.DataFrame(
        {
            "source": names[genes.regulators][regulator],
            "target": names[genes.targets][target],
            "effect": effect[tested],
            "low": (effect - half)[tested],
            "high": (effect + half)[tested],
            "p_value": p[tested],
            "q_value": false_discovery_control(p[tested]),
            f"weight_{a}": (first * scale)[tested],
            f"weight_{b}": (second * scale)[tested],
            "level_source": level[genes.own][regulator],
            "level_target": level[target],
        }
    )


def _sample(cells: Cells, compared: Compared, genes: Genes, values: np.ndarray) -> tuple[Sample, np.ndarray]:
    """The sample, its genes in units of what levels leave of their sd, and this sd [N]."""
    stratum = compared.strata
    if compared.donors is not None:
        pairs = np.column_stack([compared.strata, compared.donors])
        stratum = np.unique(pairs, axis=0, return_inverse=True)[1].ravel()
    sample = Sample(
        x=torch.zeros(len(values), 0, dtype=torch.float64),
        y=torch.as_tensor(values, dtype=torch.float32),
        own=torch.as_tensor(genes.own),
        type=torch.as_tensor(compared.types),
        stratum=torch.as_tensor(stratum),
        donor=None if compared.donors is None else torch.as_tensor(compared.donors),
        basal=torch.as_tensor(cells.basal[compared.rows], dtype=torch.float64),
    )
    left = without_levels(sample, torch.as_tensor(compared.sign))[1]
    spread = left.square().mean(0).sqrt().clamp(min=1e-6)
    y = sample.y / spread
    changed = Sample(y[:, sample.own].double(), y, sample.own, sample.type, sample.stratum, sample.donor, sample.basal)
    return changed, spread.double().numpy()


def _penalties(x: torch.Tensor, y: torch.Tensor, sample: Sample, seed: int) -> torch.Tensor:
    """The penalty of each target, [N], with which shared slopes predict held-out cells (or donors) best."""
    generator = torch.Generator().manual_seed(seed)
    several = sample.donor is not None and bool((sample.donor != sample.donor[0]).any())
    donors = sample.donor.numpy() if sample.donor is not None and several else None
    held_out = held_out_cells(np.arange(len(x)), donors, range(FOLDS), FOLDS, generator)[1]
    fold = torch.full((len(x),), FOLDS - 1)
    for number, part in enumerate(held_out):
        fold[part] = number
    return choose_penalties(x, y.double(), sample.own, fold, [len(x) * penalty for penalty in PENALTIES])[0]


def _p_values(
    sample: Sample, compared: Compared, score: np.ndarray, kappa: float, permutations: int, seed: int
) -> np.ndarray:
    """Two-sided p [R, N], NaN as in score: the share of all pairs' |score| in all divisions, the observed one included,
    that are at least as large."""

    def bins(scores: np.ndarray) -> np.ndarray:
        return np.minimum(np.abs(scores) / STEP, MOST / STEP).astype(np.int64)

    tested = np.isfinite(score)
    count = np.bincount(bins(score[tested]), minlength=int(MOST / STEP) + 1)
    divisions = Divisions(compared.sign, compared.types, compared.donors)
    for division in divisions.others(permutations, np.random.default_rng([seed, *b"divisions"])):
        sign = torch.as_tensor(division, dtype=torch.float64)
        x, y, _ = without_levels(sample, sign)
        null = SlopeFit(x, y, sign, sample.own, sample.donor, kappa).scores().numpy()
        count += np.bincount(bins(null[tested]), minlength=len(count))
    at_least = count[::-1].cumsum()[::-1] / count.sum()
    p = np.full(score.shape, np.nan)
    p[tested] = at_least[bins(score[tested])]
    return p


def _slopes(
    x: torch.Tensor, y: torch.Tensor, sign: torch.Tensor, own: torch.Tensor, penalty: torch.Tensor, found: Differences
) -> tuple[np.ndarray, np.ndarray]:
    """Slopes in either condition, [R, N] twice: effect apart, and their mean, weighted by how much the regulator varies
    in each condition, is the shared slope as ridge finds it."""
    shared = Ridge(x, y.double(), own, of_regulators(x, own)).coefficients(penalty).numpy()
    square = x.square()
    second = (square[sign > 0].sum(0) / square.sum(0)).numpy()[:, None]
    effect = found.effect.numpy()
    return shared - second * effect, shared + (1 - second) * effect
