"""Which edges differ between blood cells with and without interferon, and how many are found where nothing differs?

    python benchmarks/interferon.py                                       # 8 minutes of one CPU thread
    python benchmarks/interferon.py --seeds 1 --permutations 40    # 2 minutes

Nothing is trained: `grn compare` reads cells, not models. The cells are kang_ifnb.h5ad of the folder that
GRN_BENCHMARK_DATA names (1000 controls, 1000 after six hours of interferon beta, one sample of each, so that donors
cannot be kept apart), the types those predicted in obs, the regulators the transcription factors of human_tfs.txt.

Prints, of each cell type, how many edges differ; the strongest; and of each pair of a factor of the interferon response
and a gene that interferon induces: z, its distance from 0 in standard errors, `-` where the factor is seen in too few
cells of one condition for a slope. Below that: how far both are switched on. Then the same with the conditions dealt
out to the cells at random, where any edge found is false.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sets import VARIABLE

from grn.analysis.differences import compare_cells
from grn.cells.cells import Cells
from grn.cells.load import load_cells, read_columns
from grn.config.schema import DataConfig
from grn.messages import silent

FACTORS = ("STAT1", "STAT2", "IRF1", "IRF7", "IRF8", "IRF9")
INDUCED = ("ISG15", "IFI6", "IFIT1", "IFIT2", "IFIT3", "MX1", "ISG20", "OAS1", "LY6E", "IFITM1", "IFITM2", "IFITM3")
LEVELS = (0.05, 0.1)
STRONGEST = 15


def load(folder: Path, genes: int) -> tuple[Cells, pd.Series]:
    """The cells with their predicted types, and their conditions."""
    import anndata

    path = folder / "kang_ifnb.h5ad"
    present = set(anndata.read_h5ad(path, backed="r").var_names)
    factors = [name for name in (folder / "human_tfs.txt").read_text().split() if name in present]
    config = DataConfig(path=str(path), label_key="cell_type_predicted", genes=genes, regulators=factors)
    cells, _ = load_cells(config)
    return cells, read_columns(config, cells, {"condition": "--by"})["condition"]


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Pairs, and edges at each level, of each cell type."""
    groups = table.groupby("cell_type", sort=False)["q_value"]
    return pd.DataFrame(
        {"pairs": groups.size()} | {f"q <= {x}": groups.agg(lambda q, x=x: (q <= x).sum()) for x in LEVELS}
    )


def response(table: pd.DataFrame) -> pd.DataFrame:
    """The pairs of a factor and an induced gene, with z and whether they are hits."""
    pairs = table[table["source"].isin(FACTORS) & table["target"].isin(INDUCED)].copy()
    half = (pairs["high"] - pairs["low"]) / 2
    pairs["z"] = 1.96 * pairs["effect"] / half
    return pairs


def dealt_out(condition: pd.Series, seed: int) -> pd.Series:
    """The conditions, dealt out to the cells at random."""
    order = np.random.default_rng(seed).permutation(len(condition))
    return pd.Series(condition.to_numpy()[order], index=condition.index, name=condition.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--genes", type=int, default=2000, help="most variable genes, beside the factors")
    parser.add_argument("--permutations", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5, help="times that conditions are dealt out at random")
    parser.add_argument("--dealt-permutations", type=int, default=40, help="permutations for each of these")
    arguments = parser.parse_args()
    if not os.environ.get(VARIABLE):
        print(f"Skipped: {VARIABLE} is not set; set it to the folder with the benchmark data (data/README.md).")
        return

    cells, condition = load(Path(os.environ[VARIABLE]), arguments.genes)
    started = time.monotonic()
    table = compare_cells(cells, condition, permutations=arguments.permutations, say=print)
    print(f"\n{numbers(table).to_string()}\n\nin {time.monotonic() - started:.0f} s; the strongest:\n")
    print(table.head(STRONGEST).to_string(index=False, float_format="%.3g"))
    pairs = response(table)
    small = {
        f"{name} <= {x}": int((pairs[name] <= x).sum())
        for name, x in (("q_value", 0.05), ("p_value", 0.05), ("p_value", 0.01))
    }
    print(f"\nPairs of the response: {len(pairs)}; " + ", ".join(f"{what}: {number}" for what, number in small.items()))
    for name, part in pairs.groupby("cell_type", sort=False):
        print(f"\n{name}: z")
        wide = part.pivot(index="source", columns="target", values="z")
        print(wide.to_string(float_format="%.1f", na_rep="-"))
        on = pd.concat([part.set_index(end)[f"level_{end}"] for end in ("source", "target")]).groupby(level=0).first()
        print("switched on by: " + ", ".join(f"{gene} {change:+.2f}" for gene, change in on.items()))
    for seed in range(arguments.seeds):
        found = compare_cells(
            cells, dealt_out(condition, seed), permutations=arguments.dealt_permutations, seed=seed, say=silent
        )
        left = numbers(found)
        false = left["q <= 0.05"].sum()
        print(f"\nConditions dealt out at random, seed {seed}: {false} of {len(found)} pairs at q <= 0.05")
        print(left.to_string())


if __name__ == "__main__":
    main()
