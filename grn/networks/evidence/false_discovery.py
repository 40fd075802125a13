"""What the knock-offs know: false discovery rates of edges, and the confidence in their signs.

Knock-offs are fitted beside the regulators (grn/regulation/knockoffs.py); their weights show what chance gives. The
q-value of an edge is the lowest false discovery rate among the sets of strongest edges that contain it. The confidence
is the probability that the sign of a weight is right: 0.5, a coin toss, where weights are no stronger than those of
knock-offs.

Letters: N target genes, R regulators, M knock-off pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from grn.networks.weights import Network, balanced, presence, without_self
from grn.regulation.knockoffs import KnockoffFit

NULL_FROM = 0.5  # p-values above it are taken to be of false edges alone: Storey's lambda
SIGNIFICANT = 0.05  # q-value up to which edges are counted
SMOOTHED = 2**20  # most weights and knock-offs that local rates are estimated from


@dataclass(frozen=True)
class Evidence:
    """q [N, R]: q-values, 1 where a regulator meets itself.   confidence [N, R], 0.5 to 1."""

    q: np.ndarray
    confidence: np.ndarray


def edge_evidence(fit: KnockoffFit, regulators: np.ndarray) -> tuple[Evidence, list[Evidence]]:
    """What the knock-offs say of the edges within all states together, and of those of each state.

    The weights of this fit, in which every regulator competes with its knock-off, are close to those of the network and
    not the same. regulators: vocabulary positions [R].
    """
    slopes, null_slopes = (torch.einsum("k,kir->ir", fit.share, each) for each in (fit.slopes, fit.null_slopes))
    together = _evidence(slopes, null_slopes, fit.usual, regulators)
    if len(fit.share) == 1:
        return together, []
    units = presence(fit.sds, fit.usual) * fit.usual  # a regulator that hardly varies in a state counts less there
    each_state = zip(fit.slopes, fit.null_slopes, units, strict=True)
    return together, [_evidence(*of_state, regulators) for of_state in each_state]


def _evidence(slopes: Tensor, null_slopes: Tensor, units: Tensor, regulators: np.ndarray) -> Evidence:
    """Of slopes [N, R] on regulators and on knock-offs, times units [R], with the rows of both balanced together."""
    both = [without_self(each * units, regulators) for each in (slopes, null_slopes)]
    weight, null_weight = balanced(torch.cat(both, 1)).tensor_split(2, 1)
    candidates = without_self(torch.ones_like(weight, dtype=torch.bool), regulators)
    confidence = torch.full_like(weight, 0.5)
    confidence[candidates] = 1 - local_rates(weight[candidates], null_weight[candidates]).float() / 2
    return Evidence(q_values(weight, null_weight, candidates).cpu().numpy(), confidence.cpu().numpy())


def with_evidence(network: Network, together: Evidence, of_states: list[Evidence]) -> Network:
    """The network with confidences and q-values; no weight is changed."""
    states = {
        name: replace(of, confidence=found.confidence, q=found.q)
        for (name, of), found in zip(network.of_states.items(), of_states, strict=True)
    }
    return replace(network, confidence=together.confidence, q=together.q, of_states=states)


def summary(network: Network) -> list[str]:
    """What the knock-offs found, in a few sentences."""
    assert network.q is not None, "the caller has asked"
    found = int((network.q <= SIGNIFICANT).sum())
    lines = [f"{found} edges at a false discovery rate of {SIGNIFICANT}, of associations within states, not of causes."]
    of_states = {name: int((of.q <= SIGNIFICANT).sum()) for name, of in network.of_states.items() if of.q is not None}
    if of_states:
        each = ", ".join(f"{name} {count}" for name, count in list(of_states.items())[:12])
        lines.append(f"Edges of single states at this rate: {each}.")
    if not found and not any(of_states.values()):
        lines.append("No edge stands out from chance within states: weights are small, and mean little.")
    return lines


def local_rates(weight: Tensor, null_weight: Tensor) -> Tensor:
    """Probability that each weight [n] is false, float64, 0 to 1, never larger for a larger |weight|.

    That is the share of false edges times the ratio of the densities of knock-offs [M] and of weights, as an isotonic
    regression of which of the two a value is. One knock-off more counts as the strongest value of all, so that no
    weight is certain. Source: local false discovery rates, Efron et al. 2001.
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
    thresholds = (torch.as_tensor(each).to(size) for each in (regression.X_thresholds_, regression.y_thresholds_))
    share = _interpolated(size, *thresholds)
    ratio = share / (1 - share).clamp(min=1e-9)
    return (null_share(p_values(weight, null_weight)) * ratio).clamp(max=1)


def _sample(values: Tensor) -> Tensor:
    """All values [n], or SMOOTHED of them where there are more."""
    if len(values) <= SMOOTHED:
        return values
    return values[torch.as_tensor(_chosen(len(values), SMOOTHED), device=values.device)]


@lru_cache(maxsize=1)
def _chosen(count: int, chosen: int) -> np.ndarray:
    """The same numbers for all states, as to choose among millions takes a second."""
    return np.random.default_rng(0).choice(count, chosen, replace=False)


def _interpolated(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """The piecewise linear function that has `values` [B] at `at` [B] (ascending), at x [n]; constant outside."""
    after = torch.searchsorted(at, x).clamp(1, max(len(at) - 1, 1))
    left, right = at[after - 1], at[after.clamp(max=len(at) - 1)]
    share = ((x - left) / (right - left).clamp(min=1e-300)).clamp(0, 1)
    return torch.lerp(values[after - 1], values[after.clamp(max=len(at) - 1)], share)


def q_values(weight: Tensor, null_weight: Tensor, candidates: Tensor | None = None) -> Tensor:
    """q [N, R], float64, 0 to 1, never larger for a larger |weight|; 1 for pairs that are not candidates.

    weight, null_weight [N, R]: of one fit, so that they are comparable as they are.   candidates bool [N, R]: pairs
    that may be edges (None: all); the knock-offs of the others are not part of the null either.
    Source: competition with the null (target-decoy search), Elias and Gygi 2007; the rate, Benjamini and Hochberg 1995;
    the share of false edges, Storey 2002 (and its finite-sample form of 2004, which counts one p-value more).
    """
    candidates = torch.ones_like(weight, dtype=torch.bool) if candidates is None else candidates
    p = p_values(weight[candidates], null_weight[candidates])
    q = torch.ones_like(weight, dtype=torch.float64)
    q[candidates] = benjamini_hochberg(p, null_share(p))
    return q


def p_values(weight: Tensor, null_weight: Tensor) -> Tensor:
    """Share of knock-offs [M] at least as strong as each weight [n], the weight itself counted: float64, never 0."""
    null = null_weight.abs().sort()[0]
    size, order = weight.abs().sort()  # in order, they are found soon
    p = torch.empty_like(size, dtype=torch.float64)
    p[order] = (1 + len(null) - torch.searchsorted(null, size)).double() / (1 + len(null))
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
