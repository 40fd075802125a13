"""What the knock-offs know: false discovery rates of edges, and the confidence in their signs.

Knock-offs are fitted beside the regulators (grn/evidence/knockoffs.py); their weights show what
chance gives. The q-value of an edge is the lowest false discovery rate among the sets of strongest
edges that contain it. The confidence is the probability that the sign of a weight is right: 0.5, a
coin toss, where weights are no stronger than those of knock-offs. The evidence over all cells is
within their states; that of a state is of its own cells alone, and where these are too few for any
plausible correlation to show, there is none.

Letters: N target genes, R regulators, P pairs of them, M knock-off pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm
from torch import Tensor

from grn.cells.preprocessing.moments import seen_together
from grn.cells.preprocessing.split import distinct_cells
from grn.edges.weights import Network, balanced
from grn.evidence.cell_table import CellTable
from grn.evidence.knockoffs import (
    Draws,
    fits_with_knockoffs,
    strata_of,
    strongest_by_chance,
)
from grn.evidence.regressions import sampled
from grn.evidence.sorting import ascending
from grn.runtime.processes import ALONE, Processes

DRAWS = 20
"""Draws of knock-offs in one round. By symmetry, the strongest of all pairs is stronger than all
knock-offs of 20 draws in one of 21 data sets in which no gene depends on another, however the
pairs' weights depend on each other.
"""
STRONGEST = 2
"""Knock-offs more that count as the strongest of all. With one, one of 21 of these data sets would
have a certain edge, which is the rate as promised. With two, no edge is certain alone, and hardly
any has one (benchmarks/nulls.py).
"""
ROUNDS = 49
"""The most rounds. The rates of one round hold, but which edges near a threshold are below it is
chance there. So an edge's q-value is the median over the rounds.
"""
SETTLED = 0.9
"""Rounds end where the certain edges of the first half and of the second half have this Jaccard
index, as those of another seed would.
"""
WORK, WORK_ON_GPU = 1.2e12, 1.5e12  # multiplications that all rounds may take
LEAST_WORK = 2e9  # what a draw takes however few cells there are, in multiplications
NUMBERS = 2**26  # q-values of all rounds that are in memory
NULL_FROM = 0.5  # p-values above it are taken to be of false edges alone: Storey's lambda
SIGNIFICANT = 0.05  # q-value up to which edges are counted
# share of certain associations with another sign in the model above which it knows no signs: by
UNKNOWING = 0.45
# chance it has half of them, give or take a few
PLAUSIBLE = 0.8  # genes of single cells hardly ever correlate more within a cell type
SMOOTHED = 2**18  # most weights and knock-offs that local rates are estimated from


@dataclass(frozen=True)
class Evidence:
    """The q-value and the confidence of every pair, from knock-offs.

    q [N, R]: q-values, 1 for pairs that are no candidates; NaN where the cells are too few.
    confidence [N, R]: 0.5 to 1; NaN where the cells are too few.
    cells: how many there are, each copy counted once.
    least_effect: the smallest partial correlation that they can show: that of the function of this
        name, or the largest that chance gives, whichever is larger (NaN: none).
    slope [N, R]: of each gene on the regulator beside the others and their knock-offs, balanced, 0
        for pairs that are no candidates.
    """

    q: np.ndarray
    confidence: np.ndarray
    cells: int
    least_effect: float
    slope: np.ndarray


def edge_evidence(
    table: CellTable,
    *,
    seed: int,
    least_cells: int,
    together: Evidence | None = None,
    processes: Processes = ALONE,
) -> tuple[Evidence, list[Evidence]]:
    """Return the evidence for edges over all states together, and for those within each state's own
    cells.

    together: the first of the two, if it is known already.
    processes: of which this is the first; the others call `evidence_of_states`.
    """
    together = together or evidence_of(table, seed=seed, least_cells=least_cells)
    return together, evidence_of_states(
        table, seed=seed, least_cells=least_cells, processes=processes
    )


def evidence_of_states(
    table: CellTable, *, seed: int, least_cells: int, processes: Processes = ALONE
) -> list[Evidence]:
    """Return the evidence of each state's own cells, in the first process; none where there is one
    state.

    processes: that call this together, of which each computes some of the states.
    """
    states = table.states.shape[1]

    def of_state(state: int) -> Evidence:
        return evidence_of(
            table_of_state(table, state), seed=seed, least_cells=least_cells, share=1 / states
        )

    return processes.spread(of_state, states) if states > 1 else []


def table_of_state(table: CellTable, state: int) -> CellTable:
    """Return the cells that belong to a state more than to others, in their own units and as if
    there were no other states.
    """
    cells = table.some(np.flatnonzero(table.states.argmax(1) == state))
    return replace(cells, states=np.ones((len(cells), 1), np.float32))


def evidence_of(
    table: CellTable, *, seed: int, least_cells: int, draws: Draws | None = None, share: float = 1.0
) -> Evidence:
    """Return the evidence of knock-offs for the edges within the states of a table.

    The weights of these fits, in which every regulator competes with its knock-off, are close to
    those of the network and not the same. least_cells: a pair is tested where so many cells would
    have both genes by chance, and a smaller number has them in no certain edge.
    draws: in place of `knockoffs`.
    share: of WORK that it may take.
    """
    table = table.some(distinct_cells(table.multiplicity))  # copies of a cell are no more evidence
    expected, seen = cells_with_both(table)
    pairs = np.greater_equal(expected, least_cells)
    pairs[table.regulators, np.arange(len(table.regulators))] = False
    levels = len(np.unique(strata_of(table))) + table.scores.shape[1]
    effect = least_effect(len(table) - levels, int(pairs.sum()))
    if not effect <= PLAUSIBLE:
        nothing = np.broadcast_to(np.float32(np.nan), pairs.shape)
        return Evidence(nothing, nothing, len(table), effect, np.zeros(pairs.shape, np.float32))
    rows, columns = pairs.any(1), pairs.any(0)
    rows[table.regulators[columns]] = True
    tested = np.ix_(rows, columns)
    place = np.cumsum(rows) - 1
    part = replace(
        table,
        multiplicity=table.multiplicity if rows.all() else table.multiplicity[:, rows],
        regulators=place[table.regulators[columns]],
        noise=None,
    )
    chosen = torch.as_tensor(pairs[tested], device=table.device)
    enough = torch.as_tensor(seen[pairs] >= least_cells, device=table.device)
    fits = fits_with_knockoffs(part, seed=seed, draws=draws)
    most = rounds_of(part, int(chosen.sum()), share)
    of_rounds = until_settled(lambda: one_round(islice(fits, DRAWS), chosen, enough), most)
    weights, of_q, of_confidence = (torch.stack(each) for each in zip(*of_rounds, strict=True))
    q, confidence = np.ones(pairs.shape, np.float32), np.full(pairs.shape, 0.5, np.float32)
    q[pairs] = of_q.median(0)[0].cpu().numpy()
    confidence[pairs] = of_confidence.median(0)[0].cpu().numpy()
    slope = np.zeros(pairs.shape, np.float32)
    slope[pairs] = weights.mean(0).cpu().numpy()
    effect = max(effect, strongest_by_chance(part, chosen, seed=seed, draws=DRAWS))
    return Evidence(q, confidence, len(table), effect, slope)


def until_settled(
    another: Callable[[], tuple[Tensor, Tensor, Tensor]], most: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return an odd number of rounds (`one_round`): until both halves of them have the same certain
    edges, or `most`.
    """

    def certain(rounds: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        return torch.stack([q for _, q, _ in rounds]).median(0)[0] <= SIGNIFICANT

    rounds: list[tuple[Tensor, Tensor, Tensor]] = []
    while len(rounds) < most:
        rounds.append(another())
        half = len(rounds) // 2
        if half % 2 and half > 1 and len(rounds) % 2:  # medians of odd numbers, also of the whole
            one, other = certain(rounds[:half]), certain(rounds[-half:])
            if int((one & other).sum()) >= SETTLED * int((one | other).sum()):
                break
    return rounds


def one_round(
    fits: Iterable[tuple[Tensor, Tensor]], chosen: Tensor, enough: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, q-values and confidences of the pairs `chosen` [N, R], [P] each, by some
    draws of knock-offs.

    fits: slopes of regulators and of knock-offs, [N, R] each.
    enough [P]: pairs that enough cells have.
    """
    weight, null = torch.zeros(len(enough), device=enough.device), []
    ahead = torch.zeros_like(weight)
    for slopes in fits:
        real, knockoff = (
            each[chosen] for each in balanced(torch.cat(slopes, 1)).tensor_split(2, 1)
        )
        # Of the two, the stronger one counts: the knock-off of a true regulator does not show what
        # chance gives.
        loses = knockoff.abs() < real.abs()
        weight += real / DRAWS
        ahead += loses / DRAWS
        null.append(torch.where(loses, 0, knockoff))
    weight, every = torch.where(enough & (ahead > 0.5), weight, 0), torch.cat(null)
    p = p_values(weight, every)
    return weight, q_values(p).float(), 1 - local_rates(weight, every, null_share(p)).float() / 2


def rounds_of(table: CellTable, pairs: int, share: float = 1.0) -> int:
    """Return how many rounds of draws take so large a share of WORK, an odd number."""
    genes, features = table.multiplicity.shape[1], 2 * len(table.regulators)
    cells = min(len(table), len(sampled(table, 0)))
    inverse = min(cells, features)
    each = DRAWS * max(
        inverse**3 + inverse * features * cells + features * genes * (inverse + cells), LEAST_WORK
    )
    work = WORK_ON_GPU if torch.device(table.device).type == "cuda" else WORK
    most = int(min(share * work / each, NUMBERS / max(pairs, 1), ROUNDS))
    return max(1, most - (most + 1) % 2)


def cells_with_both(table: CellTable) -> tuple[np.ndarray, np.ndarray]:
    """Return in how many cells a gene and a regulator would both be seen if they did not depend on
    each other within states, float [N, R], and in how many they are, [N, R].

    The first chooses the pairs that are tested. The second would choose those that are seen
    together by chance.
    """
    there = table.multiplicity.astype(bool).astype(np.float32)
    state = table.states.argmax(1)[None] == np.arange(table.states.shape[1])[:, None]
    seen = (there.T @ state.T.astype(np.float32)).T  # [S, N]
    share = seen / np.maximum(state.sum(1, keepdims=True), 1)
    return share.T @ seen[:, table.regulators], seen_together(
        table.multiplicity, table.regulators, table.device
    )


def least_effect(cells: int, pairs: int) -> float:
    """Return the smallest partial correlation with a q-value of at most SIGNIFICANT, if it is the
    only one among the pairs.

    cells: less one for each level of states and donors that was taken out.
    pairs: how many are tested. NaN without pairs, or where the cells leave no degree of freedom. Of
        that size, a correlation is found in half of all samples.
    Source: Fisher 1921, z = artanh(r) has the variance 1 / (cells - 3), here less one for the
        depth.

    >>> round(least_effect(28, 6000), 2)
    0.71
    """
    if pairs < 1 or cells < 4:
        return math.nan
    return math.tanh(norm.isf(SIGNIFICANT / (2 * pairs)) / math.sqrt(cells - 3))


def with_evidence(network: Network, together: Evidence, of_states: list[Evidence]) -> Network:
    """Return the network with confidences and q-values; no weight is changed.

    They are about a weight and its sign: where the association has the other one, nothing is known
    of the edge. Where that is so of about half of the certain associations, the model's signs are
    no better than chance, and no edge is certain.
    """

    def applied(of: Network, evidence: Evidence) -> Network:
        other = of.weight * evidence.slope < 0
        if knows_no_signs(of, evidence):
            other = np.ones_like(other)
        return replace(
            of,
            confidence=np.where(other, 0.5, evidence.confidence),
            q=np.where(other, 1.0, evidence.q),
        )

    pairs = zip(network.of_states.items(), of_states, strict=True)
    states = {name: applied(of, evidence) for (name, of), evidence in pairs}
    return replace(applied(network, together), of_states=states)


def of_certain(evidence: Evidence) -> int:
    """Return how many associations are certain."""
    return int(np.less_equal(evidence.q, SIGNIFICANT).sum())


def knows_no_signs(network: Network, evidence: Evidence) -> bool:
    """Return whether the network has the other sign in about half of the certain associations, as
    by chance.
    """
    return of_other_sign(network, evidence) > UNKNOWING * of_certain(evidence)


def of_other_sign(network: Network, evidence: Evidence) -> int:
    """Return how many certain associations have the other sign in the network, and so are not among
    its certain edges.
    """
    return int(
        (np.less_equal(evidence.q, SIGNIFICANT) & (network.weight * evidence.slope < 0)).sum()
    )


def vetoed(network: Network, evidence: Evidence) -> list[str]:
    """Return a sentence about the certain associations that the model's signs exclude, if there are
    any.
    """
    other, certain = of_other_sign(network, evidence), of_certain(evidence)
    if knows_no_signs(network, evidence):
        return [
            f"The model has the other sign in {other} of {certain} certain associations: it knows "
            "nothing of their signs, so that no edge is certain."
        ]
    if other:
        return [
            f"Not counted among them: {other} of the certain associations, of which the weight has "
            "the other sign."
        ]
    return []


def found_edges(network: Network, together: Evidence, of_states: list[Evidence]) -> pd.DataFrame:
    """Return a row for all cells and for each state: label, cells, edges, borrowed, least_effect
    (see `Evidence`).

    edges: how many have a q-value of at most SIGNIFICANT, by evidence of these cells alone.
    borrowed: how many more have it over all cells, among the pairs that are seen together in some
        cell of the state.
    """
    every = [
        ("all cells", network, together),
        *zip(network.of_states, network.of_states.values(), of_states, strict=True),
    ]
    rows = []
    for label, of, evidence in every:
        certain = certain_pairs(of)
        borrowed = certain_pairs(network) & ~certain & (of.cells > 0)
        rows.append(
            (label, evidence.cells, int(certain.sum()), int(borrowed.sum()), evidence.least_effect)
        )
    counts = pd.DataFrame(rows, columns=["label", "cells", "edges", "borrowed", "least_effect"])
    # Plain strings, which every version of h5ad can hold.
    counts["label"] = counts["label"].astype(object)
    return counts.set_index(pd.Index([str(number) for number in range(len(counts))], dtype=object))


def certain_pairs(network: Network) -> np.ndarray:
    """bool [N, R]: those with a q-value of at most SIGNIFICANT."""
    assert network.q is not None, "the caller has asked"
    return np.less_equal(network.q, SIGNIFICANT)


def summary(counts: pd.DataFrame) -> list[str]:
    """Return a few sentences about the edges found: first what is certain, then what more would
    need.
    """
    every, states = counts.iloc[0], counts.iloc[1:]
    lines = [
        f"{every.edges} edges are certain over all cells (false discovery rate {SIGNIFICANT}): "
        "associations within states, not causes."
    ]
    if (states["edges"] > 0).any():
        some = states[states["edges"] > 0].sort_values("edges", ascending=False, kind="stable")
        each = ", ".join(f"{row.label} {row.edges}" for row in some.itertuples())
        lines.append(f"By the cells of one state alone: {each}.")
    for row in counts[counts["edges"] == 0].itertuples():
        lines.append(f"None in {row.label}: {needed(row.cells, row.least_effect)}.")
    if states["borrowed"].any():
        lines.append(
            "In other states, edges that are certain over all cells are borrowed from these."
        )
    return lines


def needed(cells: int, least_effect: float) -> str:
    """Return in words what so many cells can show."""
    if math.isnan(least_effect):
        return f"in {cells} cells no regulator and gene are seen together often enough"
    if least_effect > PLAUSIBLE:
        return (
            f"{cells} cells are too few, as they show correlations above {least_effect:.2f} alone"
        )
    return (
        f"with {cells} cells only correlations above {least_effect:.2f} can be seen, as chance "
        "alone gives smaller ones, and only where several pairs have them"
    )


def most_certain(
    evidence: Evidence, genes: Sequence[str], regulators: np.ndarray, count: int = 10
) -> str:
    """Return a sentence with the number of certain associations over all cells and the `count`
    strongest of them with their signs; without any, one about what so many cells can show.

    genes: of the rows.
    regulators [R]: the row of each column's gene.
    """
    rows, columns = np.nonzero(np.less_equal(evidence.q, SIGNIFICANT))
    if not len(rows):
        return (
            "Before training: no association over all cells is certain; "
            f"{needed(evidence.cells, evidence.least_effect)}."
        )
    # they have the lowest q
    strongest = np.argsort(-np.abs(evidence.slope[rows, columns]), kind="stable")[:count]
    sign = np.where(evidence.slope > 0, "+", "-")
    pairs = [
        f"{genes[regulators[column]]} {sign[row, column]} {genes[row]}"
        for row, column in zip(rows[strongest], columns[strongest], strict=True)
    ]
    return (
        f"Before training: {len(rows)} associations over all cells are certain (direct or "
        f"indirect; false discovery rate {SIGNIFICANT}). The strongest, regulator and gene with "
        f"the sign: {', '.join(pairs)}."
    )


def local_rates(weight: Tensor, null_weight: Tensor, false: float) -> Tensor:
    """Probability that each weight [n] is false, float64, 0 to 1, never larger for a larger
    |weight|.

    That is the share of false edges, `false`, times the ratio of the densities of knock-offs [M]
    and of weights, as an isotonic regression of which of the two a value is. One knock-off more
    counts as the strongest value of all, so that no weight is certain. Source: local false
    discovery rates, Efron et al. 2001.
    """
    from sklearn.isotonic import IsotonicRegression

    size, null = weight.abs().double(), null_weight.abs().double()
    if not len(size):
        return size
    some, some_null = (_sample(each) for each in (size, null))
    values, order = torch.cat([some, some_null, torch.maximum(size.max(), null.max())[None]]).sort()
    is_null = (order >= len(some)).double()
    importance = torch.where(order < len(some), 1 / len(some), 1 / (len(some_null) + 1))
    regression = IsotonicRegression(increasing=False)
    regression.fit(*(each.double().cpu().numpy() for each in (values, is_null, importance)))
    thresholds = (
        torch.as_tensor(each).to(size)
        for each in (regression.X_thresholds_, regression.y_thresholds_)
    )
    share = _interpolated(size, *thresholds)
    ratio = share / (1 - share).clamp(min=1e-9)
    return (false * ratio).clamp(max=1)


def _sample(values: Tensor) -> Tensor:
    """All values [n], or SMOOTHED of them where there are more."""
    if len(values) <= SMOOTHED:
        return values
    return values[torch.as_tensor(_chosen(len(values), SMOOTHED), device=values.device)]


@lru_cache(maxsize=1)
def _chosen(count: int, chosen: int) -> np.ndarray:
    """Return `chosen` random positions below `count`, drawn once for all states: among millions
    that takes a second.
    """
    return np.random.default_rng(0).choice(count, chosen, replace=False)


def _interpolated(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """Return the piecewise linear function that has `values` [B] at `at` [B] (ascending), at x [n];
    constant outside.
    """
    after = torch.searchsorted(at, x).clamp(1, max(len(at) - 1, 1))
    left, right = at[after - 1], at[after.clamp(max=len(at) - 1)]
    share = ((x - left) / (right - left).clamp(min=1e-300)).clamp(0, 1)
    return torch.lerp(values[after - 1], values[after.clamp(max=len(at) - 1)], share)


def q_values(p: Tensor) -> Tensor:
    """q [n] of p-values [n], float64, 0 to 1.

    Source: competition with the null (target-decoy search), Elias and Gygi 2007; the rate,
        Benjamini and Hochberg 1995; the share of false edges, Storey 2002 (and its finite-sample
        form of 2004, which counts one p-value more).
    """
    return benjamini_hochberg(p, null_share(p))


def p_values(weight: Tensor, null_weight: Tensor) -> Tensor:
    """Share of knock-offs [M] at least as strong as each weight [n], with STRONGEST more: float64,
    never 0.

    Weights and knock-offs are of the same fits, so that they are comparable as they are.
    """
    null = ascending(null_weight.abs())
    size, order = weight.abs().sort()  # in order, they are found soon
    p = torch.empty_like(size, dtype=torch.float64)
    p[order] = (STRONGEST + len(null) - torch.searchsorted(null, size)).double() / (
        STRONGEST + len(null)
    )
    return p


def null_share(p: Tensor) -> float:
    """Estimated share of false edges among all, at most 1."""
    return float(min(1.0, (1 + int((p > NULL_FROM).sum())) / (max(len(p), 1) * (1 - NULL_FROM))))


def benjamini_hochberg(p: Tensor, null_share: float = 1.0) -> Tensor:
    """q [n] of p-values [n]; equal p-values have equal q-values."""
    rates, order = p.sort()
    rates = null_share * len(p) * rates / torch.arange(1, len(p) + 1, device=rates.device)
    q = torch.empty_like(rates)
    q[order] = rates.flip(0).cummin(0)[0].flip(0).clamp(max=1)
    return q
