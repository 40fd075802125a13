"""Do q-values keep what they promise? Nominal false discovery rates against the realised proportions.

    python benchmarks/false_discovery.py [--seeds 3] [--sets default 'sergio_*'] [--knockoffs knockoffs]

Cells with planted networks (grn/data/simulated.py), loaded as the default configuration loads them, and, where
GRN_BENCHMARK_DATA names a folder, SERGIO's two sets. Each entry of the table is

    share of found edges that were not planted / share that nothing connects / share of planted edges that were found

at q <= 0.05, 0.1, 0.2 and 0.5, means over the generator's seeds. "Nothing connects": neither a path nor a common
ancestor in the planted graph. Where there are cell types they tie all regulators to each other besides, so only the set
`one_type` has pairs that are truly independent. Not planted but found: mostly pairs with a common ancestor, or with
another regulator between them whose counts are too noisy to take all the credit.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd
from sets import VARIABLE, folder, read_reference

from grn.config.schema import Config
from grn.data.cells import Cells, load_cells
from grn.data.preprocessing.scale import mean_and_sd
from grn.data.preprocessing.split import Split
from grn.network.false_discovery import edge_q_values
from grn.regulation.knockoffs import fit_with_knockoffs
from grn.regulation.penalty import choose_penalty
from grn.regulation.training_cells import TrainingCells

LEVELS = (0.05, 0.1, 0.2, 0.5)
SIMULATED: dict[str, dict[str, float]] = {
    "default": {},
    "noisy": {"noise": 0.6},
    "shallow": {"depth": 1.5},
    "one_type": {"cell_types": 1},
    "one_type_noisy": {"cell_types": 1, "noise": 0.6},
    "one_type_deep": {"cell_types": 1, "depth": 100.0},
}
SERGIO = ("sergio_ds1", "sergio_ds2")
# What is shown: knock-offs, and whether they stay within cell types.
KINDS = {"shuffled": ("shuffled", False), "shuffled in types": ("shuffled", True), "knockoffs": ("knockoffs", True)}


def simulated(changes: dict[str, float], seed: int) -> tuple[Config, Cells, Split, pd.DataFrame]:
    settings = {"path": "simulated:", "label_key": "cell_type", "simulated": {"seed": seed, **changes}}
    count = Config.model_validate({"data": settings}).data.simulated.regulators
    settings["regulators"] = [f"R{number + 1}" for number in range(count)]
    config = Config.model_validate({"data": settings})
    cells, split = load_cells(config.data, seed=config.trainer.seed)
    assert cells.truth is not None
    return config, cells, split, cells.truth


def sergio(name: str) -> tuple[Config, Cells, Split, pd.DataFrame]:
    import anndata

    path = folder() / f"{name}.h5ad"
    var = anndata.read_h5ad(path, backed="r").var
    regulators = [str(gene) for gene in var.index[var["is_regulator"]]]
    config = Config.model_validate(
        {"data": {"path": str(path), "label_key": "cell_type", "genes": "all", "regulators": regulators}}
    )
    cells, split = load_cells(config.data, seed=config.trainer.seed)
    return config, cells, split, read_reference(folder() / f"{name}_network.csv", list(cells.vocabulary))


def planted(cells: Cells, edges: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """bool [N, R] twice: planted edges; pairs with a path between them or a common ancestor."""
    place = {gene: position for position, gene in enumerate(cells.vocabulary)}
    direct = np.zeros((len(place), len(place)), dtype=bool)  # [target, regulator]
    direct[edges["target"].map(place), edges["source"].map(place)] = True
    above = np.eye(len(place), dtype=bool)  # [gene, ancestor or itself]
    while True:
        further = above | (direct.astype(np.float32) @ above.astype(np.float32) > 0)
        if (further == above).all():
            break
        above = further
    connected = above.astype(np.float32) @ above.T.astype(np.float32) > 0
    return direct[:, cells.regulators], connected[:, cells.regulators]


def measure(
    config: Config, cells: Cells, split: Split, edges: pd.DataFrame, kinds: list[str]
) -> Iterator[tuple[str, list[float]]]:
    """For each kind of knock-offs: what is false, what is unconnected and what was found, at every level."""
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    rows = np.sort(np.concatenate([split.train, split.validation]))
    fitted = TrainingCells.of(cells, rows, mean, sd)
    regulators, seed = fitted.regulators, config.trainer.seed
    penalty = choose_penalty(config.regulation, fitted, seed=seed)
    direct, connected = planted(cells, edges)
    pairs = np.ones(direct.shape, dtype=bool)
    pairs[regulators, np.arange(len(regulators))] = False
    for name in kinds:
        method, within = KINDS[name]
        labels = cells.labels if within else None
        options = {"penalty": penalty, "labels": labels, "seed": seed, "method": method}
        q = edge_q_values(fit_with_knockoffs(config.regulation, fitted, **options), regulators)
        shares: list[float] = []
        for level in LEVELS:
            found = pairs & (q <= level)
            size = max(1, found.sum())
            shares += [(found & ~direct).sum() / size, (found & ~connected).sum() / size]
            shares.append((found & direct).sum() / (pairs & direct).sum())
        yield name, shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="of the generator")
    parser.add_argument("--sets", nargs="+", default=["*"], metavar="NAME", help="names or patterns (default: all)")
    parser.add_argument("--knockoffs", nargs="+", default=list(KINDS), choices=list(KINDS))
    arguments = parser.parse_args()

    print(f"{'set':<15}{'knock-offs':<19}" + "".join(f"{f'q <= {level:g}':<20}" for level in LEVELS))
    for name in (*SIMULATED, *SERGIO):
        if not any(fnmatchcase(name, pattern) for pattern in arguments.sets):
            continue
        if name in SERGIO and not os.environ.get(VARIABLE):
            print(f"{name}: skipped, {VARIABLE} is not set.")
            continue
        found: dict[str, list[list[float]]] = {}
        for seed in range(1 if name in SERGIO else arguments.seeds):
            loaded = sergio(name) if name in SERGIO else simulated(SIMULATED[name], seed)
            for kind, shares in measure(*loaded, arguments.knockoffs):
                found.setdefault(kind, []).append(shares)
        for kind, runs in found.items():
            entries = [" / ".join(f"{share:.2f}" for share in part) for part in np.mean(runs, axis=0).reshape(-1, 3)]
            print(f"{name:<15}{kind:<19}" + "".join(f"{entry:<20}" for entry in entries), flush=True)


if __name__ == "__main__":
    main()
