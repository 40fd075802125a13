"""Every argument of every public function, set to values of a dozen wrong kinds: one sentence, or a result."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import grn
import grn.verbs.network
from grn.errors import UserError

WRONG = {
    "None": lambda: None,
    "empty text": lambda: "",
    "another text": lambda: "nonsense",
    "below zero": lambda: -1,
    "zero": lambda: 0,
    "nan": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "huge": lambda: 10**30,
    "True": lambda: True,
    "empty list": lambda: [],
    "empty dict": lambda: {},
    "object": object,
    "array": lambda: np.ones((2, 3, 4)),
    "empty table": pd.DataFrame,
    "another table": lambda: pd.DataFrame({"colour": ["red"], "size": [1.0]}),
    "cells without X": lambda: anndata.AnnData(obs=pd.DataFrame(index=["a", "b"]), var=pd.DataFrame(index=["x"])),
}


def curves() -> dict[str, pd.DataFrame]:
    return {"ours": pd.DataFrame({"recall": [0.5, 1.0], "precision": [1.0, 0.5]})}


def cells_with_activity() -> anndata.AnnData:
    cells = anndata.AnnData(np.ones((2, 1), np.float32))
    cells.obsm["X_umap"], cells.obsm["X_regulon"] = np.eye(2), pd.DataFrame({"A": [1.0, 2]}, index=cells.obs_names)
    return cells


EXPLAINED = pd.DataFrame({"cell_type": ["B", "B"], "gene": ["x", "y"], "effect": [1.0, -0.5]})
PERTURBED = pd.DataFrame({"gene": ["x", "y"], "effect": [1.0, -0.5], "sd": [0.1, 0.1], "perturbed": [False, True]})
PAIR = pd.DataFrame({"source": ["R1", "R2"], "target": ["G1", "G2"], "weight": [1.0, 1.0]})
VALID = {
    "attention_layers": lambda run: (run.network,),
    "cell_type_genes": lambda run: (EXPLAINED,),
    "cell_type_regulators": lambda run: (run.network,),
    "clustered_heatmap": lambda run: (run,),
    "confusion_matrix": lambda run: (run.confusion,),
    "network_difference": lambda run: (run, *run.cell_types[:2]),
    "network_graph": lambda run: (run,),
    "network_heatmaps": lambda run: (run.network,),
    "perturbation_volcano": lambda run: (PERTURBED,),
    "precision_recall_curves": lambda run: (curves(), 0.1),
    "regulator_activity": lambda run: (cells_with_activity(), "A"),
    "regulator_dots": lambda run: (run,),
    "strongest_regulations": lambda run: (run.edges,),
    "within_and_between": lambda run: (run.edges,),
    "training_curves": lambda run: (run.history,),
}


def refused_or_drawn(call) -> str | None:
    """What is wrong with a call: another exception, a message of several lines, a warning; None: nothing."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            picture = call()
        except UserError as refused:
            text = str(refused)
            return None if text.endswith((".", "?")) and "\n" not in text and len(text) < 400 else text
        except Exception as problem:
            return f"{type(problem).__name__}: {problem}"
    if raised:
        return f"it warns: {raised[0].message}"
    return None if isinstance(picture, (Axes, Figure)) else f"it returns {type(picture).__name__}"


@pytest.mark.parametrize("name", VALID)
def test_a_picture_refuses_every_wrong_argument_in_one_sentence(name, tiny_run):
    assert set(VALID) == set(grn.plots.__all__)
    run = grn.load(tiny_run)
    function = getattr(grn.plots, name)
    parameters = list(inspect.signature(function).parameters)
    given = dict(zip(parameters, VALID[name](run), strict=False))
    faults = {}
    for parameter in parameters:
        for kind, wrong in WRONG.items():
            value = wrong()
            fault = refused_or_drawn(lambda value=value, parameter=parameter: function(**{**given, parameter: value}))
            if fault:
                faults[parameter, kind] = fault
    assert not faults


FUNCTIONS = [grn.train, grn.load, grn.predict, grn.verbs.network.network, grn.read_network, grn.compare, grn.evaluate]
FUNCTIONS += [grn.explain, grn.export, grn.activity, grn.benchmark, grn.perturb, grn.screen, grn.Run.__init__]
FUNCTIONS += [grn.Run.save, *(getattr(grn.plots, name) for name in grn.plots.__all__)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_every_public_function_checks_its_arguments(function):
    """Each argument has kinds, and none of them takes an object, an array of three dimensions, or no number."""
    taken = set(inspect.signature(function).parameters) - {"self"}
    assert set(function.arguments) == taken
    for argument in function.arguments.values():
        for wrong in (object(), np.ones((2, 3, 4)), float("nan"), float("inf")):
            with pytest.raises(UserError, match=rf"^{argument.name} is .*; it must be ") as refused:
                argument.taken(wrong)
            assert "\n" not in str(refused.value) and str(refused.value).endswith(".")


def test_the_functions_are_all_that_is_offered():
    names = {function.__name__ for function in FUNCTIONS}
    offered = {name for name in grn.__all__ if callable(getattr(grn, name)) and name != "Run"} | set(grn.plots.__all__)
    assert names == offered | {"__init__", "save"}


CALLS = {
    "predict": lambda run: {"adata": anndata.AnnData(np.ones((5, 3), np.float32)), "run": run},
    "explain": lambda run: {"adata": anndata.AnnData(np.ones((5, 3), np.float32)), "run": run},
    "activity": lambda run: {"adata": anndata.AnnData(np.ones((5, 3), np.float32)), "network": run},
    "read_network": lambda run: {"network": run},
    "evaluate": lambda run: {"network": PAIR, "reference": PAIR, "permutations": 1},
    "export": lambda run: {"network": PAIR, "output": "out/edges.csv", "format": "csv"},
    "load": lambda run: {"run": run.folder},
    "perturb": lambda run: {"run": run, "knockout": "R1"},
    "compare": lambda run: {"run": run, "by": "nothing"},
    "screen": lambda run: {"run": run, "cell_type": "type 1", "towards": "type 9"},
    "network": lambda run: {"source": run},
    "benchmark": lambda run: {"cells": run, "reference": PAIR.replace({"R1": "S1", "R2": "S2"})},
    "train": lambda run: {"data": "nowhere.h5ad"},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_refuses_every_wrong_argument_in_one_sentence(name, tiny_run, tmp_path, monkeypatch):
    """A call returns, or is refused by one sentence; nothing is written but what `export` was asked for."""
    monkeypatch.chdir(tmp_path)
    run = grn.load(tiny_run)
    function = grn.verbs.network.network if name == "network" else getattr(grn, name)
    faults = {}
    for parameter in inspect.signature(function).parameters:
        for kind, wrong in WRONG.items():
            arguments = {**CALLS[name](run), parameter: wrong()}
            if "quiet" in inspect.signature(function).parameters:
                arguments = {"quiet": True} | arguments
            fault = refused_or_returned(function, arguments)
            if fault:
                faults[parameter, kind] = fault
    assert not faults
    left = [path for path in Path().rglob("*") if path.is_file()]
    assert not left if name != "export" else all(path.suffix == ".csv" for path in left)


def refused_or_returned(function, arguments) -> str | None:
    try:
        function(**arguments)
    except UserError as refused:
        text = str(refused)
        return None if text.endswith((".", "?")) and "\n" not in text and len(text) < 400 else text
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None
