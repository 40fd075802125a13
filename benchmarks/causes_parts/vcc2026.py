"""The six metrics of the Virtual Cell Challenge 2026, of predicted cells against measured ones.

Source: docs/vcc2026_metrics of the repository ArcInstitute/cell-eval2, whose section each function
names; written from these definitions. `tests/benchmarks/test_causes.py` compares them with numbers
of the package (cell-eval2 0.20.0, CPU).

Letters: C cells, N genes, T interventions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import false_discovery_control, norm

PROFILE_TOTAL = 5e4  # of a group's counts
CELL_TOTAL = 1e6  # of a cell's counts, before tests
EXPRESSED = 5.0  # counts per million in control cells, above which a gene is tested
SIGNIFICANT = 0.05  # false discovery rate within an intervention
SUMS = ("error", "effect")
PURITY = 0.9  # of the signs of a prediction's first genes
FEWEST_GENES = 10  # that respond, so that their fold changes count
LOWER = {"expr_mse", "lfc_nmae"}  # metrics of which less is better
SPLITS = 5  # into halves, of which a replicate's scores are the means
TINY = 1e-9

LIMITS = {"expr_mse": (0.0, 1.0), "lfc_nmae": (-6.0, np.inf)}  # of scaled values
METRICS = ("pds_cosine", "expr_mse", "fidelity", "reach", "sig_jaccard", "lfc_nmae")


@dataclass(frozen=True)
class Panel:
    """Cells of a screen.

    counts [C, N]: not negative, float64.
    label [C]: the intervention, or `control`.
    genes: N names; an intervention that is called like one of them is on that gene.
    """

    counts: np.ndarray
    label: np.ndarray
    genes: list[str]
    control: str

    @property
    def names(self) -> list[str]:
        return sorted(set(self.label) - {self.control})

    def of(self, name: str) -> np.ndarray:
        return self.counts[self.label == name]

    def others(self, name: str) -> np.ndarray:
        """Return which genes are not the one that is intervened on, bool [N]."""
        return np.array([gene != name for gene in self.genes])

    def some(self, rows: np.ndarray) -> Panel:
        return Panel(self.counts[rows], self.label[rows], self.genes, self.control)


@dataclass(frozen=True)
class Tested:
    """Tests of an intervention against control cells, [N] each; NaN of genes that are not
    tested.
    """

    p: np.ndarray
    q: np.ndarray
    fold: np.ndarray  # log2

    @property
    def significant(self) -> np.ndarray:
        return self.q < SIGNIFICANT

    def without(self, others: np.ndarray) -> Tested:
        """Return the same, where genes that are not among the `others` have no test."""
        return Tested(*(np.where(others, each, np.nan) for each in (self.p, self.q, self.fold)))


def profile(counts: np.ndarray) -> np.ndarray:
    """Return a group's log profile [N] (section 1)."""
    whole = counts.sum(0)
    return np.log1p(PROFILE_TOTAL * whole / whole.sum())


def sampling_noise(counts: np.ndarray) -> float:
    """Return what sampling cells adds to a profile's squared distances, by leaving out each
    cell (section 2).
    """
    if len(counts) < 2:
        return 0.0
    whole, totals = counts.sum(0), counts.sum(1)
    without = np.log1p(PROFILE_TOTAL * (whole - counts) / (whole.sum() - totals)[:, None])
    return float((len(counts) - 1) / len(counts) * np.square(without - without.mean(0)).sum())


def discrimination(
    predicted: dict[str, np.ndarray], measured: dict[str, np.ndarray], kept: np.ndarray
) -> dict[str, float]:
    """Return how far up each intervention's own measured effect is among all (section 1).

    predicted, measured: effects on the profile, [N] by intervention.
    kept [N]: bool, genes that are no intervention's target.
    """
    names = list(measured)
    rows = np.stack([unit(measured[name][kept]) for name in names])
    found = {}
    for place, name in enumerate(names):
        distance = 1 - rows @ unit(predicted[name][kept])
        own = distance[place]
        rank = (distance < own).sum() + ((distance == own).sum() - 1) / 2
        found[name] = float(1 - rank / (len(names) - 1))
    return found


def unit(effect: np.ndarray) -> np.ndarray:
    """Return the effect with a length of 1; zeros stay."""
    size = np.linalg.norm(effect)
    return effect / size if size > 0 else effect


def expression_error(predicted: Panel, measured: Panel) -> tuple[float, float]:
    """Return the squared distance of profiles and that of the measured effects, both without the
    noise of sampling: the metric is their ratio (section 2).
    """
    names = measured.names
    there = np.stack([profile(measured.of(name)) for name in names])
    here = np.stack([profile(predicted.of(name)) for name in names])
    noise = np.array([sampling_noise(measured.of(name)) for name in names])
    claimed = np.minimum([sampling_noise(predicted.of(name)) for name in names], noise)
    control = measured.of(measured.control)
    others = np.stack([measured.others(name) for name in names])  # [T, N]
    weight = 1 / others.sum(1)
    budget = spread(here, others, weight)
    claims = float((claimed * weight).sum())
    claimed = claimed * min(1.0, budget / claims) if claims > 0 else claimed

    def squared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (np.square(a - b) * others).sum(1)

    numerator = weight * (squared(here, there) - claimed - noise)
    denominator = weight * (squared(there, profile(control)) - noise - sampling_noise(control))
    return float(numerator.sum()), float(denominator.sum())


def spread(profiles: np.ndarray, others: np.ndarray, weight: np.ndarray) -> float:
    """Return the weighted sum of squares of profiles [T, N] around their mean, over the pairs
    that count (`others`, bool [T, N]).
    """
    of_pair = others * weight[:, None]
    total = of_pair.sum(0)
    mean = np.divide((of_pair * profiles).sum(0), total, out=np.zeros(len(total)), where=total > 0)
    several = others.sum(0) > 1
    return float((of_pair * np.square(profiles - mean))[:, several].sum())


def tested(given: np.ndarray, control: np.ndarray, expressed: np.ndarray) -> Tested:
    """Return the tests of cells [C, N] against control cells (section 3).

    expressed [N]: bool, the genes that are tested.
    """
    given, control = normalised(given)[:, expressed], normalised(control)[:, expressed]
    p = rank_sum(given, control)
    found = np.full((3, len(expressed)), np.nan)
    found[:, expressed] = p, false_discovery_control(p), fold_change(given, control)
    return Tested(*found)


def rank_sum(given: np.ndarray, control: np.ndarray) -> np.ndarray:
    """Return p-values [N] of Wilcoxon's rank-sum test by its normal approximation, with ties, for
    all genes at once; scipy's needs several times as long. 1 of a gene that is alike in all cells.
    """
    n, m = len(given), len(control)
    p = np.ones(given.shape[1])
    every = np.sort(np.concatenate([given, control]).T, axis=1)  # [N, n + m]
    before = np.sort(control.T, axis=1)
    for gene, (both, base) in enumerate(zip(every, before, strict=True)):
        below, upto = (np.searchsorted(base, given[:, gene], side) for side in ("left", "right"))
        above = (below + upto).sum() / 2 - n * m / 2
        ties = np.diff(np.flatnonzero(np.r_[True, both[1:] != both[:-1], True])).astype(float)
        spread = n * m / 12 * (n + m + 1 - (ties**3 - ties).sum() / ((n + m) * (n + m - 1)))
        if spread > 0:
            p[gene] = 2 * norm.sf(abs(above) / np.sqrt(spread))
    return p


def fold_change(given: np.ndarray, control: np.ndarray) -> np.ndarray:
    """Return log2 of the ratio of mean normalised counts [C, N], as [N]."""
    return np.log2((given.mean(0) + TINY) / (control.mean(0) + TINY))


def normalised(counts: np.ndarray) -> np.ndarray:
    total = counts.sum(1, keepdims=True)
    return counts * np.divide(CELL_TOTAL, total, out=np.zeros_like(total), where=total > 0)


def expressed_genes(control: np.ndarray) -> np.ndarray:
    return normalised(control).mean(0) > EXPRESSED


def fidelity(predicted: Tested, measured: Tested) -> float:
    """Return the share of right signs among called genes, as if no fewer were called than
    respond; NaN where neither has any (section 4).
    """
    called = predicted.significant & (np.nan_to_num(measured.fold) != 0)
    right = called & (np.sign(predicted.fold) == np.sign(measured.fold))
    whole = max(int(called.sum()), int(measured.significant.sum()))
    return float(right.sum() / whole) if whole else float("nan")


def reach(predicted: Tested, measured: Tested, genes: list[str]) -> float:
    """Return to which share of the genes that respond signs stay right, in the prediction's own
    order; NaN where none responds (section 5).
    """
    pool = np.flatnonzero(measured.significant)
    if not len(pool):
        return float("nan")
    keys = (
        np.array(genes)[pool],
        -np.abs(predicted.fold[pool]),
        predicted.p[pool],
        predicted.q[pool],
        ~predicted.significant[pool],
    )
    order = pool[np.lexsort(keys)]
    order = order[np.nan_to_num(measured.fold[order]) != 0]
    right = np.sign(predicted.fold[order]) == np.sign(measured.fold[order])
    pure = np.cumsum(right) / np.arange(1, len(order) + 1) >= PURITY
    return float((np.flatnonzero(pure)[-1] + 1) / len(pool)) if pure.any() else 0.0


def jaccard(predicted: Tested, measured: Tested) -> float:
    """Return the share of genes that both call significant of those that one calls (section 6)."""
    either = predicted.significant | measured.significant
    both = predicted.significant & measured.significant
    return float(both.sum() / either.sum()) if either.any() else 1.0


def fold_error(predicted: np.ndarray, measured: np.ndarray, gate: Tested) -> float:
    """Return the absolute error of fold changes [N] as a share of the gate's, over the genes that
    it calls; NaN where there are too few (section 7).
    """
    counts = gate.significant & np.isfinite(gate.fold)
    if counts.sum() < FEWEST_GENES:
        return float("nan")
    error = np.abs(np.nan_to_num(predicted[counts]) - measured[counts]).sum()
    return float(error / np.abs(gate.fold[counts]).sum())


@dataclass(frozen=True)
class Measured:
    """What was measured, with its tests, so that several predictions are compared with it once."""

    panel: Panel

    def __post_init__(self) -> None:
        control = self.panel.of(self.panel.control)
        object.__setattr__(self, "expressed", expressed_genes(control))
        object.__setattr__(self, "tests", dict(self.tests_of(self.panel, control)))

    def tests_of(self, panel: Panel, control: np.ndarray) -> Iterator[tuple[str, Tested]]:
        """Yield each intervention's tests, without the gene that is intervened on."""
        for name in self.panel.names:
            found = tested(panel.of(name), control, self.expressed)
            yield name, found.without(panel.others(name))

    def scores(self, predicted: Panel, own_control: bool = False) -> dict[str, dict[str, float]]:
        """Return the metrics of predicted cells of the same interventions: metric -> intervention
        -> value; `expr_mse` has the two sums that it is the ratio of.

        own_control: the effects of predicted cells are against their own control cells, and not
            against those that were measured.
        """
        panel = self.panel
        control = (predicted if own_control else panel).of(panel.control)
        tests = dict(self.tests_of(predicted, control))
        kept = np.array([gene not in set(panel.names) for gene in panel.genes])
        start, end = profile(control), profile(panel.of(panel.control))
        found = {
            "pds_cosine": discrimination(
                {name: profile(predicted.of(name)) - start for name in panel.names},
                {name: profile(panel.of(name)) - end for name in panel.names},
                kept,
            ),
            "expr_mse": dict(zip(SUMS, expression_error(predicted, panel), strict=True)),
        }
        pairs = {name: (tests[name], self.tests[name]) for name in panel.names}
        found["fidelity"] = {name: fidelity(*pair) for name, pair in pairs.items()}
        found["reach"] = {name: reach(*pair, panel.genes) for name, pair in pairs.items()}
        found["sig_jaccard"] = {name: jaccard(*pair) for name, pair in pairs.items()}
        found["lfc_nmae"] = {
            name: fold_error(here.fold, there.fold, there) for name, (here, there) in pairs.items()
        }
        return found

    def repetitions(self) -> list[dict[str, dict[str, float]]]:
        """Return what repetitions score: one half of the cells against the other, each with its
        own control cells, of several splits into halves (section 8).

        Fold changes are judged with the gate of all cells.
        """
        return [self._halves(seed) for seed in np.random.SeedSequence(0).generate_state(SPLITS)]

    def _halves(self, seed: int) -> dict[str, dict[str, float]]:
        first, second = (self.panel.some(rows) for rows in halves(self.panel.label, seed))
        here = Measured(first)
        scores = here.scores(second, own_control=True)
        folds = [
            {name: fold_change(normalised(half.of(name)), control) for name in self.panel.names}
            for half in (first, second)
            for control in [normalised(half.of(half.control))]
        ]
        scores["lfc_nmae"] = {
            name: fold_error(folds[1][name], folds[0][name], gate)
            for name, gate in self.tests.items()
        }
        return scores


def halves(label: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of two halves without a common cell, of each label as many."""
    generator = np.random.default_rng(int(seed))
    first, second = [], []
    for name in sorted(set(label)):
        rows = generator.permutation(np.flatnonzero(label == name))
        half = len(rows) // 2
        first.append(rows[:half])
        second.append(rows[half : 2 * half])
    return np.concatenate(first), np.concatenate(second)


def mean_scores(*found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the interventions that have it, of several experiments
    together.
    """
    means = {}
    for name in METRICS:
        if name == "expr_mse":
            above, below = (sum(one[name][each] for one in found) for each in SUMS)
            means[name] = above / below
            continue
        values = np.array([value for one in found for value in one[name].values()])
        known = np.isfinite(values)
        means[name] = float(values[known].mean()) if known.any() else float("nan")
    return means


def mean_repetition(*found: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    """Return the mean over splits of the scores of repetitions of several experiments."""
    splits = [mean_scores(*split) for split in zip(*found, strict=True)]
    return {name: float(np.mean([split[name] for split in splits])) for name in METRICS}


def scaled(metric: str, value: float, baseline: float, replicate: float) -> float:
    """Return 0 of a baseline and 1 of a repetition of the experiment (section 8); NaN where a
    repetition is no better than the baseline, so that there is no scale.
    """
    if not (replicate < baseline if metric in LOWER else replicate > baseline):
        return float("nan")
    low, high = LIMITS.get(metric, (-np.inf, np.inf))
    return float(np.clip((value - baseline) / (replicate - baseline), low, high))
