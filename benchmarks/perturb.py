"""Does the model know what a knock-out does, as well as correlation and ridge regression do?

    # less than 2 minutes of a CPU thread for each seed
    python benchmarks/perturb.py --seeds 5 --workers 15
    python benchmarks/perturb.py --seeds 1

Two sources of truth, in the folder that GRN_BENCHMARK_DATA names. The model is trained with the
default configuration, on all cells.

- SERGIO's DS1, without noise and as counts: every regulator is knocked out in all cells. Do its
  true targets change most? AUROC over the genes, by |change| in sds of the gene and in units of
  multiplicity, the mean over regulators; and the share of right signs among the true edges whose
  predicted |change| is above their median.
- DREAM4 in silico size 100, network 1: everything but the knock-outs is the training data (wild
  type, knock-downs, time series; every gene may regulate), and the measured effects of the 100
  knock-outs are the truth, against one measurement of the wild type (`wild type`) or against the
  mean of that and the starts of the ten time series (`eleven wild types`). Spearman correlation of
  predicted and measured change over all pairs, self left out; the share of right directions among
  the pairs whose predicted |change| is above the median, and of those with a measured |change|
  above 0.1. `knock-down` takes the measured change after the gene's knock-down for the predicted
  one: how well one noisy measurement of half the perturbation does.

Correlation and ridge predict coefficient x (change of the regulator), and with `steps` they
propagate it in the same way as the model: the change of each gene that has changed acts on. Prints
a table, and writes `perturb.csv`: means over seeds, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import anndata
import numpy as np
import ours
import pandas as pd
import torch
from networks import HERE
from results_file import ordered, write
from scipy import sparse
from scipy.stats import spearmanr
from sets import NetworkSet, folder, load_sets
from sklearn.metrics import roc_auc_score

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.readers.registry import MEMORY
from grn.config.files import change_config
from grn.config.schema import Config
from grn.evidence.states import States, states_of
from grn.features.perturb.mechanism import effects, slices
from grn.model.regulation import Model
from grn.networks.baselines import pearson, ridge
from grn.runtime.messages import silent
from grn.training.run import fit_cells

SIMPLE = {"pearson": pearson, "ridge": ridge}
SETS = ("dream4", "sergio_ds1", "sergio_ds1_clean")
STEPS = (1, 3, 20)
ENDINGS = "(+/-)", "(-/-)"  # of the names of knock-downs and knock-outs
MEASURED = 0.1  # a measured change of this size is more than noise
Scores = dict[str, float]


def trained_on(config: Config, cells: Cells, seed: int) -> tuple[Model, States]:
    states = states_of(cells, seed)
    return fit_cells(config, cells, states, silent).model, states


def model_effects(
    model: Model, states: States, cells: Cells, rows: np.ndarray, steps: int
) -> np.ndarray:
    """[N, R]:
    mean effect of knocking out each regulator in the cells `rows`, in sds of the genes.
    """
    found = np.zeros((model.genes, len(model.regulators)))
    for part in slices(model, len(rows)):
        some = rows[part]
        measured = torch.as_tensor(cells.multiplicity[some][:, model.regulators.numpy()].toarray())
        given = (
            measured,
            torch.as_tensor(cells.basal[some]),
            torch.as_tensor(states.membership[some]),
        )
        for column in range(found.shape[1]):
            change = effects(model, *given, {column: torch.zeros(len(some))}, steps)
            found[:, column] += change.mean(0).sum(0).numpy() / len(rows)
    return found


def simple_effects(
    coefficients: np.ndarray, regulators: np.ndarray, level: np.ndarray, steps: int
) -> np.ndarray:
    """[N, R] in sds: coefficients [N, R] of standardised genes, propagated. level [N]: multiplicity
    in sds.
    """
    found = np.zeros(coefficients.shape)
    for column, position in enumerate(regulators):
        x = np.zeros(len(regulators))
        x[column] = -level[position]
        for _ in range(steps):
            effect = coefficients @ x
            x = np.maximum(effect[regulators], -level[regulators])
            x[column] = -level[position]
        found[:, column] = effect
    return found


def coefficients_of(
    method: Callable, matrix: np.ndarray, genes: list[str], regulators: list[str]
) -> np.ndarray:
    table = method(matrix, genes, regulators)
    wide = table.pivot(index="target", columns="source", values="weight")
    return wide.reindex(index=genes, columns=regulators).fillna(0).to_numpy()


def target_scores(
    effect: np.ndarray, sd: np.ndarray, truth: np.ndarray, regulators: np.ndarray
) -> Scores:
    """effect [N, R] of knock-outs, in sds.   truth [N, R]: 1, -1 or 0."""
    found = {}
    for name, values in (("auroc", effect), ("auroc_units", effect * sd[:, None])):
        areas = []
        for column, position in enumerate(regulators):
            others = np.arange(len(values)) != position
            areas.append(roc_auc_score(truth[others, column] != 0, np.abs(values[others, column])))
        found[name] = float(np.mean(areas))
    true = truth != 0
    right = np.sign(-effect[true]) == truth[true]
    size = np.abs(effect[true])
    return found | {
        "signs": float(right[size > np.median(size)].mean()),
        "signs_of_all": float(right.mean()),
    }


def measured_scores(change: np.ndarray, measured: np.ndarray) -> Scores:
    """change, measured [N, N]: of each gene (row) after the knock-out of each (column)."""
    others = ~np.eye(len(change), dtype=bool)
    change, measured = change[others], measured[others]
    right = np.sign(change) == np.sign(measured)
    size, large = np.abs(change), np.abs(measured) > MEASURED
    return {
        "rank_correlation": float(spearmanr(change, measured)[0]),
        "directions": float(right[size > np.median(size)].mean()),
        "directions_of_large": float(right[large].mean()),
        "rank_correlation_of_large": float(spearmanr(change[large], measured[large])[0]),
    }


def sergio_rows(one: NetworkSet, seeds: Sequence[int]) -> list[dict]:
    """Scores of every method on one of SERGIO's sets."""
    rows, genes = [], list(one.genes)
    regulators = np.array([genes.index(name) for name in one.regulators or ()])
    truth = np.zeros((len(genes), len(regulators)))
    for edge in one.reference.itertuples():
        truth[genes.index(edge.target), (one.regulators or []).index(edge.source)] = edge.sign
    for seed in seeds:
        config = ours.configuration(one, seed, "cpu", {})
        cells, _ = load_cells(config.data, seed=seed, adata=ours.adata_of(one))
        model, states = trained_on(config, cells, seed)
        sd = model.sd.numpy()
        for steps in STEPS:
            effect = model_effects(model, states, cells, np.arange(len(cells)), steps)
            rows.append(
                {"set": one.name, "method": "grn", "steps": steps}
                | target_scores(effect, sd, truth, regulators)
            )
    matrix = cells.multiplicity.toarray()
    for name, method in SIMPLE.items():
        of = coefficients_of(method, matrix, genes, list(one.regulators or ()))
        level = matrix.mean(0) / np.maximum(matrix.std(0), 1e-9)
        for steps in STEPS:
            effect = simple_effects(of, regulators, level, steps)
            rows.append(
                {"set": one.name, "method": name, "steps": steps}
                | target_scores(effect, sd, truth, regulators)
            )
    return rows


def dream4_rows(seeds: Sequence[int]) -> list[dict]:
    table = pd.read_csv(folder() / "dream4" / "expression.tsv", sep="\t", index_col=0)
    genes = list(map(str, table.index))
    knockouts = [f"{gene}(-/-)" for gene in genes]
    training = table.drop(columns=knockouts)
    starts = ["wt", *(name for name in training if name.endswith("delt_0"))]
    baselines = {"wild type": ["wt"], "eleven wild types": starts}
    matrix = training.to_numpy(np.float32).T
    adata = anndata.AnnData(sparse.csr_matrix(matrix))
    adata.obs_names, adata.var_names = list(training), genes
    rows, everyone = [], np.arange(len(genes))
    for seed in seeds:
        fields = {
            "data.path": MEMORY,
            "data.values": "expression",
            "data.genes": "all",
            "trainer.seed": seed,
        }
        config = change_config(None, fields | {"trainer.accelerator": "cpu"})
        cells, _ = load_cells(config.data, seed=seed, adata=adata)
        model, states = trained_on(config, cells, seed)
        for baseline, names in baselines.items():
            wild = [list(cells.obs_names).index(name) for name in names]
            measured = (table[knockouts].to_numpy().T - table[names].mean(axis=1).to_numpy()).T
            for steps in STEPS:
                change = (
                    model_effects(model, states, cells, np.array(wild), steps)
                    * model.sd.numpy()[:, None]
                )
                rows.append(
                    {"set": f"dream4, {baseline}", "method": "grn", "steps": steps}
                    | measured_scores(change, measured)
                )
    for baseline, names in baselines.items():
        level = table[names].mean(axis=1).to_numpy()
        after = {
            ending: table[[f"{gene}{ending}" for gene in genes]].to_numpy().T - level
            for ending in ENDINGS
        }
        scores = measured_scores(*(after[ending].T for ending in ENDINGS))
        rows.append({"set": f"dream4, {baseline}", "method": "knock-down", "steps": 0} | scores)
    sd = matrix.std(0)
    for name, method in SIMPLE.items():
        of = coefficients_of(method, matrix, genes, genes)
        for baseline, names in baselines.items():
            level = table[names].mean(axis=1).to_numpy()
            measured = (table[knockouts].to_numpy().T - level).T
            for steps in STEPS:
                change = simple_effects(of, everyone, level / sd, steps) * sd[:, None]
                rows.append(
                    {"set": f"dream4, {baseline}", "method": name, "steps": steps}
                    | measured_scores(change, measured)
                )
    return rows


def rows_of(name: str, seed: int) -> list[dict]:
    """Scores of every method on one set and with one seed, which only grn's depend on."""
    torch.set_num_threads(1)
    return dream4_rows([seed]) if name == "dream4" else sergio_rows(load_sets([name])[0], [seed])


def summarised(rows: list[dict]) -> pd.DataFrame:
    """Means over seeds, and the lowest and highest values."""
    keys = ["set", "method", "steps"]
    long = pd.DataFrame(rows).melt(keys, var_name="score").dropna()
    groups = long.groupby([*keys, "score"], sort=False)["value"]
    table = groups.agg(["mean", "min", "max", "size"]).reset_index()
    return table.rename(
        columns={"mean": "value", "min": "lowest", "max": "highest", "size": "seeds"}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes, each with a set and a seed"
    )
    parser.add_argument("--output", type=Path, default=HERE / "results", metavar="DIR")
    arguments = parser.parse_args()
    every = [(name, seed) for seed in range(arguments.seeds) for name in SETS]
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as workers:
        rows = [row for found in workers.map(rows_of, *zip(*every, strict=True)) for row in found]
    table = summarised(rows)
    for name, part in table.groupby("set", sort=False):
        wide = part.pivot(index=["method", "steps"], columns="score", values="value")
        print(
            f"\n{name}\n{wide[list(dict.fromkeys(part['score']))].to_string(float_format='%.3f')}"
        )
    path = arguments.output / "perturb.csv"
    write(
        path,
        ordered(table, method=["grn", *SIMPLE, "knock-down"]).sort_values("set", kind="stable"),
    )
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
