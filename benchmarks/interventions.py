"""Does the model predict interventions that it has not seen, or has seen in other cells?

    python benchmarks/interventions.py                  # half an hour of a core
    python benchmarks/interventions.py --without grn    # the simple methods alone: half a minute
    python benchmarks/interventions.py --protocols planted --seeds 5

Cells are Papalexi's (20 729 THP-1 cells x 299 genes, CRISPR knock-outs of 25 genes, three
replicates), in the folder that GRN_BENCHMARK_DATA names, those with one guide. A gene responds to a
knock-out where |z| > 4 against the non-targeting cells; AUROC is of |predicted change| for these
genes, signs are the share of them whose direction is right, the gene that is knocked out left out.
What is predicted:

- pathway: the knock-outs of JAK2, IFNGR2 and STAT1, with no cell of IFNGR1, IFNGR2, JAK2 or STAT1
  to learn from;
- each: the same three, each without its own cells alone;
- replicate: six knock-outs in one replicate, learned from the two others. `all cells` judges by the
  genes that respond in all cells, `third` by those with |z| > 4 in the third replicate alone, which
  has a third of the cells.

- planted: the network behind 3000 cells of 120 genes of `simulated:`, every gene a candidate, where
  a tenth of 40 regulators were knocked out by guides of which a fifth fail; beside the same network
  with no interventions. Scores are AUPRC of all edges, signs, `direction`, the share of the
  intervened regulators' edges whose weight is above that of the other direction, and `guides`, the
  share of those whose gene's loss shows that are told right.

- unmade: simulated screens (3000 cells, 120 genes, 12 regulators cut), each intervention left out
  with its cells in turn. `within` is the share of genes whose measured change is within the
  interval, here and on Papalexi's cells.

Beside grn: Pearson correlation and ridge regression of the gene with all others, the mean of all
other interventions, a linear model with gene embeddings (change = G W p^T + mean: principal
components of the correlations as G and p, W by ridge; Ahlmann-Eltze et al. 2025), and what sees the
knock-out: Pearson over all cells, and the mean change itself. Prints tables and writes
`interventions.csv`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import torch
from networks import HERE
from results_file import merged, write
from scipy.stats import spearmanr
from sets import folder
from sklearn.metrics import average_precision_score, roc_auc_score

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.readers.registry import MEMORY
from grn.cells.simulated.cells import simulate
from grn.config.files import change_config
from grn.config.schema import Simulation
from grn.evidence.caused import NORMAL, Caused, caused_effects
from grn.evidence.states import states_of
from grn.features.interventions.scores import scores, simple_changes
from grn.features.perturb.perturbed import Plan, Subject, expected_size, perturb_cells
from grn.features.perturb.unmade import Unmade, at_one_total
from grn.networks.baselines import pearson, ridge
from grn.networks.build import network_of
from grn.runtime.messages import silent
from grn.training.run import fit_cells

PATHWAY = ("IFNGR1", "IFNGR2", "JAK2", "STAT1")
ASKED = ("JAK2", "IFNGR2", "STAT1")  # of these, messengers were measured, and many genes respond
SEEN = ("IFNGR1", "IFNGR2", "IRF1", "JAK2", "SMAD4", "STAT1")
CONTROL = "non-targeting"
RESPONDS = 4.0  # |z| from which a gene responds
COMPONENTS, PENALTY = 10, 0.1  # of the linear model with gene embeddings
STEPS = 20
PLANTED = ["auprc", "signs", "direction", "guides"]
CELLS = 400  # controls in which the model predicts


class Screen:
    """The cells of the screen:
    log1p of counts scaled to their mean total, targets and replicates.
    """

    def __init__(self) -> None:
        adata = anndata.read_h5ad(folder() / "papalexi_eccite_thp1.h5ad")
        self.adata = adata[adata.obs["unambiguous"].to_numpy(bool)].copy()
        counts = self.adata.X.toarray().astype(float)
        total = counts.sum(1)
        self.values = np.log1p(counts / total[:, None] * total.mean())
        self.target = self.adata.obs["target"].to_numpy(str)
        self.replicate = self.adata.obs["replicate"].to_numpy(str)
        self.control = self.target == CONTROL
        self.genes = list(map(str, self.adata.var_names))
        self.targets = sorted(set(self.target) - {CONTROL})

    def z(self, target: str, among: np.ndarray | None = None) -> np.ndarray:
        """Difference of the means of intervened and control cells in standard errors, by the sd of
        controls.
        """
        among = np.ones(len(self.target), bool) if among is None else among
        given, controls = (
            self.values[among & each] for each in (self.target == target, self.control)
        )
        error = np.sqrt(controls.var(0) * (1 / len(given) + 1 / len(controls)) + 1e-12)
        return (given.mean(0) - controls.mean(0)) / error

    def score(
        self, size: np.ndarray, change: np.ndarray, target: str, z: np.ndarray
    ) -> dict[str, float]:
        """size: by which genes are ranked, change: whose sign counts, of all genes."""
        others = np.array([gene != target for gene in self.genes])
        size, change, z = size[others], change[others], z[others]
        responds = np.abs(z) > RESPONDS
        return {
            "genes": int(responds.sum()),
            "auroc": roc_auc_score(responds, size),
            "signs": float((np.sign(change) == np.sign(z))[responds].mean()),
            "rank_correlation": float(spearmanr(change, z)[0]),
        }


def simple(screen: Screen, training: np.ndarray, target: str) -> Iterator[tuple[str, np.ndarray]]:
    """Predicted changes by methods that do not see the knock-out of `target`, which is not among
    the training cells.
    """
    values = screen.values[training]
    sd = values.std(0) + 1e-9
    z = (values - values.mean(0)) / sd
    correlation, own = z.T @ z / len(z), screen.genes.index(target)
    yield "pearson", -correlation[:, own]
    inverse = np.linalg.inv(correlation + PENALTY * np.eye(len(correlation)))
    yield "ridge", inverse[:, own] / inverse[own, own]
    controls = screen.values[training & screen.control].mean(0)
    others = [each for each in screen.targets if (training & (screen.target == each)).any()]
    changes = np.stack(
        [
            (screen.values[training & (screen.target == each)].mean(0) - controls) / sd
            for each in others
        ]
    )
    mean = changes.mean(0)
    yield "mean of all", mean
    size, vectors = np.linalg.eigh(correlation)
    embedding = vectors[:, -COMPONENTS:] * np.sqrt(size[-COMPONENTS:])
    known = [number for number, each in enumerate(others) if each in screen.genes]
    perturbed = embedding[[screen.genes.index(others[number]) for number in known]]
    left, right = (each.T @ each + PENALTY * np.eye(COMPONENTS) for each in (embedding, perturbed))
    mean = changes[known].mean(0)
    w = np.linalg.solve(left, embedding.T @ (changes[known] - mean).T @ perturbed) @ np.linalg.inv(
        right
    )
    yield "linear, embeddings", embedding @ w @ embedding[own] + mean


class Ours:
    """The model, trained on some of the cells with the default configuration."""

    def __init__(self, screen: Screen, training: np.ndarray, seed: int, regulators: list[str]):
        fields = {
            "path": MEMORY,
            "genes": "all",
            "intervention_key": "target",
            "guide_key": "guide",
        }
        fields |= {"group_key": "replicate", "regulators": regulators}
        config = change_config(
            None,
            {f"data.{name}": each for name, each in fields.items()}
            | {"trainer.seed": seed, "trainer.accelerator": "cpu"},
        )
        adata = screen.adata[training].copy()
        cells, _ = load_cells(config.data, seed=seed, adata=adata)
        states = states_of(cells, seed)
        self.subject = Subject(
            config, fit_cells(config, cells, states, silent), cells, states, adata
        )
        self.rows = np.random.default_rng(0).permutation(
            np.flatnonzero(cells.interventions.control)
        )[:CELLS]

    def predicted(self, target: str, genes: list[str], steps: int) -> tuple[np.ndarray, np.ndarray]:
        """By which genes are ranked, and their expected changes in sds."""
        table = perturb_cells(
            self.subject, Plan(knock_out=(target,)), self.rows, steps
        ).table.set_index("gene")
        table = table.reindex(genes)
        self.interval = table["low"].to_numpy(), table["high"].to_numpy()
        return table["size"].to_numpy(), table["effect"].to_numpy()

    def coverage(self, screen: Screen, target: str) -> float:
        """The share of genes whose measured change is within the interval of the last prediction,
        as far as its own error allows."""
        values = screen.values
        given, control = screen.target == target, screen.control
        change = (values[given].mean(0) - values[control].mean(0)) / values.std(0)
        error = np.sqrt(1 / given.sum() + 1 / control.sum())
        middle, half = (sum(self.interval) / 2, np.diff(self.interval, axis=0)[0] / 2)
        others = np.array([gene != target for gene in screen.genes])
        return float((np.abs(change - middle) < np.hypot(half, NORMAL * error))[others].mean())


def planted_rows(seed: int) -> Iterator[dict]:
    """AUPRC, signs, direction and guides of one network, with and without interventions."""
    size = {"cells": 3000, "genes": 120, "regulators": 40, "cell_types": 1, "seed": 100 + seed}
    screen = simulate(Simulation(**size, interventions=0.1, failing=0.2))
    truth = screen.uns["truth"].set_index(["source", "target"])["sign"]
    guides = screen.uns["guides"].set_index("guide")["works"]
    for name, adata in (
        ("grn, interventions", screen),
        ("grn, observed", simulate(Simulation(**size))),
    ):
        fields = {
            "data.path": MEMORY,
            "data.genes": "all",
            "trainer.seed": seed,
            "trainer.accelerator": "cpu",
        }
        fields |= {"network.false_discovery": False, "network.top_k": None}
        if adata is screen:
            fields |= {"data.intervention_key": "intervention", "data.guide_key": "guide"}
        config = change_config(None, fields)
        cells, _ = load_cells(config.data, seed=seed, adata=adata)
        states = states_of(cells, seed)
        edges = network_of(
            config.network,
            config.trainer,
            fit_cells(config, cells, states, silent),
            cells,
            states,
            silent,
        ).tables(config.network)[0]
        tables = {name: edges}
        if adata is screen:
            genes = list(map(str, adata.var_names))
            values = cells.multiplicity[:, : len(genes)].toarray()
            tables |= {way.__name__: way(values, genes, genes) for way in (pearson, ridge)}
        for method, table in tables.items():
            weight = table.set_index(["source", "target"])["weight"]
            weight = weight[[a != b for a, b in weight.index]]
            found = {"protocol": "planted", "method": method, "target": "none", "left": "none"}
            found["auprc"] = average_precision_score(weight.index.isin(truth.index), weight.abs())
            found["signs"] = float((np.sign(weight[truth.index]) == truth).mean())
            own = [pair for pair in truth.index if pair[0] in set(guides.index.str.split().str[0])]
            found["direction"] = float(
                np.mean([abs(weight[a, b]) > abs(weight[b, a]) for a, b in own])
            )
            if method == "grn, interventions":
                share = cells.guides.set_index("guide")["share"].dropna()
                found["guides"] = float(((share > 0.5) == guides[share.index]).mean())
            yield found


def unmade_rows(seed: int) -> Iterator[dict]:
    """Each intervention of one simulated screen, left out with its cells."""
    size = {"cells": 3000, "genes": 120, "regulators": 40, "cell_types": 1, "seed": 500 + seed}
    adata = simulate(Simulation(**size, interventions=0.3, failing=0.2))
    fields = {"data.path": MEMORY, "data.genes": "all", "data.intervention_key": "intervention"}
    config = change_config(None, fields | {"data.guide_key": "guide"})

    def read(some: anndata.AnnData) -> tuple[Cells, Caused, Unmade]:
        cells, _ = load_cells(config.data, seed=seed, adata=some)
        states = states_of(cells, seed)
        caused = caused_effects(cells, states)
        own = at_one_total(cells), states.membership, cells.interventions, caused
        return cells, caused, Unmade(*own)

    whole, caused, _ = read(adata)
    for number, name in enumerate(whole.interventions.names):
        cells, training, learned = read(adata[adata.obs["intervention"] != name].copy())
        place = [cells.vocabulary.index(gene) for gene in adata.var_names]
        effect = learned.effect(cells.vocabulary.index(name))[place]
        sd = learned.sd[place]
        measured = whole.interventions.sign * caused.effect[: len(place), number]
        error = caused.error[: len(place), number]
        predicted = {"grn": (expected_size(effect, sd), effect)}
        for way, each in simple_changes(cells, name, training):
            predicted[way] = np.abs(each[place]), each[place]
        for way, (ranked, change) in predicted.items():
            found = {"protocol": "unmade", "method": way, "target": name, "left": "none"}
            found |= scores(ranked, change, measured / error, measured)
            if way == "grn":
                known = np.isfinite(measured)
                half = NORMAL * np.hypot(sd, error)
                found["within"] = float((np.abs(measured - effect) < half)[known].mean())
            yield found


def rows_of(screen: Screen, protocol: str, seed: int, grn: bool) -> Iterator[dict]:
    if protocol in ("planted", "unmade"):
        yield from (planted_rows if protocol == "planted" else unmade_rows)(seed)
        return
    factors = set((folder() / "human_tfs.txt").read_text().split()) | set(screen.targets)
    regulators = [gene for gene in screen.genes if gene in factors]
    if protocol == "replicate":
        for left in np.unique(screen.replicate):
            training = screen.replicate != left
            model = Ours(screen, training, seed, regulators) if grn else None
            for target in SEEN:
                mean = screen.z(target, training)
                predicted = {"mean change": (np.abs(mean), mean)}
                for steps in (1, STEPS) if model else ():
                    predicted[f"grn, {steps} steps"] = model.predicted(target, screen.genes, steps)
                for judge, z in (
                    ("all cells", screen.z(target)),
                    ("third", screen.z(target, ~training)),
                ):
                    for name, (size, change) in predicted.items():
                        yield {
                            "protocol": f"replicate, {judge}",
                            "method": name,
                            "target": target,
                            "left": left,
                        } | screen.score(size, change, target, z)
        return
    model = None
    for target in ASKED:
        training = (
            screen.target != target if protocol == "each" else ~np.isin(screen.target, PATHWAY)
        )
        predicted = {
            name: (np.abs(change), change) for name, change in simple(screen, training, target)
        }
        seeing = -np.corrcoef(screen.values.T)[screen.genes.index(target)]
        predicted["pearson, seeing it"] = np.abs(np.nan_to_num(seeing)), seeing
        if grn and (model is None or protocol == "each"):
            model = Ours(screen, training, seed, regulators)
        for steps in (1, STEPS) if model else ():
            predicted[f"grn, {steps} steps"] = model.predicted(target, screen.genes, steps)
        for name, (size, change) in predicted.items():
            found = {"protocol": protocol, "method": name, "target": target, "left": "none"}
            found |= screen.score(size, change, target, screen.z(target))
            if name.startswith("grn"):
                found["within"] = model.coverage(screen, target)
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--protocols", nargs="+", default=["pathway", "each", "replicate", "planted", "unmade"]
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--without", nargs="*", default=[], choices=["grn"])
    parser.add_argument("--output", type=Path, default=HERE / "results", metavar="DIR")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    screen, rows = Screen(), []
    for protocol in arguments.protocols:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            rows += [
                row | {"seed": seed}
                for row in rows_of(screen, protocol, seed, "grn" not in arguments.without)
            ]
        table = pd.DataFrame(rows)
        of_protocol = table[table["protocol"].str.startswith(protocol)]
        for name, part in of_protocol.groupby("protocol", sort=False):
            if name == "planted":
                means = part.groupby("method", sort=False)[PLANTED].mean()
                print(f"\nplanted\n{means.to_string(float_format='%.3f')}")
                continue
            if name == "unmade":
                by = part.groupby("method", sort=False)[["auroc", "signs", "error", "within"]]
                print(f"\nunmade\n{by.agg(['mean', 'min', 'max']).to_string(float_format='%.3f')}")
                continue
            for value in ("auroc", "signs", "within"):
                if value not in part:
                    continue
                wide = part.pivot_table(index="method", columns="target", values=value, sort=False)
                shown = wide.assign(mean=wide.mean(1)).to_string(float_format="%.3f")
                print(f"\n{name}: {value}\n{shown}", flush=True)
    path = arguments.output / "interventions.csv"
    write(path, merged(path, table, ["protocol", "method", "target", "left", "seed"]))
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
