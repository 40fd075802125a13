"""Does the model predict held-out cells better than ridge and a perceptron of the same inputs?

    python benchmarks/held_out.py    # all sets, 5 seeds: hours of a core
    python benchmarks/held_out.py --sets kang pbmc3k papalexi --seeds 3
    python benchmarks/held_out.py --sets 'sergio_*' --seeds 1

The sets are those of networks.py and three of observed cells (kang, papalexi, pbmc3k), in the
folder that GRN_BENCHMARK_DATA names. The error is the one that `grn train` prints: the squared
error over the test cells in variances of the genes, where 1 is as good as each gene's mean, here
over the genes that are no regulators. Where every gene is one, it is over all genes, each without
itself, which the multilayer perceptron cannot do. All read the regulators; the model and the
perceptron read the cell's depth, too, and its type where types are given; ridge chooses a penalty
per gene by leave-one-out error. Each seed is another split and initialisation. Prints a table with
the errors of the same runs, and writes `held_out.csv`, where rows of other sets stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
import ours
import pandas as pd
import torch
from arguments import PATTERNS, RESULTS, read_options
from networks import deviation
from peers import perceptron
from results_file import merged, ordered, write
from sets import SETS, NetworkSet, folder, load_sets
from sklearn.preprocessing import StandardScaler

from grn.bags import Bags
from grn.evidence.states import states_of
from grn.networks.baselines import ridge_predictions

METHODS = ("model", "ridge", "perceptron")
OBSERVED = {"kang": "kang_ifnb", "papalexi": "papalexi_eccite_thp1", "pbmc3k": "pbmc3k"}
GENES, SEEN = (
    600,
    0.05,
)  # of observed cells: the most variable genes beside the regulators, and the least share of cells
AS_REGULATORS = 0.35  # of Papalexi's genes: few factors were measured on these cells


def observed(name: str) -> NetworkSet:
    """Observed cells, without types: the transcription factors, and the most variable of the other
    genes.
    """
    import anndata

    cells = anndata.read_h5ad(folder() / f"{OBSERVED[name]}.h5ad")
    x, names = cells.X.toarray().astype(np.float32), np.asarray(cells.var_names, dtype=str)
    factor = np.isin(names, (folder() / "human_tfs.txt").read_text().split())
    if name == "papalexi":
        factor |= np.random.default_rng(1).random(len(factor)) < AS_REGULATORS
    seen = (x > 0).mean(0) > SEEN
    values = np.log1p(x / x.sum(1, keepdims=True) * np.median(x.sum(1)))
    others = np.flatnonzero(seen & ~factor)
    others = others[
        np.argsort(-(values[:, others].var(0) / (values[:, others].mean(0) + 0.1)))[:GENES]
    ]
    regulators = np.flatnonzero(seen & factor)
    keep = np.concatenate([regulators, others])
    nothing = pd.DataFrame({"source": [], "target": [], "sign": []})
    genes, known = names[keep].tolist(), names[regulators].tolist()
    return NetworkSet(name, genes, "counts", x[:, keep], None, known, nothing, "reference", "")


def chosen(patterns: list[str]) -> Iterator[NetworkSet]:
    """The sets whose names match one of the patterns."""
    loaders: dict[str, Callable[[], NetworkSet]] = {
        name: partial(observed, name) for name in OBSERVED
    }
    loaders |= {name: lambda name=name: load_sets([name])[0] for name in SETS}
    for name, load in loaders.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            yield load()


@torch.no_grad()
def errors(
    one: NetworkSet, seed: int, device: str, methods: tuple[str, ...] = METHODS
) -> dict[str, float]:
    """The number of test cells, and the squared error of each method on them."""
    trained, cells, split = ours.trained(one, seed, device)
    model = trained.model
    states = states_of(cells, seed)
    known = None if states.origin == "found" else torch.as_tensor(states.membership)
    regulators = model.regulators.cpu().numpy()
    genes = np.setdiff1d(np.arange(len(cells.vocabulary)), regulators)
    every = not len(genes)
    genes = np.arange(len(cells.vocabulary)) if every else genes
    test = cells.multiplicity[split.test].toarray()
    basal = torch.as_tensor(cells.basal[split.test])
    bags = Bags(torch.as_tensor(test), basal, None if known is None else known[split.test]).to(
        model.mean.device
    )
    found = {"model": model(bags).multiplicity.cpu().numpy()}
    if "ridge" in methods:
        found["ridge"] = np.zeros_like(test)
        within = None if known is None or len(states) == 1 else states.membership
        of_genes = ridge_predictions(
            cells.multiplicity,
            split.train,
            split.test,
            regulators,
            basal=cells.basal,
            membership=within,
        )
        for some, predicted, _ in of_genes:
            found["ridge"][:, some] = predicted
    if "perceptron" in methods and not every:
        scaler = StandardScaler().fit(cells.multiplicity[split.train].toarray())
        values = scaler.transform(cells.multiplicity.toarray())
        depth = StandardScaler().fit(cells.basal[split.train, None]).transform(cells.basal[:, None])
        of_state = [] if known is None or len(states) == 1 else [states.membership]
        x = np.hstack([values[:, regulators], depth, *of_state])
        y = values[split.train][:, genes]
        found["perceptron"] = np.zeros_like(test)
        with torch.enable_grad():
            of_genes = perceptron.predicted(x[split.train], y, x[split.test], seed, device)
        found["perceptron"][:, genes] = scaler.mean_[genes] + scaler.scale_[genes] * of_genes
    spread = model.identity.sd.cpu().numpy()[genes]
    scores = {
        name: float(np.square((p - test)[:, genes] / spread).mean()) for name, p in found.items()
    }
    return {"test_cells": len(split.test)} | dict.fromkeys(METHODS, np.nan) | scores


def row(one: NetworkSet, runs: list[dict[str, float]]) -> dict[str, float | str]:
    """Means and standard deviations over the seeds, and the number of seeds on which the model is
    below each other.
    """
    table = pd.DataFrame(runs)
    size = {
        "cells": one.cells,
        "genes": len(one.genes),
        "regulators": len(one.regulators or one.genes),
    }
    means = {name: float(table[name].mean()) for name in METHODS}
    deviations = {f"{name}_sd": float(table[name].std()) for name in means}
    below = {f"below_{name}": int((table["model"] < table[name]).sum()) for name in METHODS[1:]}
    head = {"set": one.name, "seeds": len(runs), "test_cells": int(table["test_cells"].iloc[0])}
    return head | size | means | deviations | below


def main() -> None:
    arguments = read_options(
        __doc__, sets=PATTERNS, seeds=5, first_seed=0, device="cpu", output=RESULTS
    )

    columns = "".join(f"{name:<17}" for name in METHODS)
    print(
        f"{'set':<36}{'test cells':>10}  {columns}seeds with the model below ridge and perceptron"
    )
    path = arguments.output / "held_out.csv"
    for one in chosen(arguments.sets):
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        found = row(one, [errors(one, seed, arguments.device) for seed in seeds])
        shown = "".join(
            f"{f'{found[name]:.4f}' + deviation(found[f'{name}_sd'], 4):<17}" for name in METHODS
        )
        below = f"{found['below_ridge']} and {found['below_perceptron']} of {found['seeds']}"
        print(f"{one.name:<36}{found['test_cells']:>10}  {shown}{below}", flush=True)
        write(path, ordered(merged(path, pd.DataFrame([found]), ["set"]), set=[*OBSERVED, *SETS]))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
