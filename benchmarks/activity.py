"""Are known regulators the active ones: those of a blood cell type in it, and those of interferon
after interferon?

    python benchmarks/activity.py                          # 6 minutes of one CPU thread
    python benchmarks/activity.py --sets pbmc68k_reduced   # half a minute

Networks of grn (`grn.network`), Pearson and ridge are inferred from the same cells with the same
regulators; none is told a condition. `grn.activity` (the 50 strongest targets) turns each into
activities of regulators in cells. A regulator's place in a type is that of Welch's t between the
type's cells and all others; after interferon, between treated and control cells of one type.

Cells: pbmc68k_reduced ships with scanpy; pbmc3k.h5ad and kang_ifnb.h5ad (2000 blood cells, half of
them six hours after interferon beta) are in the folder that GRN_BENCHMARK_DATA names, and so are
the transcription factors. KNOWN was written down from textbooks before anything was computed.
Prints tables of hits and misses and writes `activity.csv`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from arguments import RESULTS, all_of, read_options
from results_file import merged, write
from sets import folder

import grn

KNOWN = {
    "B": ("SPIB", "POU2AF1", "PAX5", "EBF1", "BCL11A", "POU2F2"),
    "CD14+ Mono": ("SPI1", "CEBPB", "CEBPD", "MAFB", "KLF4"),
    "FCGR3A+ Mono": ("SPI1", "CEBPB", "NR4A1", "TCF7L2"),
    "DC": ("IRF8", "SPI1", "SPIB", "IRF4", "BATF3", "RELB"),
    "NK": ("TBX21", "EOMES", "ZEB2", "RUNX3"),
    "CD8 T": ("RUNX3", "EOMES", "TBX21"),
    "Naive CD4 T": ("LEF1", "TCF7", "KLF2", "BACH2", "ETS1", "SATB1"),
    "Memory CD4 T": ("GATA3", "RORA", "MAF"),
    "Treg": ("FOXP3", "GATA3", "IKZF2"),
    "CD34+": ("GATA2", "SOX4", "LYL1", "HHEX", "TAL1", "MEIS1", "RUNX1"),
    "Platelet": ("GATA1", "NFE2", "TAL1", "GFI1B", "FLI1"),
}
"""Regulators that textbooks name for a cell type."""
SAME = {
    "CD19+ B": "B",
    "CD14+ Monocyte": "CD14+ Mono",
    "Dendritic": "DC",
    "CD56+ NK": "NK",
    "CD8+ Cytotoxic T": "CD8 T",
    "CD8+/CD45RA+ Naive Cytotoxic": "CD8 T",
    "CD4+/CD45RA+/CD25- Naive T": "Naive CD4 T",
    "CD4+/CD45RO+ Memory": "Memory CD4 T",
    "CD4+/CD25 T Reg": "Treg",
}
"""Labels of pbmc68k_reduced -> names in KNOWN."""
INTERFERON = ("STAT1", "STAT2", "IRF7", "IRF9")
FIRST = 5
TARGETS = 50
FEWEST_CELLS = 50
FEWEST_SEEN = 0.05  # share of the cells in which a regulator of the interferon set is seen


def networks(cells, regulators: list[str], label_key: str, seed: int) -> dict[str, pd.DataFrame]:
    """The networks by method, from counts in X of all genes of `cells`."""
    from scipy.sparse import csr_matrix

    from grn.networks.baselines import pearson, ridge

    ours = grn.network(
        cells, label=label_key, regulators=regulators, genes="all", seed=seed, quiet=True
    )
    counts = csr_matrix(cells.X)
    total = np.asarray(counts.sum(1)).ravel()
    values = np.log1p(counts.toarray() / total[:, None] * np.median(total))
    genes = list(cells.var_names)
    return {
        "grn": ours,
        "pearson": pearson(values, genes, regulators),
        "ridge": ridge(values, genes, regulators),
    }


def activities(cells, net: pd.DataFrame) -> pd.DataFrame:
    """The activity of each regulator in each cell,
    by its TARGETS strongest edges, certain or not.
    """
    order = np.argsort(-net["weight"].abs().to_numpy(), kind="stable")
    strongest = net[["source", "target", "weight"]].iloc[order].groupby("source").head(TARGETS)
    grn.activity(cells, strongest[strongest["weight"] != 0], quiet=True)
    return cells.obsm["X_regulon"]


def differences(activity: pd.DataFrame, first: np.ndarray, second: np.ndarray) -> pd.Series:
    """Welch's t of each regulator, the cells `first` against the cells `second`, by falling t."""
    from scipy.stats import ttest_ind

    t = ttest_ind(activity[first], activity[second], equal_var=False).statistic
    return pd.Series(np.nan_to_num(t), activity.columns).sort_values(ascending=False)


def rows_of(name: str, cells, regulators: list[str], label_key: str, seed: int) -> list[dict]:
    """A row for each method and type: the first regulators, and the places of the known.

    Types of the interferon set have FEWEST_CELLS cells, and its regulators are those of interferon,
    between treated and control cells; other types have known regulators.
    """
    rows, labels = [], cells.obs[label_key].astype(str).to_numpy()
    interferon = "condition" in cells.obs
    for method, net in networks(cells, regulators, label_key, seed).items():
        activity = activities(cells, net)
        for label in sorted(set(labels)):
            here = labels == label
            known = [each for each in KNOWN.get(SAME.get(label, label), ()) if each in regulators]
            first, second = here, ~here
            if interferon:
                treated = cells.obs["condition"].astype(str).to_numpy() == "stim"
                known = list(INTERFERON) if here.sum() >= FEWEST_CELLS else []
                first, second = here & treated, here & ~treated
            if known:
                t = differences(activity, first, second)
                rows.append(row(name, method, label, int(here.sum()), t, known))
    return rows


def row(name: str, method: str, label: str, cells: int, t: pd.Series, known: list[str]) -> dict:
    places = {each: list(t.index).index(each) + 1 for each in known if each in t.index}
    return {
        "set": name,
        "method": method,
        "cell_type": label,
        "cells": cells,
        "regulators": len(t),
        "first": " ".join(t.index[:FIRST]),
        "known": " ".join(f"{each}:{place}" for each, place in places.items()),
        "hits": sum(place <= FIRST for place in places.values()),
        "misses": sum(place > FIRST for place in places.values()),
        "expected_by_chance": len(places) * FIRST / len(t),
    }


def load(name: str, data: Path):
    """Cells with counts in X, the regulators, and the column of obs with the types."""
    import anndata

    from grn.config.files import load_config

    factors = (data / "human_tfs.txt").read_text().split()
    if name == "pbmc68k_reduced":
        from grn.cells.preprocessing.counts import read_expression
        from grn.cells.readers.registry import open_source

        config = load_config("pbmc.yaml").data
        source = open_source(config)
        found = read_expression(source, config)
        cells = anndata.AnnData(
            found.values, obs=source.obs[["bulk_labels"]], var=pd.DataFrame(index=found.var.index)
        )
        return cells, list(config.regulators), "bulk_labels"
    cells = anndata.read_h5ad(data / f"{name}.h5ad")
    if name == "pbmc3k":
        return cells, [each for each in factors if each in cells.var_names], "cell_type"
    import scanpy as sc

    seen = pd.Series(np.asarray((cells.X > 0).mean(0)).ravel(), cells.var_names)
    regulators = [each for each in factors if seen.get(each, 0) >= FEWEST_SEEN]
    logged = cells.copy()
    sc.pp.normalize_total(logged)
    sc.pp.log1p(logged)
    sc.pp.highly_variable_genes(logged, n_top_genes=2000)
    kept = logged.var["highly_variable"].to_numpy() | cells.var_names.isin(regulators)
    return cells[:, kept].copy(), regulators, "cell_type_predicted"


def main() -> None:
    names = ("pbmc68k_reduced", "pbmc3k", "kang_ifnb")
    arguments = read_options(__doc__, sets=all_of(names), seed=0, output=RESULTS)
    data = folder()
    rows = []
    for name in arguments.sets:
        cells, regulators, label_key = load(name, data)
        print(
            f"{name}: {cells.n_obs} cells x {cells.n_vars} genes, {len(regulators)} regulators",
            flush=True,
        )
        rows += rows_of(name, cells, regulators, label_key, arguments.seed)
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    print(
        table.groupby(["set", "method"])[["hits", "misses", "expected_by_chance"]].sum().to_string()
    )
    path = arguments.output / "activity.csv"
    write(path, merged(path, table, ["set", "method", "cell_type"]))


if __name__ == "__main__":
    main()
