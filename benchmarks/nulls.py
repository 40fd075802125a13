"""Do groups of cells in which no gene depends on another have certain edges? They should, in 1 of
20 draws at most.

    python benchmarks/nulls.py                                # TIME of one CPU thread
    python benchmarks/nulls.py --draws 3 --sizes 30 100 --cells simulated    # SECONDS

A row is a kind of null and a number of cells; entries are the share of draws with any edge at
q <= 0.05 in the group, and the mean number of edges over all draws. Only evidence is computed, no
model is trained. Cells: simulated ones with a planted network, and with GRN_BENCHMARK_DATA the
monocytes and T cells of interferon-treated blood. Kinds:

- permuted: a group of so many cells of one type, every gene permuted within it, among all other
  cells, which stay
- copies: the same, with every cell of the group three times
- donors: the same, where the cells have four donors, in each of which every gene has a level of its
  own
- modules: regulators alone are permuted, among cells of one depth; all other genes depend on each
  other as they do
- everywhere: every type permuted gene by gene; the entry counts edges over all cells, within types
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from anndata import AnnData
from arguments import all_of, read_options
from scipy import sparse
from sets import VARIABLE, folder

from grn.cells.load import load_cells
from grn.cells.simulated.cells import simulate
from grn.config.schema import Config, Simulation
from grn.evidence.cell_table import CellTable
from grn.evidence.q_values import SIGNIFICANT, evidence_of, table_of_state
from grn.evidence.states import states_of

SIZES = (3, 5, 10, 30, 100, 300, 1000)
DONORS, SPREAD = 4, 0.7  # donors, and the sd of the logarithm of their genes' levels
ALIKE = 10  # cells of nearly the same depth
LABEL, GROUP = "cell_type", "donor"


def permuted(
    counts: np.ndarray, generator: np.random.Generator, regulators: np.ndarray
) -> np.ndarray:
    return generator.permuted(counts, axis=0)


def modules(
    counts: np.ndarray, generator: np.random.Generator, regulators: np.ndarray
) -> np.ndarray:
    """Only depth relates regulators to other genes: the counts of each come from cells of nearly
    the same total.
    """
    moved, ordered = counts.copy(), np.argsort(counts.sum(1), kind="stable")
    for part in np.array_split(ordered, max(1, len(counts) // ALIKE)):
        moved[np.ix_(part, regulators)] = generator.permuted(
            counts[np.ix_(part, regulators)], axis=0
        )
    return moved


def donors(
    counts: np.ndarray, generator: np.random.Generator, regulators: np.ndarray
) -> np.ndarray:
    level = np.exp(SPREAD * generator.standard_normal((DONORS, counts.shape[1])))
    return generator.poisson(
        permuted(counts, generator, regulators) * level[np.arange(len(counts)) % DONORS]
    )


KINDS: dict[str, Callable[[np.ndarray, np.random.Generator, np.ndarray], np.ndarray]] = {
    "permuted": permuted,
    "copies": permuted,
    "donors": donors,
    "modules": modules,
}


def cells_named(name: str, seed: int) -> tuple[AnnData, list[str]]:
    """Counts with a column LABEL, and the regulators."""
    if name == "simulated":
        adata = simulate(Simulation(cells=3000, genes=200, regulators=30, cell_types=2, seed=seed))
        return adata, [f"R{number + 1}" for number in range(30)]
    import anndata

    adata = anndata.read_h5ad(folder() / "kang_ifnb.h5ad")
    adata.obs[LABEL] = adata.obs["cell_type_predicted"]
    return adata, (folder() / "human_tfs.txt").read_text().split()


def edges_of_null(adata: AnnData, regulators: list[str], kind: str, size: int, seed: int) -> int:
    """How many pairs of a null have a q-value of at most SIGNIFICANT."""
    generator = np.random.default_rng(seed)
    counts = sparse.csr_matrix(adata.X).toarray()
    types = np.asarray(adata.obs[LABEL].astype(str), dtype=object)
    of_regulators = np.flatnonzero(adata.var_names.isin(regulators))
    rows = np.arange(len(adata))
    donor = np.array(["a"] * len(adata), dtype=object)
    if kind == "everywhere":
        for one in np.unique(types):
            counts[types == one] = permuted(counts[types == one], generator, of_regulators)
    else:
        largest = max(np.unique(types), key=lambda one: (types == one).sum())
        group = np.sort(generator.permutation(np.flatnonzero(types == largest))[:size])
        counts[group] = KINDS[kind](counts[group], generator, of_regulators)
        types[group] = "null"
        donor[group] = [f"donor {number % DONORS}" for number in range(len(group))]
        rows = np.concatenate([rows, *[group] * (2 if kind == "copies" else 0)])
    obs = {LABEL: types[rows], GROUP: donor[rows]}
    null = AnnData(sparse.csr_matrix(counts[rows], dtype=np.float32), obs=obs, var=adata.var[[]])
    null.obs_names_make_unique()
    settings = {
        "path": "null.h5ad",
        "label_key": LABEL,
        "regulators": [gene for gene in regulators if gene in adata.var_names],
    }
    settings |= {"group_key": GROUP} if kind == "donors" else {}
    config = Config.model_validate({"data": settings})
    cells, _ = load_cells(config.data, seed=0, adata=null)
    states = states_of(cells, 0)
    table = CellTable.of(cells, np.arange(len(cells)), states.membership)
    if kind != "everywhere":
        table = table_of_state(table, states.names.index("null"))
    return int(
        (
            evidence_of(table, seed=seed, least_cells=config.network.least_cells).q <= SIGNIFICANT
        ).sum()
    )


def main() -> None:
    arguments = read_options(
        __doc__,
        draws=20,
        sizes=SIZES,
        kinds=all_of([*KINDS, "everywhere"]),
        cells=all_of(["simulated", "kang"]),
    )

    print(f"{'cells':<11}{'kind':<12}" + "".join(f"{size:<14}" for size in arguments.sizes))
    for name in arguments.cells:
        if name == "kang" and not os.environ.get(VARIABLE):
            print(f"kang: skipped, because {VARIABLE} is not set.")
            continue
        drawn = [
            cells_named(name, seed) for seed in range(arguments.draws if name == "simulated" else 1)
        ]
        for kind in arguments.kinds:
            print(f"{name:<11}{kind:<12}", end="", flush=True)
            for size in arguments.sizes if kind != "everywhere" else ["all"]:
                edges = np.array(
                    [
                        edges_of_null(*drawn[seed % len(drawn)], kind, size, seed)
                        for seed in range(arguments.draws)
                    ]
                )
                print(f"{f'{(edges > 0).mean():.2f} ({edges.mean():.1f})':<14}", end="", flush=True)
            print()


if __name__ == "__main__":
    main()
