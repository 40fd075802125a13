"""A resumed run ends as it would have without the interruption,
or says why it cannot be resumed.
"""

import csv
import json
import shutil
import signal

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import torch

import grn.training.run
from grn.cli.main import main
from grn.config.files import change_config, dump_config, load_config
from grn.config.schema import Config
from grn.runtime.errors import ConfigError, DataError, Interrupted, RunFolderError, UserError
from grn.runtime.messages import silent
from grn.runtime.run_folder import locked
from grn.training.metrics import MetricsFile, rows_before
from grn.training.resume import find_start
from grn.training.run import train
from grn.training.task import Task


class Cut(BaseException):
    """A run ends here, as after a loss of power."""


def cut(monkeypatch, owner, name: str, at_call: int, how) -> None:
    """Call number `at_call` of a function calls `how` first; the other calls are unchanged."""
    calls, original = [], getattr(owner, name)

    def cutting(*arguments, **options):
        calls.append(name)
        if len(calls) == at_call:
            how()
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, cutting)


def power_fails() -> None:
    raise Cut


def asked_to_stop() -> None:
    signal.raise_signal(signal.SIGUSR1)


def resumed(folder):
    return train(load_config(folder / "config.yaml"), resume=folder, say=silent)


def checkpoint(folder, name: str) -> dict:
    return torch.load(
        folder / "checkpoints" / f"{name}.ckpt", map_location="cpu", weights_only=True
    )


def assert_same_run(folder, whole) -> None:
    for name in ("last", "best"):
        ours, theirs = checkpoint(folder, name), checkpoint(whole, name)
        if ours["global_step"] == STEPS != theirs["global_step"]:
            continue  # stopped, and saved, after the last step, which no validation follows
        for part in ("state_dict", "current_model_state"):
            torch.testing.assert_close(ours[part], theirs[part], rtol=0, atol=0)
    assert (folder / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    pd.testing.assert_frame_equal(
        *(pd.read_parquet(run / "edges.parquet") for run in (folder, whole))
    )
    cards = [json.loads((run / "model" / "card.json").read_text()) for run in (folder, whole)]
    assert cards[0] == cards[1]
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}


STEPS = 16  # more than one epoch of 7 steps, five validations and a last step without one


def configured(make_config, **trainer) -> Config:
    found = make_config(max_steps=STEPS, validate_every=3, **trainer)
    assert found.model.dropout > 0
    return found


@pytest.fixture(scope="module")
def whole(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(configured(make_config), folder, say=silent)
    return folder


STEP, VALIDATED = (Task, "training_step"), (Task, "on_validation_epoch_end")
# Before the first checkpoint, both ways around an epoch's end, before which members are judged,
# and in the last step; several times.
CUTS = [[(grn.training.run, name, 1, power_fails)] for name in ("describe", "fit_model")]
CUTS += [[(*STEP, step, how)] for step in (8, STEPS) for how in (asked_to_stop, power_fails)]
CUTS += [[(*STEP, 1, asked_to_stop)]]
CUTS += [[(*VALIDATED, 1, asked_to_stop)], [(*VALIDATED, 5, power_fails)]]
CUTS += [[(*STEP, 5, asked_to_stop), (*STEP, 3, power_fails), (*STEP, 4, asked_to_stop)]]


@pytest.mark.parametrize("cuts", CUTS)
def test_a_run_interrupted_anywhere_ends_as_the_whole_one(
    whole, make_config, tmp_path, monkeypatch, cuts
):
    folder = tmp_path / "run"
    for each in cuts:
        with monkeypatch.context() as patch, pytest.raises((Cut, Interrupted)):
            cut(patch, *each)
            if folder.exists():
                resumed(folder)
            else:
                train(configured(make_config), folder, say=silent)
    resumed(folder)
    assert_same_run(folder, whole)


@pytest.mark.parametrize("cut_off", ["evaluate", "write_network_files"])
def test_a_run_interrupted_after_its_training_is_not_trained_further(
    make_config, tmp_path, monkeypatch, cut_off
):
    # With hardly an average, large steps soon make the loss rise: its patience ends long before its
    # steps do.
    config = configured(make_config, patience=1, learning_rate=0.1, averaging=0.1)
    train(config, tmp_path / "whole", say=silent)
    with monkeypatch.context() as patch, pytest.raises(Cut):
        cut(patch, grn.training.run, cut_off, 1, power_fails)
        train(config, tmp_path / "run", say=silent)
    assert find_start(tmp_path / "run").step < STEPS
    monkeypatch.setattr(Task, "training_step", lambda *_: power_fails())
    resumed(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def state(folder) -> list:
    """A file or every file below a folder, and when it was written."""
    return sorted((path, path.stat().st_mtime_ns) for path in (folder, *folder.rglob("*")))


@pytest.fixture
def cells_file(make_config, tmp_path, csr_cells):
    """A configuration of cells in a file, and the file."""
    (matrix, labels), path = csr_cells, tmp_path / "cells.h5ad"
    adata = ad.AnnData(matrix.astype(np.float32))
    adata.obs_names, adata.var_names = "cell" + adata.obs_names, "g" + adata.var_names
    adata.obs["type"] = pd.Categorical(labels.astype(str))
    adata.write_h5ad(path)
    data = {"path": str(path), "values": "expression", "label_key": "type", "regulators": "all"}
    fields = {f"data.{name}": value for name, value in data.items()}
    return change_config(configured(make_config), fields), path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return tmp_path_factory.mktemp("stopped") / "run"


@pytest.fixture
def cut_off(cells_file, stopped, tmp_path, monkeypatch):
    """The folder of a run that was stopped after its fifth step: a copy, with cells of its own."""
    if not stopped.exists():
        with monkeypatch.context() as patch:
            cut(patch, *STEP, 5, asked_to_stop)
            with pytest.raises(Interrupted, match="saved step 5 in "):
                train(cells_file[0], stopped, say=silent)
    shutil.copytree(stopped, tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text(dump_config(cells_file[0]))
    assert find_start(tmp_path / "run").step == 5
    return tmp_path / "run"


def test_other_cells_are_refused_and_the_same_cells_in_another_file_are_not(cut_off, cells_file):
    config, path = cells_file
    moved = path.rename(path.with_name("moved.h5ad"))
    with pytest.raises(DataError, match="put the file back"):
        resumed(cut_off)
    elsewhere = change_config(config, {"data.path": str(moved)})
    (cut_off / "config.yaml").write_text(dump_config(elsewhere))
    same, unlabelled, other = (ad.read_h5ad(moved) for _ in range(3))
    other.X.data[0] += 1
    unlabelled.obs = unlabelled.obs[[]]
    before = state(cut_off)
    for adata, sentence in ((other, "are not those that the run in"), (unlabelled, "type")):
        adata.write_h5ad(moved)
        with pytest.raises(UserError, match=sentence):
            resumed(cut_off)
    assert state(cut_off) == before
    same.write_h5ad(moved)
    assert resumed(cut_off).folder == cut_off


@pytest.mark.parametrize(
    ("field", "value"), [("trainer.learning_rate", 0.5), ("trainer.devices", 7)]
)
def test_another_configuration_is_refused(cut_off, field, value):
    other = change_config(load_config(cut_off / "config.yaml"), {field: value})
    (cut_off / "config.yaml").write_text(dump_config(other))
    before = state(cut_off)
    with pytest.raises(ConfigError) as caught:
        resumed(cut_off)
    assert caught.value.field == field
    assert state(cut_off) == before


def test_the_machine_that_computes_a_run_may_change(cut_off):
    machine = {"trainer.workers": 1, "trainer.accelerator": "auto"}
    other = change_config(load_config(cut_off / "config.yaml"), machine)
    (cut_off / "config.yaml").write_text(dump_config(other))
    assert resumed(cut_off).folder == cut_off


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("checkpoints/last.ckpt", b"PK\x03\x04 and then nothing"),
        ("checkpoints/best.ckpt", b"PK\x03\x04 and then nothing"),
        ("checkpoints/best.ckpt", None),
        ("metrics.csv", b"step,train/loss\n,1\n"),
    ],
)
def test_a_missing_or_damaged_file_is_refused_before_training(cut_off, name, damage):
    path = cut_off / name
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(RunFolderError, match=rf"{path.name} is .*damaged"):
        resumed(cut_off)
    assert damage is None or path.read_bytes() == damage


def test_a_run_goes_on_from_the_checkpoint_that_it_has(cut_off):
    """A damaged last one may be replaced by the best; without one, it begins again."""
    last, best = (cut_off / "checkpoints" / f"{name}.ckpt" for name in ("last", "best"))
    last.unlink()
    assert find_start(cut_off).step == 0
    last.write_bytes(best.read_bytes())
    assert find_start(cut_off).step == 3
    assert resumed(cut_off).folder == cut_off


def test_a_locked_run_is_left_alone(cut_off):
    before = state(cut_off)
    with (
        locked(cut_off),
        pytest.raises(RunFolderError, match="Another process is working on the run"),
    ):
        resumed(cut_off)
    assert state(cut_off) == before
    assert resumed(cut_off).folder == cut_off


def test_a_resumed_run_keeps_comments_and_removes_half_written_files(cut_off):
    config = cut_off / "config.yaml"
    config.write_text("# mine\n" + config.read_text())
    (cut_off / "checkpoints" / ".last-abcd_123.ckpt").write_bytes(b"half")
    (cut_off / ".model-12345678-old").mkdir()
    (cut_off / ".mine").write_text("not grn's")
    resumed(cut_off)
    assert config.read_text().startswith("# mine\n")
    assert [path.name for path in cut_off.rglob(".*")] == [".mine"]


def test_metrics_csv_is_complete_at_every_moment(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    log = MetricsFile(path, [])
    log.log_metrics({"train/loss": torch.tensor(0.5), "epoch": 0}, step=1)
    with monkeypatch.context() as patch:
        patch.setattr(csv.DictWriter, "writerows", lambda *_: power_fails())
        with pytest.raises(Cut):
            log.log_metrics({"validation/loss": 0.25, "epoch": 0}, step=1)
    assert path.read_text() == "epoch,step,train/loss\n0,1,0.5\n"
    log.log_metrics({"test/loss": 0.125}, step=2)
    assert path.read_text().splitlines()[0] == "epoch,step,test/loss,train/loss,validation/loss"
    assert rows_before(2, path) == [
        {"epoch": "0", "step": "1", "train/loss": "0.5"},
        {"epoch": "0", "step": "1", "validation/loss": "0.25"},
    ]
    assert rows_before(1, path) == rows_before(3, tmp_path / "none.csv") == []


def test_the_command_resumes_a_run_once_and_explains_what_it_refuses(
    cut_off, stopped, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = state(cut_off)
    for other in (["--set", "trainer.max_steps=9"], ["--label", "cell_type"]):
        assert main(["train", "--resume", "run", *other]) == 2
    assert state(cut_off) == before
    assert main(["train", "--resume", "run", "--set", "trainer.devices=1"]) == 0
    assert "after step 5" in capsys.readouterr().out
    assert f"grn train --resume {stopped}" in (cut_off / "log.txt").read_text()
    before = state(cut_off)
    assert main(["train", "--resume", "run"]) == 0
    assert state(cut_off) == before, "there is nothing to resume"
