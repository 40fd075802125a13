"""Does grn label cells as well as simple classifiers do, and how few labels does it need?

    python benchmarks/classification.py                                                 # three sets: an hour of a core
    python benchmarks/classification.py --sets pbmc68k_reduced --splits 1 --fractions 1    # a minute

Each split puts a fifth of the cells, stratified by type, aside for the test. Of the others a fraction keeps its labels.
grn's cell reader is fitted to all of the others as `grn train` does it, which needs no label for predicting genes, and
labels the test cells as `grn predict` does; what `grn train` does besides, the network and the transformer's training,
has no part in cell types and is left out. The other methods read the labelled cells
only, as grn's own multiplicities of every gene (log1p of normalised counts), in units of each gene's sd. Their
penalties are chosen by cross-validated accuracy.

Columns: accuracy; macro F1 over the types of the test cells; calibration error (expected difference of confidence and
accuracy, in 15 bins of confidence); its floor (the mean calibration error of so many cells whose labels are drawn from
the very probabilities, so that these are right: few cells in many bins differ by chance); mean confidence minus
accuracy; log loss (probabilities below 1e-6 count as 1e-6); CPU seconds of fit and prediction. A linear SVM has no
probabilities. Writes `classification.csv`, and F1 by type to `classification_by_type.csv`, after every fit; rows of
other sets, methods, fractions and splits stay.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from results_file import merged, ordered, write
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import grn
from grn.config.files import load_config
from grn.config.schema import Config
from grn.data.cells import Cells, load_cells
from grn.data.preprocessing.scale import mean_and_sd
from grn.data.preprocessing.split import split_cells
from grn.data.readers.registry import open_source
from grn.messages import silent
from grn.training.building import build_model, trained_model
from grn.training.reader_fit import fit_reader

RESULTS = Path(__file__).parent / "results"
TEST, FOLDS, BINS, DRAWS, SMALLEST = 0.2, 5, 15, 200, 1e-6
PENALTIES = np.logspace(-4, 1, 6)  # scikit-learn's C: the smaller, the stronger the penalty


@dataclass(frozen=True)
class Labels:
    """Predicted labels [C] and, where the method has them, probabilities [C, classes]; classes are positions."""

    labels: np.ndarray
    probabilities: np.ndarray | None


def configurations() -> dict[str, Config]:
    """The sets: how `grn train` reads and trains on each. Only pbmc68k_reduced has a configuration of its own."""
    folder = Path(os.environ.get("GRN_BENCHMARK_DATA", "."))
    of_files = {
        "pbmc3k": {"path": str(folder / "pbmc3k.h5ad"), "regulators": str(folder / "human_tfs.txt")},
        "sergio_ds1": {"path": str(folder / "sergio_ds1.h5ad")},
    }
    shared = {"genes": "all", "label_key": "cell_type"}
    found = {"pbmc68k_reduced": load_config("pbmc.yaml")}
    return found | {name: Config.model_validate({"data": shared | data}) for name, data in of_files.items()}


def by_classifier(make: Callable[[int], Any]) -> Callable[..., Labels]:
    """A method that standardises the genes, and fits the classifier that `make` returns for a seed."""

    def labels(values: np.ndarray, known: np.ndarray, targets: np.ndarray, test: np.ndarray, seed: int) -> Labels:
        """values [C, N] of every cell, targets [C]; known and test are rows."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types with fewer labelled cells than folds
            fitted = make(seed).fit(values[known], targets[known])
        if not hasattr(fitted, "predict_proba"):
            return Labels(fitted.predict(values[test]), None)
        probabilities = np.zeros((len(test), targets.max() + 1))
        probabilities[:, fitted.classes_] = fitted.predict_proba(values[test])
        return Labels(probabilities.argmax(1), probabilities)

    return labels


def penalised(seed: int, last: Any, *between: Any) -> GridSearchCV:
    """The classifier `last` behind standardised genes; cross-validated accuracy chooses its C."""
    pipeline = make_pipeline(StandardScaler(), *between, last)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return GridSearchCV(pipeline, {f"{pipeline.steps[-1][0]}__C": PENALTIES}, cv=folds, scoring="accuracy")


class AtMost(PCA):
    """PCA with as many components as asked for, or as the cells of a fold allow."""

    def fit_transform(self, X: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        self.n_components = min(self.n_components, *X.shape)
        return super().fit_transform(X, y)


def on_components(seed: int) -> GridSearchCV:
    return penalised(seed, LogisticRegression(max_iter=1000), AtMost(50, random_state=seed))


PEERS: dict[str, Callable[..., Labels]] = {
    "logistic regression": by_classifier(lambda seed: penalised(seed, LogisticRegression(max_iter=1000))),
    "on 50 components": by_classifier(on_components),
    "linear SVM": by_classifier(lambda seed: penalised(seed, LinearSVC(dual="auto", random_state=seed))),
    "random forest": by_classifier(lambda seed: RandomForestClassifier(500, random_state=seed)),
}
METHODS = ("grn", *PEERS)


def by_grn(config: Config, cells: Cells, adata: AnnData, known: np.ndarray, test: np.ndarray, seed: int) -> Labels:
    """The reader fitted to all cells but those of the test, of which the rows `known` have labels; predicts these."""
    key = config.data.label_key
    assert key is not None, "every set has labels"
    rest = np.setdiff1d(np.arange(len(cells)), test)
    train_on, predict_on = adata[rest].copy(), adata[test].copy()
    train_on.obs[key] = train_on.obs[key].astype(object).where(np.isin(rest, known), None)
    changed = config.model_dump()
    changed["data"] |= {"test_fraction": 0.0, "validation_fraction": config.data.validation_fraction / (1 - TEST)}
    changed["trainer"]["seed"] = seed
    with tempfile.TemporaryDirectory() as folder:
        saved, trained_as = Path(folder) / "model", Config.model_validate(changed)
        training, split = load_cells(trained_as.data, seed=seed, adata=train_on)
        mean, sd = mean_and_sd(training.multiplicity[split.train])
        reader = fit_reader(trained_as, training, split, mean, sd, len(training.classes), silent)
        model = build_model(trained_as, training, split, mean, sd, None, reader)
        trained_model(trained_as, training, model).save(saved)
        found = grn.predict(predict_on, saved, counts=trained_as.data.counts, quiet=True)
    positions = [cells.classes.index(name) for name in found.uns["grn"]["classes"]]
    probabilities = np.zeros((len(test), len(cells.classes)))
    probabilities[:, positions] = found.obsm["grn_probabilities"]
    return Labels(probabilities.argmax(1), probabilities)


def labelled_rows(targets: np.ndarray, rest: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """A fraction of the rows `rest`, stratified by type: at least one cell of each, and more with larger fractions."""
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
        "calibration_floor": float(np.mean([calibration_error(confidence, each) for each in drawn])),
        "confidence_minus_accuracy": confidence.mean() - right.mean(),
        "log_loss": -np.log(np.maximum(of_truth, SMALLEST)).mean(),
    }


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected difference of confidence [C] and accuracy over bins of confidence; right [C]: whether the label is."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return sum(abs((right[bins == each] - confidence[bins == each]).sum()) for each in np.unique(bins)) / len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["*"], metavar="NAME", help="names or patterns (default: all)")
    parser.add_argument(
        "--without", nargs="+", default=[], choices=METHODS, metavar="METHOD", help="methods to leave out"
    )
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first-split", type=int, default=0, help="number of the first split, which is its seed")
    parser.add_argument(
        "--fractions", nargs="+", type=float, default=[1.0, 0.3, 0.1], help="of the training cells' labels"
    )
    parser.add_argument("--max-steps", type=int, help="trains grn for fewer steps: to try the script, not to judge grn")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR")
    arguments = parser.parse_args()

    chosen = {n: c for n, c in configurations().items() if any(fnmatchcase(n, each) for each in arguments.sets)}
    if not chosen:
        raise SystemExit(f"No set is called {' or '.join(arguments.sets)}; there are {', '.join(configurations())}.")
    methods = [method for method in METHODS if method not in arguments.without]
    for name, config in chosen.items():
        if arguments.max_steps:
            config = config.model_copy(
                update={"trainer": config.trainer.model_copy(update={"max_steps": arguments.max_steps})}
            )
        measure(name, config, methods, arguments)


def measure(name: str, config: Config, methods: list[str], arguments: argparse.Namespace) -> None:
    """All rows of a set, printed and written one by one."""
    cells, _ = load_cells(config.data)
    adata, values, targets = open_source(config.data), cells.multiplicity.toarray(), cells.labels
    for split in range(arguments.first_split, arguments.first_split + arguments.splits):
        test = split_cells(targets, None, 0.0, TEST, split).test
        rest = np.setdiff1d(np.flatnonzero(targets >= 0), test)
        for fraction in arguments.fractions:
            known = labelled_rows(targets, rest, fraction, split)
            for method in methods:
                started = time.process_time()
                if method == "grn":
                    found = by_grn(config, cells, adata, known, test, split)
                else:
                    found = PEERS[method](values, known, targets, test, split)
                seconds = time.process_time() - started
                keys = {"set": name, "method": method, "labels": fraction, "split": split}
                one = scores(found, targets[test])
                print(
                    "  ".join([*map(str, keys.values()), *(f"{key} {value:.3f}" for key, value in one.items())]),
                    flush=True,
                )
                add(arguments.output / "classification.csv", [keys | one | {"cpu_seconds": seconds}], list(keys))
                types = np.unique(targets[test])
                each = f1_score(targets[test], found.labels, labels=types, average=None, zero_division=0)
                by_type = [
                    keys | {"type": cells.classes[label], "cells": int((targets[test] == label).sum()), "f1": score}
                    for label, score in zip(types, each, strict=True)
                ]
                add(arguments.output / "classification_by_type.csv", by_type, [*keys, "type"])


def add(path: Path, rows: list[dict], keys: list[str]) -> None:
    """Writes rows into a table, in the order of the sets, methods, fractions and splits."""
    order = {"set": list(configurations()), "labels": [1.0, 0.3, 0.1], "method": METHODS}
    write(path, ordered(merged(path, pd.DataFrame(rows), keys), **order))


if __name__ == "__main__":
    main()
