"""Do deletions of yeast's factors tell what their inductions do, where a factor's own deletion is
not looked at?

    python benchmarks/yeast.py       # a minute of a core

The folder that GRN_BENCHMARK_DATA names has log2 fold changes of 573 targets and the messengers of
50 factors after the deletion of each of 179 factors, and, in another assay, 15 minutes after the
induction of each. Methods learn from the deletions of all other factors, and say for each target
whether the factor raises it:

- known targets: the recipe of docs/yeast.md. A factor's activity in each of the other deletions is
  the sum of its known targets there, by their known signs (`yeast_curated_signed.csv.gz`), in sds;
  a target goes with this activity (Pearson). The pair that is asked for is left out of the known
  ones.
- pearson, ridge, genie3: with the factor's messenger, where it is among the 50. Ridge and GENIE3
  leave out the deletions of half of these at a time; GENIE3 has 20 trees for 1000, and the sign of
  Pearson's correlation.
- mean of all: what the other deletions do on average; always up.
- own deletion: minus what the deletion of the factor itself did, which no other method sees.

Scores are of pairs of a factor and a gene that is not its own: `both`, |log2 fold change| of at
least 1 in the induction and in the deletion, of which the truth is sure; `same`, those of which
known targets and Pearson say something; `induced`, at least 1 in the induction; `curated`, the
known edges, each left out in turn. `signs` are the share of right ones among the pairs of which the
method says something, `pairs`; `auroc` is how |score| ranks these pairs among all of which it says
something. Prints a table and writes `yeast.csv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from networks import HERE
from peers.linear import ridge
from peers.trees import genie3
from results_file import write
from sets import folder
from sklearn.metrics import roc_auc_score

LARGE = 1.0  # log2 fold change
FOLDS, TREES = 2, 20
CONTROL = "WT"


class Yeast:
    """deletion, induction [T, N]: log2 fold changes.   known [T, N]: curated signs, 0 without."""

    def __init__(self) -> None:
        deletion, induction = (
            pd.read_csv(folder() / f"yeast_tf_{name}_log2fc.csv.gz", index_col=0).drop(CONTROL)
            for name in ("deletion", "induction15")
        )
        self.factors, self.genes = list(map(str, deletion.index)), list(map(str, deletion.columns))
        self.deletion, self.induction = deletion.to_numpy(float), induction.to_numpy(float)
        curated = pd.read_csv(folder() / "yeast_curated_signed.csv.gz")
        wide = curated.pivot_table(index="source", columns="target", values="sign", aggfunc="first")
        wide = wide.reindex(index=self.factors, columns=self.genes)
        self.known = wide.fillna(0).to_numpy(float)
        place = {gene: column for column, gene in enumerate(self.genes)}
        self.own = np.array([place.get(factor, -1) for factor in self.factors])
        rows = np.flatnonzero(self.own >= 0)
        self.known[rows, self.own[rows]] = 0

    def others(self, factors: np.ndarray) -> np.ndarray:
        """All deletions but those of these factors, [., N], each gene standardised."""
        kept = np.delete(self.deletion, factors, 0)
        return (kept - kept.mean(0)) / kept.std(0)

    def empty(self) -> np.ndarray:
        return np.full(self.deletion.shape, np.nan)


def by_activity(yeast: Yeast) -> np.ndarray:
    """How each target goes with the activity of each factor, [T, N]; NaN of factors without other
    known targets.
    """
    found = yeast.empty()
    for factor in range(len(found)):
        x, sign = yeast.others(np.array([factor])), yeast.known[factor]
        # [., N]: of all known targets but the gene itself
        activity = (x @ sign)[:, None] - x * sign
        size = np.linalg.norm(activity, axis=0) * np.sqrt(len(x))
        found[factor] = np.divide(
            (activity * x).sum(0), size, out=np.full(len(size), np.nan), where=size > 1e-6
        )
    return found


def by_messenger(yeast: Yeast) -> dict[str, np.ndarray]:
    """The same of methods that read the factor's messenger; NaN where it was not measured."""
    found = {name: yeast.empty() for name in ("pearson", "ridge", "genie3")}
    measured = np.flatnonzero(yeast.own >= 0)
    names = [yeast.factors[factor] for factor in measured]
    for factor in measured:
        x = yeast.others(np.array([factor]))
        found["pearson"][factor] = x.T @ x[:, yeast.own[factor]] / len(x)
    for part in np.array_split(np.random.default_rng(0).permutation(measured), FOLDS):
        x = yeast.others(part)
        tables = {
            "ridge": ridge(x, yeast.genes, names, 0),
            "genie3": genie3(x, yeast.genes, names, 0, n_jobs=1, trees=TREES),
        }
        for name, table in tables.items():
            wide = table.pivot_table(index="source", columns="target", values="weight")
            wide = wide.reindex(columns=yeast.genes)
            for factor in part:
                found[name][factor] = wide.loc[yeast.factors[factor]].to_numpy()
    return found


def scored(yeast: Yeast, score: np.ndarray, pairs: np.ndarray, truth: np.ndarray) -> dict:
    """score, truth [T, N]; pairs [T, N]: which are asked for."""
    said = np.isfinite(score) & (score != 0)
    rows = np.flatnonzero(yeast.own >= 0)
    said[rows, yeast.own[rows]] = False
    asked = said & pairs
    found = {
        "pairs": int(asked.sum()),
        "signs": float((np.sign(score) == np.sign(truth))[asked].mean()),
    }
    found["auroc"] = np.nan
    if np.ptp(np.abs(score[said])) > 0:
        found["auroc"] = roc_auc_score(asked[said], np.abs(score[said]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE / "results", metavar="DIR")
    arguments = parser.parse_args()
    yeast = Yeast()
    others = (yeast.deletion.sum(0) - yeast.deletion) / (len(yeast.factors) - 1)
    methods = {"known targets": by_activity(yeast), **by_messenger(yeast)}
    methods |= {"mean of all": -others, "always up": np.ones(others.shape)}
    methods["own deletion"] = -yeast.deletion
    induced = np.abs(yeast.induction) >= LARGE
    both = induced & (np.abs(yeast.deletion) >= LARGE)
    same = both & np.isfinite(methods["known targets"]) & np.isfinite(methods["pearson"])
    sets = {
        "both": (both, yeast.induction),
        "same": (same, yeast.induction),
        "induced": (induced, yeast.induction),
        "curated": (yeast.known != 0, yeast.known),
    }
    table = pd.DataFrame(
        [
            {"pairs of": name, "method": method} | scored(yeast, score, *asked)
            for name, asked in sets.items()
            for method, score in methods.items()
        ]
    )
    for name, part in table.groupby("pairs of", sort=False):
        shown = part.drop(columns="pairs of").set_index("method")
        print(f"\n{name}\n{shown.to_string(float_format='%.3f')}")
    path = arguments.output / "yeast.csv"
    write(path, table)
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
