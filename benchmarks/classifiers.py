"""The methods that tell cell types: grn and its peers. Each is fitted once, and then labels any
rows of a set.

Letters: C cells, N genes, K cell types.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.svm import LinearSVC

import grn
from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.preprocessing.counts import read_expression
from grn.cells.readers.registry import open_source
from grn.config.files import change_config
from grn.config.schema import Config
from grn.runtime.messages import silent
from grn.training.run import train

# CellTypist's own classifier, trained on the labelled cells, runs in a Python of its own, which
# this variable names (celltypist 1.7.1 was tried); without it the method is left out. Its training
# fails with scikit-learn 1.8 and newer (`unexpected keyword argument 'multi_class'`), which its
# requirements allow. Its defaults, on the cells as it asks for them: log1p of counts scaled to 10
# 000 a cell. It gives each type a probability of its own; they are divided by their sum. Source:
# Domínguez Conde et al. 2022.
CELLTYPIST = "GRN_BENCHMARK_CELLTYPIST_PYTHON"

# Runs in the other Python: training counts, their types, counts to label and the result as
# arguments. Types are
# written with leading zeros, so that their order as text is that of the numbers.
CELLTYPIST_SCRIPT = """
import sys
import anndata, celltypist, numpy as np, scanpy
from scipy import sparse
known, types, asked, result = sys.argv[1:]
def cells(path):
    found = anndata.AnnData(sparse.load_npz(path))
    found.var_names = [f"gene {number}" for number in range(found.n_vars)]
    scanpy.pp.normalize_total(found, target_sum=1e4)
    scanpy.pp.log1p(found)
    return found
labels = np.array([f"{label:05d}" for label in np.load(types)])
model = celltypist.train(cells(known), labels=labels)
table = celltypist.annotate(cells(asked), model=model).probability_matrix
np.savez(result, types=table.columns.to_numpy().astype(int), probabilities=table.to_numpy())
"""


TEST, FOLDS = 0.2, 5
PENALTIES = np.logspace(-4, 1, 6)  # scikit-learn's C: the smaller, the stronger the penalty


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """A set whose cells have labels.

    adata: counts in X, CSR [C, N].
    values [C, N]: grn's multiplicities of them.
    """

    config: Config
    cells: Cells
    adata: AnnData
    values: np.ndarray

    @property
    def targets(self) -> np.ndarray:
        """Position of each cell's type in `cells.classes`, [C]; -1 where it is not known."""
        return self.cells.labels


def labelled_set(config: Config) -> LabelledSet:
    """The set that a configuration names."""
    cells, _ = load_cells(config.data)
    adata = open_source(config.data)
    expression = read_expression(adata, config.data)
    counted = AnnData(expression.values, obs=adata.obs, var=expression.var)
    in_x = config.model_copy(update={"data": config.data.model_copy(update={"counts": "X"})})
    return LabelledSet(in_x, cells, counted, cells.multiplicity.toarray())


@dataclass(frozen=True)
class Labels:
    """Predicted labels [C] and, where the method has them, probabilities [C, K]; types are
    positions.
    """

    labels: np.ndarray
    probabilities: np.ndarray | None


# of the rows of a set, which may be the same cells thinned
Predict = Callable[[LabelledSet, np.ndarray], Labels]
# A set, the rows whose labels are known, those of the test, a seed, a folder for files -> what
# labels rows.
Fit = Callable[[LabelledSet, np.ndarray, np.ndarray, int, Path], Predict]


def by_classifier(make: Callable[[int], Any]) -> Fit:
    """A method that fits the classifier that `make` returns for a seed to the multiplicities."""

    def fit(
        one: LabelledSet, known: np.ndarray, test: np.ndarray, seed: int, folder: Path
    ) -> Predict:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types with fewer labelled cells than folds
            fitted = make(seed).fit(one.values[known], one.targets[known])

        def predict(of: LabelledSet, rows: np.ndarray) -> Labels:
            if not hasattr(fitted, "predict_proba"):
                return Labels(fitted.predict(of.values[rows]), None)
            probabilities = np.zeros((len(rows), len(of.cells.classes)))
            probabilities[:, fitted.classes_] = fitted.predict_proba(of.values[rows])
            return Labels(probabilities.argmax(1), probabilities)

        return predict

    return fit


def penalised(seed: int, last: Any, *between: Any) -> GridSearchCV:
    """The classifier `last` behind standardised genes; cross-validated accuracy chooses its C."""
    pipeline = make_pipeline(StandardScaler(), *between, last)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return GridSearchCV(
        pipeline, {f"{pipeline.steps[-1][0]}__C": PENALTIES}, cv=folds, scoring="accuracy"
    )


class AtMost(PCA):
    """PCA with as many components as asked for, or as the cells of a fold allow."""

    def fit_transform(self, X: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        self.n_components = min(self.n_components, *X.shape)
        return super().fit_transform(X, y)


def on_components(seed: int) -> GridSearchCV:
    return penalised(seed, LogisticRegression(max_iter=1000), AtMost(50, random_state=seed))


def fit_grn(
    one: LabelledSet, known: np.ndarray, test: np.ndarray, seed: int, folder: Path
) -> Predict:
    """The model trained on all cells but those of the test,
    of which the rows `known` have labels.
    """
    config, key = one.config, one.config.data.label_key
    assert key is not None, "every set has labels"
    rest = np.setdiff1d(np.arange(len(one.cells)), test)
    train_on = one.adata[rest].copy()
    train_on.obs[key] = train_on.obs[key].astype(object).where(np.isin(rest, known), None)
    fields = {"data.test_fraction": 0.0, "trainer.seed": seed, "network.false_discovery": False}
    train(change_config(config, fields), folder / "run", adata=train_on, say=silent)

    def predict(of: LabelledSet, rows: np.ndarray) -> Labels:
        found = grn.predict(of.adata[rows].copy(), folder / "run", counts="X", quiet=True)
        positions = [of.cells.classes.index(name) for name in found.uns["grn"]["classes"]]
        probabilities = np.zeros((len(rows), len(of.cells.classes)))
        probabilities[:, positions] = found.obsm["grn_probabilities"]
        return Labels(probabilities.argmax(1), probabilities)

    return predict


def fit_celltypist(
    one: LabelledSet, known: np.ndarray, test: np.ndarray, seed: int, folder: Path
) -> Predict:
    """CellTypist, which is trained anew whenever it labels, in a tenth of a second."""

    def predict(of: LabelledSet, rows: np.ndarray) -> Labels:
        files = [folder / name for name in ("known.npz", "types.npy", "asked.npz", "result.npz")]
        sparse.save_npz(files[0], one.adata.X[known].astype(np.float32))
        np.save(files[1], one.targets[known])
        sparse.save_npz(files[2], of.adata.X[rows].astype(np.float32))
        # Isolated: the other Python has its own libraries.
        command = [os.environ[CELLTYPIST], "-I", "-c", CELLTYPIST_SCRIPT, *map(str, files)]
        subprocess.run(command, check=True)
        found = np.load(files[3])
        result = np.zeros((len(rows), len(of.cells.classes)))
        result[:, found["types"]] = normalize(found["probabilities"], norm="l1")
        return Labels(result.argmax(1), result)

    return predict


OURS = "grn"
METHODS: dict[str, Fit] = {
    OURS: fit_grn,
    "logistic regression": by_classifier(
        lambda seed: penalised(seed, LogisticRegression(max_iter=1000))
    ),
    "on 50 components": by_classifier(on_components),
    "linear SVM": by_classifier(
        lambda seed: penalised(seed, LinearSVC(dual="auto", random_state=seed))
    ),
    "random forest": by_classifier(lambda seed: RandomForestClassifier(500, random_state=seed)),
    "CellTypist": fit_celltypist,
}


def available(methods: Sequence[str]) -> list[str]:
    """Those of the methods that can run here; says where one cannot."""
    if "CellTypist" not in methods or os.environ.get(CELLTYPIST):
        return list(methods)
    print(f"CellTypist: left out: {CELLTYPIST} is not set (a Python that has the package)")
    return [method for method in methods if method != "CellTypist"]
