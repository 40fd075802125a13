"""Scores of networks [S, R, N] against planted ones, as in benchmarks/context.py, without its imports."""

import numpy as np
from scipy.stats import rankdata


def auprc(weight, edge):
    """Average precision of |weight|, ties in the mean order, no weight last."""
    order = np.argsort(-np.abs(weight), kind="stable")
    hit = edge[order].astype(float)
    return float((np.cumsum(hit) / np.arange(1, len(hit) + 1))[hit > 0].mean()) if hit.any() else np.nan


def auroc(value, positive):
    count, others = int(positive.sum()), int((~positive).sum())
    if not count or not others:
        return np.nan
    return float((rankdata(value)[positive].sum() - count * (count + 1) / 2) / (count * others))


def candidates(regulators, N):
    return np.arange(N)[None] != np.asarray(regulators)[:, None]


def typed(weight, truth, regulators):
    pairs = candidates(regulators, weight.shape[2])
    sign = np.where(truth == 2, 0, truth)
    active = truth != 0
    some, changing = active.any(0) & ~active.all(0), active.all(0) & (np.abs(sign.sum(0)) < len(sign))
    right = np.sign(weight) == sign
    return {
        "auprc": np.mean([auprc(w[pairs], a[pairs]) for w, a in zip(weight, active, strict=False)]),
        "signs": np.mean([r[a].mean() for r, a in zip(right, active, strict=False)]),
        "specificity": np.mean([auroc(np.abs(w[some]), a[some]) for w, a in zip(weight, active, strict=False)]),
        "changed": right[:, changing].mean() if changing.any() else np.nan,
    }


def overall(weight, truth, regulators):
    """One network [R, N]: AUPRC over all pairs, its ratio to chance among the reference's genes, signs, pure chains."""
    pairs, edge, sign = candidates(regulators, weight.shape[1]), truth[0] != 0, truth[0]
    place, w = np.asarray(regulators), np.abs(weight)
    chains = [
        w[a, c] < min(w[b, c], w[a, place[b]])
        for b, c in zip(*edge.nonzero(), strict=False)
        for a in edge[:, place[b]].nonzero()[0]
        if not edge[a, c] and place[a] != c
    ]
    r, g = edge.any(1), edge.any(0)
    g[place[r]] = True
    inside = pairs & r[:, None] & g[None]
    ranked = np.argsort(-w[inside], kind="stable")
    k, e = int(edge[inside].sum()), edge[inside]
    cut = w[inside][ranked[k - 1]] if k else 0
    top = w[inside] >= cut
    return {
        "auprc": auprc(weight[pairs], edge[pairs]),
        "ratio": auprc(weight[inside], e) / e.mean() if k else np.nan,
        "early": e[top].mean() / e.mean() if k else np.nan,
        "signs": (np.sign(weight) == sign)[edge & (sign != 2)].mean() if k else np.nan,
        "chains": float(np.mean(chains)) if chains else np.nan,
    }
