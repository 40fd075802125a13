"""Values of another kind than an argument takes: one sentence, from every function."""

from __future__ import annotations

import re

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.errors import UserError

PAIR = pd.DataFrame({"source": ["R1", "R2"], "target": ["G1", "G2"], "weight": [1.0, 1.0]})


def cells() -> anndata.AnnData:
    return anndata.AnnData(np.ones((5, 3), np.float32))


CALLS = {
    "remaining is 'x'; it must be a number": lambda run: grn.perturb(run, knockdown="R1", remaining="x"),
    "quantile is nan; it must be a number": lambda run: grn.perturb(run, overexpress="R1", quantile=float("nan")),
    "basis is 5; it must be a text": lambda run: grn.perturb(run, knockout="R1", basis=5),
    "steps is 'x'; it must be a whole number from": lambda run: grn.screen(run, "type 1", "type 2", steps="x"),
    "by is 5; it must be a text": lambda run: grn.compare(run, by=5),
    "seed is -1; it must be a whole number from 0": lambda run: grn.compare(run, by="cell_type", seed=-1),
    "permutations is 1.5; it must be a whole number": lambda run: grn.compare(run, by="cell_type", permutations=1.5),
    "permutations is True; it must be a whole number": lambda run: grn.evaluate(run, PAIR, permutations=True),
    "regulators is 5; it must be a list of one or more": lambda run: grn.evaluate(run, PAIR, regulators=5),
    "regulators is 0.5; it must be a list": lambda run: grn.benchmark(run, PAIR, regulators=0.5),
    "top_k is 'a'; it must be a whole number": lambda run: grn.export(run, "x.csv", format="csv", top_k="a"),
    "min_weight is 'a'; it must be a number": lambda run: grn.export(run, "x.csv", format="csv", min_weight="a"),
    "format is 5; it must be a text": lambda run: grn.export(run, "x.csv", format=5),
    "key_added is 'a/b'; give a name without": lambda run: grn.activity(cells(), run, key_added="a/b"),
    "targets is 'x'; it must be a whole number": lambda run: grn.activity(cells(), run, targets="x"),
    "counts is 1; it must be a text": lambda run: grn.predict(cells(), run, counts=1),
    "labels is of the type Series; it must be a text": lambda run: grn.predict(cells(), run, labels=PAIR["source"]),
    "orientation is 'cells'; it must be 'cells_by_genes'": lambda run: grn.predict(cells(), run, orientation="cells"),
    "orientation is of text files": lambda run: grn.predict(cells(), run, orientation="genes_by_cells"),
    "map is ['a']; it must be a dict or a path": lambda run: grn.predict(cells(), run, map=["a"]),
    "map has '', which is no name": lambda run: grn.predict(cells(), run, map={"type 1": ""}),
    "cell_type is 5; it must be a text": lambda run: grn.explain(cells(), run, cell_type=5),
    "regulators is 5; it must be a list of one": lambda run: grn.export(run, "x.csv", format="csv", regulators=5),
    "min_confidence is -1; it must be a number from 0 to 1": lambda run: grn.export(
        run, "x.csv", format="csv", min_confidence=-1
    ),
    "output is ''; it must be a path": lambda run: grn.export(run, "", format="csv"),
    "run is ''; it must be a path": lambda run: grn.load(""),
    "folder is 5; it must be a path": lambda run: grn.Run(5),
    "The network has two columns called 'source'": lambda run: grn.evaluate(pd.concat([PAIR, PAIR], axis=1), PAIR),
    "The reference has two columns called 'source'": lambda run: grn.evaluate(run, pd.concat([PAIR, PAIR], axis=1)),
    "cell_type is of the type DataFrame; it must be a text": lambda run: grn.read_network(run, cell_type=PAIR),
    "knockout is None; it must be a text or a list": lambda run: grn.perturb(run, knockout=None),
    "where is 'condition=stim'; it must be a dict": lambda run: grn.perturb(run, knockout="R1", where="condition=stim"),
    "cell_type is None; it must be a text": lambda run: grn.screen(run, None, "type 2"),
    "conditions is 'ctrl'; it must be two": lambda run: grn.compare(run, by="cell_type", conditions="ctrl"),
    "seed is None; it must be a whole number": lambda run: grn.compare(run, by="cell_type", seed=None),
    "permutations is None; it must be a whole number": lambda run: grn.evaluate(run, PAIR, permutations=None),
    "genes is []; it must be a list of one or more names": lambda run: grn.evaluate(run, PAIR, genes=[]),
    "networks is of the type list; it must be a dict": lambda run: grn.benchmark(run, PAIR, networks=[PAIR]),
    "label_key is of cells": lambda run: grn.benchmark(run, PAIR, label_key="cell_type"),
    "data is 'x.h5ad'; it must be an AnnData": lambda run: grn.read_network(run, layer=0, data="x.h5ad"),
    "data= is read for the network of one cell": lambda run: grn.network(run, data=cells()),
    "cell_type= chooses a network of a run": lambda run: grn.read_network(PAIR, cell_type="type 1"),
    "Column 'age' of obs is not numeric": lambda run: grn.train(
        anndata.AnnData(np.ones((5, 3), np.float32), pd.DataFrame({"age": np.arange(5) * 1j})), state_key="age"
    ),
}


@pytest.mark.parametrize("sentence", CALLS)
def test_a_value_of_another_kind_is_one_sentence(sentence, tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"^{re.escape(sentence)}") as refused:
        CALLS[sentence](grn.load(tiny_run))
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_are_numbers(tiny_run, tmp_path):
    edges = grn.export(
        tiny_run, tmp_path / "x.csv", format="csv", top_k=np.int64(1), min_weight=np.float32(0), quiet=True
    )
    assert len(edges)
