"""What is each part of the model's attention worth: its normaliser, multiplicities on the keys, shared maps?

    python benchmarks/attention_choice.py                  # both sets, five seeds: an hour and a half of a busy core
    python benchmarks/attention_choice.py --sets simulated_types --seeds 0 --rows spherical softmax

Every row is the default model but for one choice, on the same cells, split, first weights, masks and number of steps:

    spherical, softmax, l1, squared_relu     model.attention, with multiplicities on the keys and two applications of
                                             the feed-forward map
    <the same>, present or absent            a key that is there counts as multiplicity 1, the basal gene too
    1, 3 and 4 iterations                    of the feed-forward map, with spherical attention
    one step                                 spherical attention, hardly trained: what the table is to be read against

There is no regulation layer (regulation.members: 0), so that the blocks alone predict, and sets and steps are small:
rows are compared with each other, and none with a whole run. pbmc68k_reduced by pbmc.yaml, with 200 genes; cells of
simulated_types.yaml, 1200 of them with 100 genes and 10 regulators, drawn afresh for every seed.

Columns: accuracy and macro F1 of the cell types of the test cells, r2 of their masked multiplicities, AUPRC of the mean
|w| of each layer over all cells (simulated cells: edges of any type are true), cells per CPU second of training,
validations included. Writes `attention_choice.csv` after every fit; rows that it has are not fitted again (--again).
Prints the mean of every row and, in brackets, the sd over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from results_file import merged, ordered, write

import grn
from grn.cells.load import load_cells
from grn.config.files import change_config
from grn.config.schema import Config
from grn.model.saved import TrainedModel
from grn.model.transformer import Attention
from grn.networks.readouts.one_layer import LayerChoice, read_layer
from grn.networks.run_files import edge_table
from grn.networks.run_readouts import whole_bags
from grn.networks.weights import Network
from grn.training.run import train

RESULTS = Path(__file__).parent / "results" / "attention_choice.csv"
KEYS = ["set", "row", "seed"]
NORMALISERS = ("spherical", "softmax", "l1", "squared_relu")
PRESENT = ", present or absent"
ROWS: dict[str, dict[str, Any]] = {
    **{name: {"model.attention": name} for name in NORMALISERS},
    **{name + PRESENT: {"model.attention": name} for name in NORMALISERS},
    **{f"{count} iteration{'s' * (count > 1)}": {"model.iterations": count} for count in (1, 3, 4)},
}
ROWS["one step"] = {"trainer.max_steps": 1, "trainer.validate_every": 1}
SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "pbmc68k_reduced": ("pbmc.yaml", {"data.genes": 200, "trainer.batch_size": 16}),
    "simulated_types": (
        "simulated_types.yaml",
        {
            "data.simulated.cells": 1200,
            "data.simulated.genes": 100,
            "data.simulated.regulators": 10,
            "data.regulators": [f"R{number}" for number in range(1, 11)],
            "trainer.batch_size": 32,
        },
    ),
}
STEPS = 150
SHARED = {
    "trainer.max_steps": STEPS,
    "trainer.validate_every": STEPS // 5,
    "trainer.patience": STEPS,
    "trainer.averaging": 0.95,  # of .99, a third of so few steps would count as much as the last ones
    "trainer.accelerator": "cpu",
    "regulation.members": 0,
    "network.readout": "attention",
    "network.cells": 20,  # those that the run itself reads; networks are scored over all cells
}
SCORES = ["accuracy", "macro_f1", "r2", "auprc_layer0", "auprc_layer1", "cells_per_cpu_second"]


def fit(name: str, row: str, seed: int) -> dict[str, float]:
    """The scores of one fit."""
    file, of_set = SETS[name]
    seeds = {"trainer.seed": seed, **({"data.simulated.seed": seed} if name == "simulated_types" else {})}
    config = change_config(file, {**of_set, **SHARED, **seeds, **ROWS[row]})
    marks: dict[str, float] = {}

    def clock(line: str) -> None:
        marks[line.split()[0]] = time.process_time()

    with tempfile.TemporaryDirectory() as home, by_presence() if row.endswith(PRESENT) else nullcontext():
        found = train(config, Path(home) / "run", say=clock)
        assert found is not None
        scores = {score: found.metrics[score] for score in SCORES[:3]}
        if row != "one step":
            cells = config.trainer.max_steps * config.trainer.batch_size
            scores["cells_per_cpu_second"] = cells / (marks["Trained"] - marks["Ready"])
        truth = found.folder / "truth.csv"
        if truth.exists():
            edges = pd.read_csv(truth)[["source", "target"]].drop_duplicates()
            for layer, table in enumerate(layer_tables(config, found.trained)):
                score = grn.evaluate(table, edges, permutations=0, quiet=True).loc["auprc", "network"]
                scores[f"auprc_layer{layer}"] = float(score)
    return scores


def layer_tables(config: Config, trained: TrainedModel) -> list[pd.DataFrame]:
    """The mean |w| of each layer over all cells, as tables of edges."""
    cells, _ = load_cells(config.data, seed=config.trainer.seed)
    model, regulators, every = trained.model, trained.regulators, np.arange(len(cells))
    found = []
    for layer in range(config.model.layers):
        bags = whole_bags(model, cells.multiplicity, cells.basal, every, regulators, packed=False)
        weight = read_layer(model, LayerChoice(layer), bags, regulators)
        unknown = np.full_like(weight, np.nan)
        found.append(edge_table(Network(weight, {}, unknown), trained.vocabulary, regulators, None))
    return found


def by_presence():
    """Inside, every key that is there has multiplicity 1."""
    attend = Attention.attend

    def present(self, q, k, v, multiplicity, *others, **more):
        return attend(self, q, k, v, (multiplicity > 0).to(multiplicity.dtype), *others, **more)

    return mock.patch.object(Attention, "attend", present)


def printed(table: pd.DataFrame) -> str:
    """Mean and, in brackets, sd over seeds."""
    by = table.groupby(["set", "row"], sort=False)[[score for score in SCORES if score in table]]
    mean, sd = by.mean(), by.std()
    cells = {
        column: [
            "" if np.isnan(middle) else f"{middle:.0f}" if middle > 10 else f"{middle:.3f} ({spread:.3f})"
            for middle, spread in zip(mean[column], sd[column], strict=True)
        ]
        for column in mean
    }
    return pd.DataFrame(cells, index=mean.index).to_string()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--again", action="store_true", help="fit rows again that the table has")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = set()
    if arguments.output.exists() and not arguments.again:
        known = set(pd.read_csv(arguments.output)[KEYS].itertuples(index=False, name=None))
    for seed, name, row in itertools.product(arguments.seeds, arguments.sets, arguments.rows):
        if (name, row, seed) in known:
            continue
        started = time.monotonic()
        found = pd.DataFrame([{"set": name, "row": row, "seed": seed, **fit(name, row, seed)}])
        write(arguments.output, ordered(merged(arguments.output, found, KEYS), set=list(SETS), row=list(ROWS)))
        print(f"{time.monotonic() - started:.0f} s", found.round(3).to_dict("records")[0], flush=True)
    print(printed(pd.read_csv(arguments.output)))


if __name__ == "__main__":
    main()
