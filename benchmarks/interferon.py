"""What differs between blood cells with and without interferon, and how much is found where nothing
differs?

    python benchmarks/interferon.py               # 5 minutes of one CPU thread

The cells are kang_ifnb.h5ad of the folder that GRN_BENCHMARK_DATA names (1000 controls, 1000 after
six hours of interferon beta, one sample of each, so that donors cannot be kept apart), the types
those predicted in obs, the regulators the 100 transcription factors of human_tfs.txt that most
cells have. A short training gives the network; `grn compare` reads its tables and the cells.

Prints what `grn compare` finds. Then the same with the conditions dealt anew within each cell type,
where anything that is found is false.
"""

from __future__ import annotations

import numpy as np
from arguments import Option, read_options
from sets import folder

import grn


def main() -> None:
    arguments = read_options(
        __doc__,
        genes=Option(2000, "most variable genes, beside the factors"),
        regulators=100,
        seeds=Option(20, "times that conditions are dealt anew"),
    )

    import anndata

    data = folder()
    cells = anndata.read_h5ad(data / "kang_ifnb.h5ad")
    factors = cells.var_names[cells.var_names.isin((data / "human_tfs.txt").read_text().split())]
    seen = np.asarray((cells[:, factors].X > 0).sum(0)).ravel()
    for seed in range(arguments.seeds):
        generator = np.random.default_rng(seed)
        column = cells.obs["condition"].astype(str)
        cells.obs[f"dealt {seed}"] = column.groupby(
            cells.obs["cell_type_predicted"], observed=True
        ).transform(generator.permutation)
    run = grn.train(
        cells,
        label="cell_type_predicted",
        regulators=list(factors[np.argsort(-seen)[: arguments.regulators]]),
        max_steps=150,
        set={"data.genes": arguments.genes},
        quiet=True,
    )
    activity, edges = grn.compare(run, "condition", data=cells)
    columns = ["cell_type", "regulator", "targets", "effect", "low", "high", "q_value"]
    print(
        activity[activity["q_value"] <= 0.05][columns].to_string(index=False, float_format="%.3g")
    )
    print(edges[edges["q_value"] <= 0.05].to_string(index=False, float_format="%.3g"))
    for seed in range(arguments.seeds):
        activity, edges = grn.compare(run, f"dealt {seed}", data=cells, seed=seed, quiet=True)
        false = [int((table["q_value"] <= 0.05).sum()) for table in (activity, edges)]
        print(
            f"Conditions dealt anew, seed {seed}: {false[0]} of {len(activity)} activities and "
            f"{false[1]} of {len(edges)} edges at q <= 0.05; "
            f"{(edges['p_value'] <= 0.05).mean():.1%} of the edges at p <= 0.05"
        )


if __name__ == "__main__":
    main()
