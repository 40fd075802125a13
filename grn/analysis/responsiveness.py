"""How far a gene may move after an intervention that nobody has made.

The expected size of a gene's response is that of its responses to the interventions that were made, and of how much of
its variance goes with other genes: what goes with nothing else is noise, which no regulator moves.

    t_i^2 = (K b e_i + sum_k max(d_ik^2 - se_ik^2, .)) / (K + T)

e_i: share of the variance of gene i that the other genes explain.   d_ik: the effect of intervention k.   b: the mean
squared effect for e = 1. K interventions' worth of weight is on the explained share.

Letters: C cells, N genes, T interventions.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from grn.networks.evidence.caused import Caused

PSEUDO = 30.0  # K: of a screen of 21 interventions, the explained share then weighs somewhat more than these
CELLS, LARGEST = 5000, 4000  # cells and genes that the explained share is computed from
SHRINK = 0.02  # added to the diagonal of the correlations


def explained_share(multiplicity: sparse.csr_matrix, seed: int = 0) -> np.ndarray:
    """The share of each gene's variance over cells that goes with the other genes, [N], 0 to 1, from CSR [C, N].

    With more than LARGEST genes, with those of the largest variance.
    """
    some = np.random.default_rng(seed).permutation(multiplicity.shape[0])[:CELLS]
    x = multiplicity[np.sort(some)].toarray().astype(np.float64)
    x -= x.mean(0)
    sd = x.std(0)
    x /= np.where(sd > 1e-9, sd, 1)
    chosen = np.sort(np.argsort(-sd, kind="stable")[:LARGEST])
    chosen = chosen[sd[chosen] > 1e-9]
    z, share = x[:, chosen], np.zeros(x.shape[1])
    inverse = np.linalg.inv(z.T @ z / len(z) + SHRINK * np.eye(len(chosen)))
    share[chosen] = np.clip(1 - 1 / np.diag(inverse), 0, 1)
    rest = np.setdiff1d(np.flatnonzero(sd > 1e-9), chosen)
    if len(rest):  # what the chosen genes explain of them
        cross = z.T @ x[:, rest] / len(z)
        share[rest] = np.clip((cross * (inverse @ cross)).sum(0), 0, 1)
    return share


def response_sd(explained: np.ndarray, caused: Caused, without: int | None = None) -> np.ndarray:
    """t [N], in sds of the genes. explained [N].   without: an intervention whose effects are not to be known."""
    others = np.arange(caused.effect.shape[1]) != (-1 if without is None else without)
    square = np.square(caused.effect[:, others]) - np.square(caused.error[:, others])
    known = np.isfinite(square)
    count = known.sum(1)
    sums = np.maximum(np.where(known, square, 0).sum(1), 0)
    mean = np.divide(sums, count, out=np.zeros(len(sums)), where=count > 0)
    slope = float(mean @ explained / max(float(explained @ explained), 1e-12))
    return np.sqrt((PSEUDO * slope * explained + sums) / (PSEUDO + count))
