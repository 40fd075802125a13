"""Do the regulation layers predict held-out cells better than ridge on the same regulators?

    python benchmarks/held_out.py                                # 16 sets, 5 seeds: less than 25 minutes on two cores
    python benchmarks/held_out.py --sets 'sergio_*' --seeds 1    # less than a minute

The sets are those of the folder that GRN_BENCHMARK_DATA names. The error is the one that `grn train` prints at the end
of a run: the squared error over the test cells in variances of the genes, where 1 is as good as each gene's mean. No
gene is predicted from itself. The layers are fitted on the training cells with the default configuration and read the
cell's depth: `layer` is told the cell's type, too, where types are given, and `pooled` is not. Ridge is not told it
either, and chooses a penalty per gene by leave-one-out error. Each seed is another split and initialisation. Prints a
table with the errors of the same runs, and writes `held_out.csv`, where rows of other sets stay.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ours
import pandas as pd
from networks import HERE, deviation
from results_file import merged, ordered, write
from sets import SETS, NetworkSet, load_sets

from grn.cells.load import load_cells
from grn.cells.preprocessing.moments import mean_and_sd
from grn.messages import silent
from grn.regulation.fit import fit_regulation
from grn.regulation.states import states_of
from grn.training.held_out import held_out_errors

ERRORS = {"layer": "regulation_error", "pooled": "pooled_error", "ridge": "ridge_error"}


def errors(one: NetworkSet, seed: int, device: str) -> dict[str, float]:
    """The number of test cells, and the squared errors of the layers and of ridge on them."""
    with tempfile.TemporaryDirectory() as folder:
        config = ours.configuration(one, seed, device, Path(folder) / "cells.h5ad")
        cells, split = load_cells(config.data, seed=seed)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    states = states_of(cells, seed)
    fitted = fit_regulation(config, cells, states, split.train, mean=mean, sd=sd, say=silent)
    found = held_out_errors(fitted.regulation, states, cells, split, mean, sd)
    return {"test_cells": len(split.test)} | {name: found[of] for name, of in ERRORS.items()}


def row(one: NetworkSet, runs: list[dict[str, float]]) -> dict[str, float | str]:
    """Means and standard deviations over the seeds, and the number of seeds on which the layer is below ridge."""
    table = pd.DataFrame(runs)
    size = {"cells": one.cells, "genes": len(one.genes), "regulators": len(one.regulators or one.genes)}
    means = {name: float(table[name].mean()) for name in ERRORS}
    deviations = {f"{name}_sd": float(table[name].std()) for name in means}
    below = int((table["layer"] < table["ridge"]).sum())
    head = {"set": one.name, "seeds": len(runs), "test_cells": int(table["test_cells"].iloc[0])}
    return head | size | means | deviations | {"layer_below_ridge": below}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["*"], metavar="NAME", help="names or patterns (default: all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=HERE / "results", metavar="DIR")
    arguments = parser.parse_args()

    print(f"{'set':<36}{'test cells':>10}  {'layer':<16}{'pooled':<16}{'ridge':<16}seeds with the layer below ridge")
    path = arguments.output / "held_out.csv"
    for one in load_sets(arguments.sets):
        found = row(one, [errors(one, seed, arguments.device) for seed in range(arguments.seeds)])
        shown = [f"{found[name]:.4f}" + deviation(found[f"{name}_sd"], 4) for name in ERRORS]
        below = f"{found['layer_below_ridge']} of {found['seeds']}"
        print(
            f"{one.name:<36}{found['test_cells']:>10}  {''.join(f'{entry:<16}' for entry in shown)}{below}", flush=True
        )
        write(path, ordered(merged(path, pd.DataFrame([found]), ["set"]), set=list(SETS)))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
