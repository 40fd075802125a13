"""`grn.train` on cells in memory, paths and configurations."""

from __future__ import annotations

import gc
import os
import random
import signal
import tempfile
import threading
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

import grn
from grn.runtime.errors import ConfigError, DataError, Interrupted, RunFolderError
from grn.training.progress import ProgressLines

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture
def config(make_config):
    return make_config()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where temporary folders are made in these tests; the working folder is another."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "temporary"


@pytest.fixture(autouse=True)
def handlers():
    """Ctrl-C as Python has it: a shell's background job is born with Ctrl-C ignored, and so would
    be the tests'.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def signalled(monkeypatch):
    """Training in which the process receives a signal."""

    def call(number: int, *arguments, **keywords):
        with monkeypatch.context() as patched:
            patched.setattr(
                ProgressLines, "on_validation_end", lambda *_: os.kill(os.getpid(), number)
            )
            return train(*arguments, **keywords)

    return call


def train(data, config, **keywords):
    return grn.train(data, config=config, **{"quiet": True, **keywords})


def assert_same(ours: grn.Run, theirs: grn.Run) -> None:
    """Both runs have the same edges and scores to the last bit."""
    pd.testing.assert_frame_equal(ours.edges, theirs.edges, check_exact=True)
    assert ours.metrics == theirs.metrics


def view(adata):
    more = anndata.concat([adata, adata[:7]], uns_merge="first")
    more.obs_names_make_unique()
    return more[: len(adata)]


def elsewhere(adata):
    """Counts in a layer and in raw, log values in X."""
    adata.layers["umi"], adata.raw, adata.X = adata.X.copy(), adata.copy(), adata.X.log1p()
    return adata


def file_of(adata) -> str:
    adata.write_h5ad("cells.h5ad")
    return "cells.h5ad"


FORMS = {
    "sparse": (lambda adata: adata, {}),
    "dense": (lambda adata: anndata.AnnData(adata.to_df(), obs=adata.obs, uns=adata.uns), {}),
    "a view": (view, {}),
    "a layer": (elsewhere, {"counts": "layer:umi"}),
    "raw": (elsewhere, {"counts": "raw"}),
    "a file": (file_of, {}),
    "backed": (lambda adata: anndata.read_h5ad(file_of(adata), backed="r"), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_the_cells_does_not_matter(form, adata, config, run):
    of_form, options = FORMS[form]
    data = of_form(adata)
    assert_same(train(data, config, **options), run)
    if form == "backed":
        assert data.isbacked and data.X[:1].sum() >= 0, "and the file stays open"
        data.file.close()


def test_a_configuration_alone_names_its_cells(config, run):
    assert_same(grn.train(config), run)


def seed_all() -> None:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)


def state() -> tuple:
    """What of the process training must leave as it was: random states, signals, threads and what
    Lightning keeps in the environment, its seed.
    """
    draws = random.random(), np.random.random(), torch.rand(1).item()
    of_lightning = {name: value for name, value in os.environ.items() if name.startswith("PL_")}
    return draws, [*map(signal.getsignal, SIGNALS)], torch.get_num_threads(), of_lightning


def test_training_leaves_everything_else_as_it_was(adata, config, temporary):
    """The run itself is in a temporary folder, and lives as long as its object."""
    adata.raw, adata.layers["other"] = adata.copy(), adata.X.copy()
    before = adata.copy()
    seed_all()
    expected = state()
    seed_all()
    run = train(adata, config)
    assert state() == expected
    assert (adata.X != before.X).nnz == 0 and (adata.raw.X != before.raw.X).nnz == 0
    for name in ("obs", "var"):
        pd.testing.assert_frame_equal(getattr(adata, name), getattr(before, name))
    for name in ("layers", "uns", "obsm", "varm"):
        assert set(getattr(adata, name)) == set(getattr(before, name))
    assert run.folder.is_dir() and run.folder.is_relative_to(temporary)
    assert run.config.data.path == "memory:"
    del run
    gc.collect()
    assert not list(temporary.iterdir()) and not list(Path.cwd().iterdir())


def test_output_is_an_ordinary_run_folder(adata, config, temporary, run, capfd):
    kept = train(adata, config, output="kept", quiet=False)
    printed, wrong = capfd.readouterr()
    assert " in kept" in printed and "step 6/6" in printed and not wrong
    assert not [part for part in ("\r", "\x1b", str(temporary)) if part in printed], "plain lines"
    assert kept.folder == Path("kept").absolute()
    names = {path.name for path in run.folder.iterdir()} - {"checkpoints"}
    found = {path.name for path in kept.folder.iterdir()}
    assert found == names | {"report.html", "certain.csv"}
    del kept
    gc.collect()
    assert_same(grn.load("kept"), run)
    with pytest.raises(RunFolderError):
        train(adata, config, output="kept")


def test_quiet_training_prints_nothing(adata, config, capfd):
    train(adata, config)
    assert capfd.readouterr() == ("", "")


def test_keywords_are_their_fields(adata):
    adata.obs["donor"] = [*"abcdefgh"] * 10
    named = {"label": "cell_type", "group_key": "donor", "genes": 12, "counts": "X", "seed": 3}
    fields = {"model.penalty": np.float32(2), "network.top_k": 1}
    regulators = pd.Index(["R1", "R2"])
    run = train(adata, None, **named, regulators=regulators, max_steps=np.int64(4), set=fields)
    data, used = run.config.data, run.config
    assert (data.label_key, data.group_key, data.genes) == ("cell_type", "donor", 12)
    assert (used.trainer.seed, used.trainer.max_steps, used.model.penalty) == (3, 4, 2)
    assert set(run.edges["source"]) <= {"R1", "R2"} and run.edges["target"].is_unique


def test_a_configuration_that_comes_with_grn_is_known_by_its_name():
    tiny = {"data.simulated.cells": 60, "model.members": 1, "trainer.max_steps": 2}
    run = grn.train("simulated.yaml", set=tiny)
    assert run.config.data.label_key == "cell_type" and len(run.config.data.regulators) == 12


def test_ctrl_c_in_training_leaves_nothing(adata, config, temporary, signalled, run):
    before = [*map(signal.getsignal, SIGNALS)]
    with pytest.raises(KeyboardInterrupt):
        signalled(signal.SIGINT, adata, config)
    assert not list(temporary.iterdir()) and [*map(signal.getsignal, SIGNALS)] == before
    assert_same(train(adata, config), run)


def test_other_signals_end_training_and_reach_their_own_handler(
    adata, config, temporary, signalled
):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with pytest.raises(Interrupted):
            signalled(signal.SIGTERM, adata, config)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM] and not list(temporary.iterdir())


def test_after_ctrl_c_a_run_with_output_goes_on_where_its_cells_are_written(
    adata, config, signalled, run, command
):
    with pytest.raises(KeyboardInterrupt):
        signalled(signal.SIGINT, adata, config, output="kept")
    with pytest.raises(RunFolderError, match="--resume kept"):
        grn.load("kept")
    code, _, error = command("train", "--resume", "kept")
    assert code == 2 and "memory" in error
    adata.write_h5ad("cells.h5ad")
    text = Path("kept/config.yaml").read_text()
    Path("kept/config.yaml").write_text(text.replace("path: 'memory:'", "path: cells.h5ad"))
    assert command("train", "--resume", "kept", "--quiet")[0] == 0
    assert_same(grn.load("kept"), run)


def test_training_works_beside_the_main_thread(adata, config, run):
    """Where signals cannot be handled."""
    found = []
    thread = threading.Thread(target=lambda: found.append(train(adata, config)))
    thread.start()
    thread.join()
    assert_same(found[0], run)


WRONG = {
    "no cells": ({"data": anndata.AnnData(np.ones((0, 4)))}, DataError),
    "a table": ({"data": pd.DataFrame({"A": [1, 2]})}, ConfigError),
    "log values": ({"data": anndata.AnnData(np.full((9, 4), 0.5))}, DataError),
    "a column that is missing": ({"label": "cell_types"}, DataError),
    "a field given twice": ({"seed": 1, "set": {"trainer.seed": 2}}, ConfigError),
    "several processes": ({"set": {"trainer.devices": 2}}, ConfigError),
    "two configurations": ({"data": "pbmc.yaml"}, ConfigError),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_leaves_nothing(case, adata, config, temporary):
    keywords, error = WRONG[case]
    with pytest.raises(error):
        train(**{"data": adata, "config": config} | keywords)
    assert not list(temporary.iterdir()) and not list(Path.cwd().iterdir())


def test_a_cell_that_comes_twice_is_refused(adata, config):
    adata.obs_names = ["a", "a", *adata.obs_names[2:]]
    with pytest.raises(DataError, match="a"):
        train(adata, config)
