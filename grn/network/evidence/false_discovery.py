"""What the knock-offs know: false discovery rates of edges, and the confidence in their signs.

Knock-offs are fitted beside the regulators (grn/regulation/knockoffs.py); their weights show what chance gives. The
q-value of an edge is the lowest false discovery rate among the sets of strongest edges that contain it. The confidence
is the probability that the sign of a weight is right: 0.5, a coin toss, where weights are no stronger than those of
knock-offs.

Letters: N target genes, R regulators, M knock-off pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from grn.network.readouts.effect import presence
from grn.network.weights import Network, balanced
from grn.regulation.knockoffs import KnockoffFit

NULL_FROM = 0.5  # p-values above it are taken to be of false edges alone: Storey's lambda
MANY = 2**20  # values, from which on a GPU sorts them, where there is one
FEW, POWER = 0.1, 0.75  # of regulator_factor; chosen on simulated cells with 60 to 90 % zeros (docs/log.md)
SMOOTHED = 2**20  # most weights and knock-offs that local rates are estimated from


@dataclass(frozen=True)
class Evidence:
    """q [N, R]: q-values, 1 where a regulator meets itself.   confidence [N, R], 0.5 to 1.   factor [N, R], 0 to 1: the
    weights are multiplied by it."""

    q: np.ndarray
    confidence: np.ndarray
    factor: np.ndarray


def edge_evidence(fit: KnockoffFit, regulators: np.ndarray) -> tuple[Evidence, list[Evidence]]:
    """What the knock-offs say of the edges within all states together, and of those of each state.

    The weights of this fit, in which every regulator competes with its knock-off, are close to those of the network and
    not the same. An edge of one state is likely to be one of others, so that the factor of a state's weight has a part
    that all states share: how likely it is that the pair is an edge in any of them. It counts the more, the less the
    state's own weights stand out from its knock-offs'. regulators: vocabulary positions [R].
    """
    usual = fit.usual.cpu().numpy()
    slopes = (fit.slopes, fit.null_slopes)
    mean, null_mean = (torch.einsum("k,kir->ir", fit.share, each).cpu().numpy() * usual for each in slopes)
    together = _evidence(*_balanced(mean, null_mean, regulators))
    together = replace(together, factor=together.confidence * regulator_factor(together.confidence))
    if len(fit.share) == 1:
        return together, []
    size, null_size = (_root_mean_square(each, fit.share).cpu().numpy() * usual for each in slopes)
    in_any, null_in_any, candidates = _balanced(size, null_size, regulators)
    is_edge = np.zeros(candidates.shape, np.float32)
    is_edge[candidates] = 1 - local_rates(in_any[candidates], null_in_any[candidates])
    of_states = []
    for real, null, unit in zip(*slopes, presence(fit.sds, fit.usual) * fit.usual, strict=True):
        weight, null_weight = (real * unit).cpu().numpy(), (null * unit).cpu().numpy()
        alone = signal_share(weight, null_weight)
        found = _evidence(*_balanced(weight, null_weight, regulators))
        of_states.append(replace(found, factor=found.confidence * (alone + (1 - alone) * is_edge)))
    return together, of_states


def certain_pairs(fit: KnockoffFit, regulators: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """How certain it is that each pair is associated, float32 [N, R], 0 to 1: over all states, and in each of several.

    regulators: vocabulary positions [R].
    """
    usual = fit.usual.cpu().numpy()
    slopes = (fit.slopes, fit.null_slopes)
    mean, null_mean = (torch.einsum("k,kir->ir", fit.share, each).cpu().numpy() * usual for each in slopes)
    together = _certain(mean, null_mean, regulators)
    if len(fit.share) == 1:
        return together, []
    units = presence(fit.sds, fit.usual) * fit.usual
    return together, [
        _certain((real * unit).cpu().numpy(), (null * unit).cpu().numpy(), regulators)
        for real, null, unit in zip(*slopes, units, strict=True)
    ]


def _certain(weight: np.ndarray, null_weight: np.ndarray, regulators: np.ndarray) -> np.ndarray:
    weight, null_weight, candidates = _balanced(weight, null_weight, regulators)
    certain = np.zeros(weight.shape, np.float32)
    certain[candidates] = 1 - local_rates(weight[candidates], null_weight[candidates])
    return certain


def regulator_factor(confidence: np.ndarray) -> np.ndarray:
    """[R], 0 to 1, of confidences [N, R]: a regulator of which many edges are certain is likely to have others."""
    share = (2 * confidence - 1).mean(0)  # of the targets whose sign is certain
    return ((share + FEW) / (1 + FEW)) ** POWER


def signal_share(weight: np.ndarray, null_weight: np.ndarray) -> float:
    """S / (S + 2 n): S, the mean square of weights above that of knock-offs, n. The noise of both counts; 0 to 1."""
    noise = float(np.square(null_weight).mean())
    signal = max(float(np.square(weight).mean()) - noise, 0.0)
    return signal / max(signal + 2 * noise, 1e-30)


def _root_mean_square(values: Tensor, share: Tensor) -> Tensor:
    """Over states: values [K, N, R], share [K] -> [N, R]. One state after the other, as the table is large."""
    total = torch.zeros_like(values[0])
    for each, part in zip(values, share, strict=True):
        total += part * each.square()
    return total.sqrt()


def _balanced(
    weight: np.ndarray, null_weight: np.ndarray, regulators: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The effects of the regulators and of their knock-offs, [N, R] each, with rows balanced together, and which pairs
    are candidates, bool [N, R]."""
    candidates = np.ones(weight.shape, dtype=bool)
    candidates[regulators, np.arange(len(regulators))] = False
    both = balanced(np.concatenate([np.where(candidates, weight, 0), np.where(candidates, null_weight, 0)], axis=1))
    return both[:, : weight.shape[1]], both[:, weight.shape[1] :], candidates


def _evidence(weight: np.ndarray, null_weight: np.ndarray, candidates: np.ndarray) -> Evidence:
    """Of balanced effects [N, R]."""
    confidence = np.full(weight.shape, 0.5, np.float32)
    confidence[candidates] = 1 - local_rates(weight[candidates], null_weight[candidates]) / 2
    return Evidence(q_values(weight, null_weight, candidates), confidence, confidence)


def with_evidence(network: Network, together: Evidence, of_states: list[Evidence]) -> Network:
    """The network with confidences and q-values. All weights are multiplied by the factors."""
    by_type = {
        name: weight * of_state.factor
        for (name, weight), of_state in zip(network.by_type.items(), of_states, strict=True)
    }
    within = network.within * together.factor
    return replace(
        network,
        weight=within if network.weight is network.within else network.weight * together.factor,
        within=within,
        total=None if network.total is None else network.total * together.factor,
        by_type=by_type,
        confidence=together.confidence,
        type_confidence={name: each.confidence for name, each in zip(by_type, of_states, strict=True)},
        q=together.q,
        type_q={name: each.q for name, each in zip(by_type, of_states, strict=True)},
    )


def local_rates(weight: np.ndarray, null_weight: np.ndarray) -> np.ndarray:
    """Probability that each weight [n] is false, 0 to 1, never larger for a larger |weight|.

    That is the share of false edges times the ratio of the densities of knock-offs [M] and of weights, as an isotonic
    regression of which of the two a value is. One knock-off more counts as the strongest value of all, so that no
    weight is certain. Source: local false discovery rates, Efron et al. 2001.
    """
    from sklearn.isotonic import IsotonicRegression

    size, null = np.abs(weight), np.abs(null_weight)
    if not len(size):
        return np.zeros(0)
    some, some_null = (_sample(each) for each in (size, null))
    values = np.concatenate([some, some_null, [max(size.max(), null.max())]])
    is_null = np.concatenate([np.zeros(len(some)), np.ones(len(some_null) + 1)])
    importance = np.concatenate([np.full(len(some), 1 / len(some)), np.full(len(some_null) + 1, 1 / len(some_null))])
    regression = IsotonicRegression(increasing=False).fit(values, is_null, importance)
    share = np.interp(size, regression.X_thresholds_, regression.y_thresholds_)
    ratio = share / np.maximum(1 - share, 1e-9)
    return np.minimum(1, null_share(p_values(weight, null_weight)) * ratio)


def _sample(values: np.ndarray) -> np.ndarray:
    """All values [n], or SMOOTHED of them where there are more."""
    return values if len(values) <= SMOOTHED else np.random.default_rng(0).choice(values, SMOOTHED, replace=False)


def q_values(weight: np.ndarray, null_weight: np.ndarray, candidates: np.ndarray | None = None) -> np.ndarray:
    """q [N, R], 0 to 1, never larger for a larger |weight|; 1 for pairs that are not candidates.

    weight, null_weight [N, R]: of one fit, so that they are comparable as they are.   candidates bool [N, R]: pairs
    that may be edges (None: all); the knock-offs of the others are not part of the null either.
    Raises ValueError where shapes differ or a weight is not finite.
    Source: competition with the null (target-decoy search), Elias and Gygi 2007; the rate, Benjamini and Hochberg 1995;
    the share of false edges, Storey 2002 (and its finite-sample form of 2004, which counts one p-value more).
    """
    candidates = np.ones(weight.shape, dtype=bool) if candidates is None else candidates
    if not weight.shape == null_weight.shape == candidates.shape:
        shapes = f"weights {weight.shape}, knock-offs {null_weight.shape}, candidates {candidates.shape}"
        raise ValueError(f"The shapes must be equal, and they are: {shapes}.")
    p = p_values(weight[candidates], null_weight[candidates])
    q = np.ones(weight.shape)
    q[candidates] = benjamini_hochberg(p, null_share(p))
    return q


def p_values(weight: np.ndarray, null_weight: np.ndarray) -> np.ndarray:
    """Share of knock-offs [M] that are at least as strong as each weight [n], the weight itself counted: never 0."""
    if not (np.isfinite(weight).all() and np.isfinite(null_weight).all()):
        raise ValueError("A weight is not finite.")
    device = _device(len(null_weight))
    null = torch.as_tensor(np.abs(null_weight), device=device).sort()[0]
    size, order = torch.as_tensor(np.abs(weight), device=device).to(null.dtype).sort()  # in order, they are found soon
    p = torch.empty(len(size), dtype=torch.float64, device=device)
    p[order] = (1 + len(null) - torch.searchsorted(null, size)).double() / (1 + len(null))
    return p.cpu().numpy()


def null_share(p: np.ndarray) -> float:
    """Estimated share of false edges among all, at most 1."""
    return float(min(1.0, (1 + (p > NULL_FROM).sum()) / (max(len(p), 1) * (1 - NULL_FROM))))


def benjamini_hochberg(p: np.ndarray, null_share: float = 1.0) -> np.ndarray:
    """q [n] of p-values [n]; equal p-values have equal q-values."""
    rates, order = torch.as_tensor(p, device=_device(len(p))).sort()
    rates = null_share * len(p) * rates / torch.arange(1, len(p) + 1, device=rates.device)
    q = torch.empty_like(rates)
    q[order] = rates.flip(0).cummin(0)[0].flip(0).clamp(max=1)
    return q.cpu().numpy()


def _device(count: int) -> str:
    """A GPU, where there is one, sorts millions of values in an instant."""
    return "cuda" if count > MANY and torch.cuda.is_available() else "cpu"
