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
from grn.cells.simulated.cells import simulate
from grn.cli.main import main
from grn.runtime.errors import ConfigError, DataError, Interrupted, RunFolderError
from grn.training.progress import ProgressLines

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture
def config(make_config):
    return make_config()


@pytest.fixture
def adata(config):
    return simulate(config.data.simulated)


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


def train(data, config, **keywords):
    return grn.train(data, config=config, **{"quiet": True, **keywords})


def same(ours: grn.Run, theirs: grn.Run | Path) -> bool:
    """Whether two runs have the same edges and scores to the last bit."""
    theirs = theirs if isinstance(theirs, grn.Run) else grn.load(theirs)
    pd.testing.assert_frame_equal(ours.edges, theirs.edges, check_exact=True)
    return ours.metrics == theirs.metrics


def test_cells_in_memory_train_as_those_of_a_file_and_of_the_command_line(adata, config, tiny_run):
    adata.write_h5ad("cells.h5ad")
    assert same(train(adata, config), tiny_run)
    assert same(train("cells.h5ad", config), tiny_run)
    assert same(grn.train(config, quiet=True), tiny_run)


@pytest.mark.parametrize("form", ["dense", "view", "layer", "raw"])
def test_the_form_of_the_matrix_does_not_matter(form, adata, config, tiny_run):
    keywords = {}
    if form == "dense":
        adata.X = adata.X.toarray()
    elif form == "view":
        more = anndata.concat([adata, adata[:7]])
        more.obs_names_make_unique()
        more.uns["truth"] = adata.uns["truth"]
        adata = more[: len(adata)]
    elif form == "layer":
        adata.layers["umi"] = adata.X.copy()
        adata.X = adata.X.log1p()
        keywords["counts"] = "layer:umi"
    else:
        adata.raw = adata.copy()
        adata.X = adata.X.log1p()
        keywords["counts"] = "raw"
    assert same(train(adata, config, **keywords), tiny_run)


def test_the_cells_are_not_changed_and_nothing_is_left_in_the_working_folder(adata, config):
    adata.raw = adata.copy()
    adata.layers["other"] = adata.X.copy()
    before = adata.copy()
    train(adata, config)
    assert (adata.X != before.X).nnz == 0 and (adata.raw.X != before.raw.X).nnz == 0
    for name in ("obs", "var"):
        pd.testing.assert_frame_equal(getattr(adata, name), getattr(before, name))
    for name in ("layers", "uns", "obsm", "varm"):
        assert set(getattr(adata, name)) == set(getattr(before, name))
    assert not list(Path.cwd().iterdir())


def test_a_temporary_run_lives_as_long_as_its_object(adata, config, temporary):
    run = train(adata, config)
    folder = run.folder
    assert folder.is_dir() and folder.is_relative_to(temporary)
    assert run.config.data.path == "memory:"
    del run
    gc.collect()
    assert not list(temporary.iterdir())


def test_output_is_an_ordinary_run_folder(adata, config, temporary, tiny_run, capsys):
    run = train(adata, config, output="kept", quiet=False)
    printed = capsys.readouterr().out
    assert " in kept" in printed
    assert run.folder == Path("kept").absolute()
    names = {path.name for path in tiny_run.iterdir()} - {"checkpoints"} | {
        "report.html",
        "certain.csv",
    }
    assert {path.name for path in run.folder.iterdir()} == names
    folder = run.folder
    del run
    gc.collect()
    assert same(grn.load(folder), tiny_run)
    assert not list(temporary.iterdir())
    with pytest.raises(RunFolderError):
        train(adata, config, output="kept")


def test_progress_is_plain_lines_that_name_no_temporary_folder(adata, config, temporary, capfd):
    train(adata, config, quiet=False)
    printed, wrong = capfd.readouterr()
    assert "step 6/6" in printed and not wrong
    assert not [part for part in ("\r", "\x1b", str(temporary)) if part in printed]
    train(adata, config)
    assert capfd.readouterr() == ("", "")


def test_keywords_are_their_fields(adata, config):
    adata.obs["donor"] = [*"abcdefgh"] * 10
    keywords = {"group_key": "donor", "genes": 12, "values": "counts", "counts": "X"}
    run = train(
        adata,
        None,
        **keywords,
        label="cell_type",
        regulators=pd.Index(["R1", "R2"]),
        max_steps=np.int64(4),
        seed=3,
        set={"model.members": 1, "model.penalty": np.float32(2), "network.top_k": 1},
    )
    used = run.config
    assert {name: getattr(used.data, name) for name in keywords} == keywords
    assert used.data.regulators == ["R1", "R2"] and used.data.label_key == "cell_type"
    assert (used.trainer.max_steps, used.trainer.seed, used.network.top_k, used.model.penalty) == (
        4,
        3,
        1,
        2,
    )
    assert set(run.edges["source"]) <= {"R1", "R2"} and run.edges["target"].is_unique


def test_a_configuration_is_known_by_its_name():
    """Of those that come with grn."""
    tiny = {"data.simulated.cells": 60, "model.members": 1, "trainer.max_steps": 2}
    run = grn.train("simulated.yaml", set=tiny, quiet=True)
    assert run.config.data.label_key == "cell_type" and len(run.config.data.regulators) == 12


def lightnings() -> dict[str, str]:
    """What Lightning keeps in the environment: its seed."""
    return {name: value for name, value in os.environ.items() if name.startswith("PL_")}


def test_random_states_signals_and_threads_are_as_before(adata, config):
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    handlers = [signal.getsignal(number) for number in SIGNALS]
    environment, threads = lightnings(), torch.get_num_threads()
    train(adata, config)
    assert (random.random(), np.random.random(), torch.rand(1).item()) == expected
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    assert torch.get_num_threads() == threads
    assert lightnings() == environment


@pytest.mark.parametrize("when", ["reading", "training"])
def test_ctrl_c_raises_keyboard_interrupt_and_leaves_nothing(
    when, adata, config, temporary, monkeypatch, tiny_run
):
    before = [signal.getsignal(number) for number in SIGNALS]
    with monkeypatch.context() as patched:
        if when == "reading":

            def stop(*_):
                os.kill(os.getpid(), signal.SIGINT)

            patched.setattr(anndata.AnnData, "X", property(stop))
        else:
            patched.setattr(
                ProgressLines, "on_validation_end", lambda *_: os.kill(os.getpid(), signal.SIGINT)
            )
        with pytest.raises(KeyboardInterrupt):
            train(adata, config)
    assert not list(temporary.iterdir())
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert same(train(adata, config), tiny_run)


def test_other_signals_end_training_and_reach_their_own_handler(
    adata, config, temporary, monkeypatch
):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        monkeypatch.setattr(
            ProgressLines, "on_validation_end", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
        )
        with pytest.raises(Interrupted):
            train(adata, config)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM] and not list(temporary.iterdir())


def test_after_ctrl_c_a_run_with_output_goes_on_where_its_cells_are_written(
    adata, config, monkeypatch, tiny_run, capsys
):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(
            ProgressLines, "on_validation_end", lambda *_: os.kill(os.getpid(), signal.SIGINT)
        )
        train(adata, config, output="kept")
    with pytest.raises(RunFolderError, match="--resume kept"):
        grn.load("kept")
    assert main(["train", "--resume", "kept"]) == 2
    assert "memory" in capsys.readouterr().err
    adata.write_h5ad("cells.h5ad")
    text = Path("kept/config.yaml").read_text()
    assert "path: 'memory:'" in text
    Path("kept/config.yaml").write_text(text.replace("path: 'memory:'", "path: cells.h5ad"))
    assert main(["train", "--resume", "kept", "--quiet"]) == 0
    assert same(grn.load("kept"), tiny_run)


def test_training_works_beside_the_main_thread(adata, config, tiny_run):
    """Where signals cannot be handled."""
    found = []
    thread = threading.Thread(target=lambda: found.append(train(adata, config)))
    thread.start()
    thread.join()
    assert same(found[0], tiny_run)


WRONG = {
    "a table": ({"data": pd.DataFrame({"A": [1, 2]})}, ConfigError),
    "no cells": ({"data": anndata.AnnData(np.ones((0, 4)))}, DataError),
    "log values": ({"data": anndata.AnnData(np.full((9, 4), 0.5))}, DataError),
    "a column that is missing": ({"label": "cell_types"}, DataError),
    "a regulator of another kind": ({"regulators": ["SPI1"]}, DataError),
    "no such field": ({"set": {"trainer.max_step": 5}}, ConfigError),
    "a field given twice": ({"seed": 1, "set": {"trainer.seed": 2}}, ConfigError),
    "several processes": ({"set": {"trainer.devices": 2}}, ConfigError),
    "no such file": ({"data": "cells.h5ad"}, DataError),
    "no such configuration": ({"data": "pbm.yaml", "config": None}, ConfigError),
    "two configurations": ({"data": "pbmc.yaml"}, ConfigError),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_leaves_nothing(case, adata, config, temporary):
    keywords, error = WRONG[case]
    with pytest.raises(error):
        grn.train(**{"data": adata, "config": config, "quiet": True, **keywords})
    assert not list(temporary.iterdir()) and not list(Path.cwd().iterdir())


def test_a_cell_that_comes_twice_is_refused(adata, config):
    adata.obs_names = ["a", "a", *adata.obs_names[2:]]
    with pytest.raises(DataError, match="a"):
        train(adata, config)


def test_a_backed_anndata_is_read_and_stays_open(adata, config, tiny_run):
    adata.write_h5ad("cells.h5ad")
    backed = anndata.read_h5ad("cells.h5ad", backed="r")
    assert same(train(backed, config), tiny_run)
    assert backed.isbacked and backed.file.is_open and backed.X[:1].sum() >= 0
    backed.file.close()
