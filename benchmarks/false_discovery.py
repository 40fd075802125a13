"""Do q-values keep their promise?

    # 4 minutes of one CPU thread, without SERGIO's sets
    python benchmarks/false_discovery.py
    # 10 seconds
    python benchmarks/false_discovery.py --seeds 1 --sets default

Compares nominal false discovery rates with the true ones on planted networks. The cells are
simulated (grn/cells/simulated/cells.py) and loaded as by the default configuration; with
GRN_BENCHMARK_DATA, also SERGIO's two sets. An entry of the table has three proportions, means over
the generator's seeds:

    found edges that were not planted
    / found edges whose genes are not connected
    / planted edges that were found

at q <= 0.05, 0.1, 0.2 and 0.5. Genes are connected by a path or by a common ancestor in the planted
graph. Cell types link all regulators besides, so only sets of one type have pairs that are truly
independent. Edges that were found but not planted mostly have a common ancestor, or another
regulator between them whose counts are too noisy to explain all.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd
from arguments import PATTERNS, Option, read_options
from sets import VARIABLE, folder, read_reference

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.config.schema import Config, Simulation
from grn.evidence.cell_table import CellTable
from grn.evidence.q_values import evidence_of
from grn.evidence.states import states_of

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


def simulated(changes: dict[str, float], seed: int) -> tuple[Config, Cells, pd.DataFrame]:
    settings = {
        "path": "simulated:",
        "label_key": "cell_type",
        "simulated": Simulation(**{"seed": seed, **changes}),
    }
    count = Config.model_validate({"data": settings}).data.simulated.regulators
    settings["regulators"] = [f"R{number + 1}" for number in range(count)]
    config = Config.model_validate({"data": settings})
    cells, _ = load_cells(config.data, seed=config.trainer.seed)
    assert cells.truth is not None
    return config, cells, cells.truth


def sergio(name: str) -> tuple[Config, Cells, pd.DataFrame]:
    import anndata

    path = folder() / f"{name}.h5ad"
    var = anndata.read_h5ad(path, backed="r").var
    regulators = [str(gene) for gene in var.index[var["is_regulator"]]]
    config = Config.model_validate(
        {
            "data": {
                "path": str(path),
                "label_key": "cell_type",
                "genes": "all",
                "regulators": regulators,
            }
        }
    )
    cells, _ = load_cells(config.data, seed=config.trainer.seed)
    return config, cells, read_reference(folder() / f"{name}_network.csv", list(cells.vocabulary))


def planted(cells: Cells, edges: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """bool [N, R] twice: planted edges; pairs that a path or a common ancestor connects."""
    position = {gene: index for index, gene in enumerate(cells.vocabulary)}
    direct = np.zeros((len(position), len(position)), dtype=bool)  # [target, regulator]
    direct[edges["target"].map(position), edges["source"].map(position)] = True
    above = np.eye(len(position), dtype=bool)  # [gene, ancestor or itself]
    while True:
        further = above | (direct.astype(np.float32) @ above.astype(np.float32) > 0)
        if (further == above).all():
            break
        above = further
    connected = above.astype(np.float32) @ above.T.astype(np.float32) > 0
    return direct[:, cells.regulators], connected[:, cells.regulators]


def measure(config: Config, cells: Cells, edges: pd.DataFrame) -> list[float]:
    """The three proportions at every level, one after the other."""
    seed = config.trainer.seed
    direct, connected = planted(cells, edges)
    table = CellTable.of(cells, np.arange(len(cells)), states_of(cells, seed).membership)
    pairs = np.ones(direct.shape, dtype=bool)
    pairs[table.regulators, np.arange(len(table.regulators))] = False
    q = evidence_of(table, seed=seed, least_cells=config.network.least_cells).q
    proportions: list[float] = []
    for level in LEVELS:
        found = pairs & (q <= level)
        size = max(1, found.sum())
        proportions += [(found & ~other).sum() / size for other in (direct, connected)]
        proportions.append((found & direct).sum() / (pairs & direct).sum())
    return proportions


def main() -> None:
    arguments = read_options(
        __doc__, seeds=Option(3, "seeds of the generator (default: 3)"), sets=PATTERNS
    )

    print(f"{'set':<15}" + "".join(f"{f'q <= {level:g}':<20}" for level in LEVELS))
    for name in (*SIMULATED, *SERGIO):
        if not any(fnmatchcase(name, pattern) for pattern in arguments.sets):
            continue
        if name in SERGIO and not os.environ.get(VARIABLE):
            print(f"{name}: skipped, because {VARIABLE} is not set.")
            continue
        runs = [
            measure(*(sergio(name) if name in SERGIO else simulated(SIMULATED[name], seed)))
            for seed in range(1 if name in SERGIO else arguments.seeds)
        ]
        entries = (
            " / ".join(f"{proportion:.2f}" for proportion in part)
            for part in np.mean(runs, axis=0).reshape(-1, 3)
        )
        print(f"{name:<15}" + "".join(f"{entry:<20}" for entry in entries), flush=True)


if __name__ == "__main__":
    main()
