"""How far a gene may move after an intervention that nobody has made.

The expected size of a gene's response is that of its responses to the interventions that were made,
and of how much of its variance goes with other genes: what goes with nothing else is noise, which
no regulator moves.

    t_i^2 = w_i r_i + (1 - w_i) b e_i
    r_i   = mean over interventions of (d_ik^2 - se_ik^2)
    w_i   = o / (o + v_i)
e_i: share of the variance of gene i that the other genes explain.
d_ik: the effect of intervention k.
b: regression of r on e.
v_i: sampling variance of r_i, to which all genes together count as two interventions.
o: variance of r around b e beyond v (empirical Bayes).

Letters: C cells, N genes, T interventions.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from grn.evidence.caused import Caused

CELLS, LARGEST = 5000, 4000  # cells and genes that the explained share is computed from
SHRINK = 0.02  # added to the diagonal of the correlations


def explained_share(multiplicity: sparse.csr_matrix) -> np.ndarray:
    """The share of each gene's variance over cells that goes with the other genes, [N], 0 to 1,
    from CSR [C, N].

    With more than LARGEST genes, with those of the largest variance.
    """
    some = np.random.default_rng(0).permutation(multiplicity.shape[0])[:CELLS]
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


def response_sd(explained: np.ndarray, caused: Caused) -> np.ndarray:
    """t [N], in sds of the genes. explained [N]."""
    square = np.square(caused.effect, dtype=np.float64) - np.square(caused.error)
    known = np.isfinite(square)
    count = known.sum(1)
    mean = np.where(known, square, 0).sum(1) / np.maximum(count, 1)
    apart = np.where(known, np.square(square - mean[:, None]), 0).sum(1)
    several = (count > 1) & (explained > 0)
    variance = apart / np.maximum(count * (count - 1), 1)
    common = float(variance[several].mean()) if several.any() else 0.0
    variance = (count * variance + 2 * common) / (count + 2)
    slope = max(
        float(mean[several] @ explained[several])
        / max(float(np.square(explained[several]).sum()), 1e-12),
        0,
    )
    prior = slope * explained
    between = (
        max(float(np.square(mean - prior)[several].mean()) - common, 0) if several.any() else 0.0
    )
    weight = np.where(count > 1, between / np.maximum(between + variance, 1e-30), 0)
    return np.sqrt(np.maximum(weight * mean + (1 - weight) * prior, 0))
