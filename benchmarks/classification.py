"""Does grn label cells as well as simple classifiers do, and how few labels does it need?

    # three sets: an hour of a core
    python benchmarks/classification.py
    # a minute
    python benchmarks/classification.py --sets pbmc68k_reduced --splits 1 --fractions 1

Each split puts a fifth of the cells, stratified by type, aside for the test. Of the others a
fraction keeps its labels. grn is trained on all of the others as `grn train` does it, which needs
no label for predicting genes, and labels the test cells as `grn predict` does. The other methods
read the labelled cells only, as grn's own multiplicities of every gene (log1p of normalised
counts), in units of each gene's sd; their penalties are chosen by cross-validated accuracy.
CellTypist has its own normalisation and settings, and runs in a Python of its own, if there is one
(`classifiers.py`).

Columns: accuracy; macro F1 over the types of the test cells; calibration error (expected difference
of confidence and accuracy, in 15 bins of confidence); its floor (the mean calibration error of so
many cells whose labels are drawn from the very probabilities, so that these are right: few cells in
many bins differ by chance); mean confidence minus accuracy; log loss (probabilities below 1e-6
count as 1e-6); CPU seconds of fit and prediction, those of CellTypist with the start of its Python.
A linear SVM has no probabilities. Writes `classification.csv`, and F1 by type to
`classification_by_type.csv`, after every fit; rows of other sets, methods, fractions and splits
stay. At the end, draws accuracy and macro F1 of all rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from arguments import PATTERNS, PICTURES, RESULTS, Option, read_options
from classifiers import METHODS, OURS, TEST, Labels, available, labelled_set
from matplotlib.figure import Figure
from pictures import looks
from results_file import merged, ordered, write
from sklearn.metrics import classification_report, f1_score

from grn.cells.preprocessing.split import split_cells
from grn.config.files import load_config
from grn.config.schema import Config
from grn.plots.style import plain, save

# Okabe and Ito's colours, which colour-blind readers can tell apart; ours is black, larger and on
# top.
COLOURS = {
    "logistic regression": "#d55e00",
    "on 50 components": "#0072b2",
    "linear SVM": "#009e73",
    "random forest": "#cc79a7",
    "CellTypist": "#e69f00",
}
SCORES = {"accuracy": "Accuracy", "macro_f1": "Macro F1"}


def by_share(
    table: pd.DataFrame, along: str, *, ours: str, label: str, shares: Sequence[float]
) -> Figure:
    """table: a row for each set, method, split and value of `along` -> a row of panels per score, a
    panel per set.

    along: the column with the shares, which are drawn at equal distances in the order given.
    label: of that axis. Dots are means over the splits; a bar goes from each to the worst split.
    """
    long = table.melt([along, "set", "method"], list(SCORES), "score").replace({"score": SCORES})
    long[along] = long[along].map("{:.0%}".format)
    grid = sns.catplot(
        long,
        x=along,
        order=[f"{share:.0%}" for share in shares],
        y="value",
        row="score",
        col="set",
        kind="point",
        dodge=0.4 * (table["method"].nunique() > 1),
        errorbar=lambda values: (values.min(), values.mean()),
        sharey=False,
        height=3.2,
        linewidth=1.4,
        **looks(table["method"], COLOURS, ours),
    )
    grid.set_titles("{col_name}").set_xlabels(label).tight_layout()
    for panel, name in zip(grid.axes[:, 0], SCORES.values(), strict=True):
        panel.set_ylabel(name)
    for panel in grid.axes.flat:
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        plain(panel)
    return grid.figure


BINS, DRAWS, SMALLEST = 15, 200, 1e-6
FRACTIONS = (1.0, 0.3, 0.1)


def configurations() -> dict[str, Config]:
    """The sets: how `grn train` reads and trains on each. Only pbmc68k_reduced has a configuration
    of its own.
    """
    folder = Path(os.environ.get("GRN_BENCHMARK_DATA", "."))
    of_files = {
        "pbmc3k": {
            "path": str(folder / "pbmc3k.h5ad"),
            "regulators": str(folder / "human_tfs.txt"),
        },
        "sergio_ds1": {"path": str(folder / "sergio_ds1.h5ad")},
    }
    shared = {"genes": "all", "label_key": "cell_type"}
    found = {"pbmc68k_reduced": load_config("pbmc.yaml")}
    return found | {
        name: Config.model_validate({"data": shared | data}) for name, data in of_files.items()
    }


def chosen_configurations(patterns: Sequence[str]) -> dict[str, Config]:
    """Those whose names match one of the patterns. Raises SystemExit where there are none."""
    known = configurations()
    chosen = {
        name: config
        for name, config in known.items()
        if any(fnmatchcase(name, each) for each in patterns)
    }
    if not chosen:
        raise SystemExit(f"No set is called {' or '.join(patterns)}; there are {', '.join(known)}.")
    return chosen


def labelled_rows(targets: np.ndarray, rest: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A fraction of the rows `rest`, stratified by type: at least one cell of each, and more with
    larger fractions.
    """
    generator = np.random.default_rng(seed)
    found = []
    for label in np.unique(targets[rest]):
        members = generator.permutation(rest[targets[rest] == label])
        found.append(members[: max(round(fraction * len(members)), 1)])
    return np.sort(np.concatenate(found))


def scores(found: Labels, truth: np.ndarray) -> dict[str, float]:
    """Scores of the test cells, whose types are truth [C]; see the first lines of this file."""
    right = found.labels == truth
    types = np.unique(truth)
    one = {
        "accuracy": right.mean(),
        "macro_f1": f1_score(truth, found.labels, labels=types, average="macro", zero_division=0),
    }
    if found.probabilities is None:
        return one
    confidence = found.probabilities.max(1)
    # The most probable type is the true one with its probability, if probabilities are right.
    drawn = np.random.default_rng(0).random((DRAWS, len(truth))) < confidence
    of_truth = found.probabilities[np.arange(len(truth)), truth]
    return one | {
        "calibration_error": calibration_error(confidence, right),
        "calibration_floor": float(
            np.mean([calibration_error(confidence, each) for each in drawn])
        ),
        "confidence_minus_accuracy": confidence.mean() - right.mean(),
        "log_loss": -np.log(np.maximum(of_truth, SMALLEST)).mean(),
    }


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected difference of confidence [C] and accuracy over bins of confidence; right [C]:
    whether the label is.
    """
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return sum(
        abs((right[bins == each] - confidence[bins == each]).sum()) for each in np.unique(bins)
    ) / len(right)


def main(argv: list[str] | None = None) -> None:
    arguments = read_options(
        __doc__,
        argv,
        sets=PATTERNS,
        without=Option([], "methods to leave out", choices=METHODS),
        splits=5,
        first_split=Option(0, "number of the first split, which is its seed"),
        fractions=Option(FRACTIONS, "of the training cells' labels"),
        max_steps=Option(
            help="trains grn for fewer steps: to try the script, not to judge grn", kind=int
        ),
        output=RESULTS,
        picture=PICTURES / "cell_types.png",
    )

    methods = available([method for method in METHODS if method not in arguments.without])
    for name, config in chosen_configurations(arguments.sets).items():
        if arguments.max_steps:
            config = config.model_copy(
                update={
                    "trainer": config.trainer.model_copy(update={"max_steps": arguments.max_steps})
                }
            )
        measure(name, config, methods, arguments)

    table = pd.read_csv(arguments.output / "classification.csv")
    along = {
        "along": "labels",
        "label": "training cells with a label",
        "shares": sorted(set(table["labels"]))[::-1],
    }
    save(by_share(table, ours=OURS, **along), arguments.picture)
    print(f"wrote {arguments.output / 'classification.csv'} and {arguments.picture}")


def measure(name: str, config: Config, methods: list[str], arguments: argparse.Namespace) -> None:
    """All rows of a set, printed and written one by one."""
    one = labelled_set(config)
    targets, classes = one.targets, one.cells.classes
    for split in range(arguments.first_split, arguments.first_split + arguments.splits):
        test = split_cells(targets, None, TEST, split).test
        rest = np.setdiff1d(np.flatnonzero(targets >= 0), test)
        for fraction in arguments.fractions:
            known = labelled_rows(targets, rest, fraction, split)
            for method in methods:
                started = cpu_seconds()
                with tempfile.TemporaryDirectory() as folder:
                    found = METHODS[method](one, known, test, split, Path(folder))(one, test)
                seconds = cpu_seconds() - started
                keys = {"set": name, "method": method, "labels": fraction, "split": split}
                scored = scores(found, targets[test])
                print(
                    "  ".join(
                        [
                            *map(str, keys.values()),
                            *(f"{key} {value:.3f}" for key, value in scored.items()),
                        ]
                    ),
                    flush=True,
                )
                add(
                    arguments.output / "classification.csv",
                    [keys | scored | {"cpu_seconds": seconds}],
                    list(keys),
                )
                report = classification_report(
                    targets[test], found.labels, output_dict=True, zero_division=0
                )
                by_type = [
                    keys | {"type": name, "cells": int(of["support"]), "f1": of["f1-score"]}
                    for number, name in enumerate(classes)
                    if (of := report.get(str(number)))
                    if of["support"]
                ]
                add(arguments.output / "classification_by_type.csv", by_type, [*keys, "type"])


def cpu_seconds() -> float:
    """Of this process and those that it started."""
    return sum(os.times()[:4])


def add(path: Path, rows: list[dict], keys: list[str]) -> None:
    """Writes rows into a table, in the order of the sets, methods, fractions and splits."""
    order = {"set": list(configurations()), "labels": FRACTIONS, "method": list(METHODS)}
    write(path, ordered(merged(path, pd.DataFrame(rows), keys), **order))


if __name__ == "__main__":
    main()
