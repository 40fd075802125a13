"""The network of a finished run,
read again from its model or from one that was changed in place.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grn.cells.load import load_cells
from grn.config.files import change_config
from grn.edges.signed_network import open_network
from grn.evidence.states import States, states_of
from grn.networks.build import network_of_model, opened, read_again
from grn.networks.cells_of_run import cells_of_run
from grn.runtime.errors import RunFolderError
from grn.runtime.messages import silent
from grn.training.building import folds_of_run


def built(run, of=lambda cells: cells, folds: bool = False, **fields):
    """The network and both tables of a run, of its cells as `of` changes them."""
    config, trained = opened(run)
    config = change_config(config, {f"network.{name}": value for name, value in fields.items()})
    cells = of(cells_of_run(run, config, trained))
    states, settings = states_of(cells, 0), (config.network, config.trainer)
    options = {}
    if folds:
        split, size = load_cells(config.data)[1], config.model.members
        seed = config.trainer.seed
        options["fold"] = folds_of_run(cells, split, states, members=size, seed=seed)
    return network_of_model(*settings, trained, cells, states, silent, **options)


def test_a_run_that_is_read_again_has_the_same_network(tiny_run):
    whole, again = open_network(tiny_run / "network.h5ad"), read_again(tiny_run)
    np.testing.assert_array_equal(again.varp["grn"].toarray(), whole.weights.toarray())
    assert again.uns["grn"]["parameters"]["top_k"] == 0, "all pairs"
    adata, edges, by_type = built(tiny_run, folds=True, top_k=1)
    every = pd.read_parquet(tiny_run / "edges.parquet")
    assert (every["q_value"] > 0.05).all() and every["effect"].notna().all()
    assert (every["effect_se"] > 0).all()
    size = every["weight"].abs().groupby(every["target"], observed=True)
    strongest = every.loc[size.idxmax().sort_values()].reset_index(drop=True)
    pd.testing.assert_frame_equal(edges, strongest, check_exact=True)
    assert len(edges) == 16 and len(by_type) == 16 and adata.varp["grn"].nnz == 16
    assert adata.uns["grn"]["parameters"]["top_k"] == 1


def test_knock_offs_are_asked_where_they_are_wanted_and_change_no_weight(tiny_run):
    adata, edges, by_type = built(tiny_run)
    _, plain, _ = built(tiny_run, false_discovery=False)
    numbers = ["weight", "sd", "programme", "between", "indirect", "cells"]
    assert list(plain) == ["source", "target", *numbers]
    one, other = (each.set_index(["source", "target"])[numbers] for each in (plain, edges))
    pd.testing.assert_frame_equal(other.loc[one.index], one, check_exact=True)
    for table in (edges, by_type):
        assert table["q_value"].between(0, 1).all() and table["confidence"].between(0.5, 1).all()
    found = adata.uns["grn"]["found"]
    assert found["label"].tolist() == ["all cells", "type 1", "type 2"]
    assert found["edges"].tolist()[0] == (edges["q_value"] <= 0.05).sum()


def test_copies_of_cells_are_no_more_evidence(tiny_run, monkeypatch):
    # small cells, which differ nevertheless
    monkeypatch.setattr("grn.cells.preprocessing.split.GENES", 1)

    def thrice(cells):
        rows = np.repeat(np.arange(len(cells)), 3)
        names = ("multiplicity", "basal", "labels", "obs_names")
        return replace(cells, counting=None, **{n: getattr(cells, n)[rows] for n in names})

    once, copied = (built(tiny_run, *of)[0].uns["grn"]["found"] for of in ((), (thrice,)))
    pd.testing.assert_frame_equal(once, copied)


@pytest.mark.parametrize(
    "files", [(), ("model/card.json",), ("config.yaml",), ("log.txt", "config.yaml")]
)
def test_only_finished_runs_are_read_again(files, tmp_path):
    for name in files:
        Path(tmp_path, "run", name).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, "run", name).touch()
    with pytest.raises(RunFolderError, match="run"):
        read_again(tmp_path / "run")


def test_other_states_than_those_of_the_model_are_refused(tiny_run, monkeypatch):
    """The search for states may end differently on another machine."""

    def one(cells, seed, **options):
        return States(np.ones((len(cells), 1), np.float32), ("all cells",), "one")

    monkeypatch.setattr("grn.networks.cells_of_run.states_of", one)
    with pytest.raises(RunFolderError, match="knows 2 states of cells, and 1 are found"):
        read_again(tiny_run)
