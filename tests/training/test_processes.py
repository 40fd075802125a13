"""Two processes that share the cells of a batch train as one process that has them all.

Run as a script, this file is one of the processes: `torchrun ... test_processes.py FOLDER` trains
the configuration that lies in the folder.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from anndata import read_h5ad

from grn.cells.loading.module import CellsDataModule
from grn.config.files import change_config, load_config
from grn.config.schema import Config
from grn.networks.build import opened, read_again
from grn.runtime.devices import own_device
from grn.runtime.errors import ConfigError
from grn.runtime.messages import silent
from grn.runtime.processes import ALONE
from grn.training.run import checked_cells, evaluate, held_out_errors, scalars, states_of, train
from grn.training.task import Task

STEPS = 30
# float32 sums in another order, through 30 steps of AdamW: losses, which are near 1; parameters,
# which moved by 0.05.
LOSS, PARAMETER = 1e-3, 1e-3
# What each process draws for itself is left out: dropout, what the basal gene does not see, counts
# that cells lose.
SAME = {
    "model.dropout": 0,
    "objectives.masked_multiplicity.fraction": 1e-12,
    "data.values": "expression",
    "data.test_fraction": 0.3,
    "network.false_discovery": False,
}


def configured(make_config, **trainer) -> Config:
    return change_config(make_config(max_steps=STEPS, validate_every=5, **trainer), SAME)


def launched(*command) -> subprocess.Popen:
    """A command, or this file in two processes, with the imports and threads of the tests."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-m", *command], env=environment, **output)


TWO = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__)
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=TWO_GPUS)])
def runs(request, tmp_path_factory, make_config) -> Path:
    """Run folders `two` of two processes, and `alone` of one with the double batch."""
    folder, device = tmp_path_factory.mktemp("shared"), {"accelerator": request.param}
    config = configured(make_config, **device, batch_size=8, devices=2, strategy="ddp")
    (folder / "two.json").write_text(config.model_dump_json())
    with launched(*TWO, str(folder)) as two:
        try:
            alone = configured(make_config, **device, batch_size=16, devices=1)
            train(alone, folder / "alone", say=silent)
            output = two.communicate(timeout=250)[0]
        finally:
            two.terminate()
    assert two.returncode == 0, output
    return folder


def metrics_of(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv").groupby("step").first()


@pytest.mark.slow
def test_losses_and_metrics_are_those_of_one_process(runs):
    alone, two = metrics_of(runs / "alone"), metrics_of(runs / "two")
    assert len(alone) >= STEPS / 5
    assert np.ptp(alone["train/loss"].dropna()) > 0.05, "the run went somewhere"
    expected = {"validation/loss", "test/error", "test/accuracy", "train/cell_type_loss"}
    assert expected <= set(alone.columns)
    pd.testing.assert_frame_equal(alone, two, rtol=LOSS, atol=LOSS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["last", "best"])
def test_parameters_and_their_average_are_those_of_one_process(runs, name):
    alone, two = (
        torch.load(runs / run / f"checkpoints/{name}.ckpt", map_location="cpu")["state_dict"]
        for run in ("alone", "two")
    )
    torch.testing.assert_close(two, alone, rtol=0, atol=PARAMETER)


@pytest.mark.slow
def test_a_run_of_one_process_goes_on_with_two(runs, tmp_path, monkeypatch):
    def stopping(task, hook=Task.on_validation_epoch_end):
        if task.global_step >= 12:
            raise KeyError("stop")
        return hook(task)

    config, folder = load_config(runs / "alone" / "config.yaml"), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(KeyError, match="stop"):
        patch.setattr(Task, "on_validation_epoch_end", stopping)
        train(config, folder, say=silent)
    resume = ("grn", "train", "--resume", str(folder), "--set", "trainer.devices=2")
    with launched(*resume) as process:
        output = process.communicate(timeout=250)[0]
    assert process.returncode == 0 and "Resuming" in output, output
    alone, both = metrics_of(runs / "alone"), metrics_of(folder)
    pd.testing.assert_frame_equal(alone, both[alone.columns], rtol=LOSS, atol=LOSS)


@pytest.mark.slow
def test_one_process_writes_the_whole_run(runs):
    files = [{path.name for path in (runs / name).iterdir()} for name in ("two", "alone")]
    assert files[0] == files[1]
    tables = (pd.read_parquet(runs / name / "edges.parquet") for name in ("alone", "two"))
    alone, two = (each.set_index(["source", "target"])["weight"] for each in tables)
    assert np.corrcoef(alone, two.loc[alone.index])[0, 1] > 0.999


@pytest.mark.slow
def test_two_processes_read_and_score_the_same_model_as_one_does(runs):
    both, alone = read_h5ad(runs / "two" / "network.h5ad").varp, read_again(runs / "two").varp
    assert len(both) > 4
    for name, table in both.items():
        kept = table.toarray() != 0
        np.testing.assert_array_equal(table.toarray()[kept], alone[name].toarray()[kept], name)
    config, trained = opened(runs / "two")
    cells, split = checked_cells(config)
    model = trained.model.to(own_device(config.trainer)).eval()
    states = states_of(cells, config.trainer.seed)
    size = {"batch_size": config.trainer.batch_size, "seed": 0}
    data = CellsDataModule(cells, split, states=states.membership, **size)
    metrics = evaluate(model, data, ALONE) | held_out_errors(model, states, cells, split)
    expected = scalars({name: torch.as_tensor(value) for name, value in metrics.items()}, "test")
    row = pd.read_csv(runs / "two" / "metrics.csv", float_precision="round_trip").iloc[-1]
    assert len(data.test_dataloader()) > 1 and row.filter(like="test/").to_dict() == expected


@pytest.mark.slow
def test_processes_leave_each_other_before_python_ends(runs):
    """Two processes of torch alone that do not are aborted in a third of the runs."""
    assert [(runs / f"left{rank}").read_text() for rank in (0, 1)] == ["True"] * 2


def test_automatic_devices_are_counted_before_there_is_a_run_folder(
    make_config, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"torchrun started 2 processes, but .* is 1"):
        train(make_config(devices="auto"), tmp_path / "run", say=silent)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "saved"), [(2, 3), (6, 6)])
def test_all_processes_save_a_step_when_one_is_told_to_stop(
    make_config, tmp_path, monkeypatch, sent, saved
):
    config = make_config(max_steps=6, validate_every=4, devices=2, accelerator="cpu")
    (tmp_path / "two.json").write_text(change_config(config, SAME).model_dump_json())
    monkeypatch.setenv("SENT", str(sent))
    with launched(*TWO, str(tmp_path)) as two:
        output = two.communicate(timeout=250)[0]
    last = torch.load(tmp_path / "two" / "checkpoints" / "last.ckpt", weights_only=True)
    assert two.returncode and last["global_step"] == saved, output


def told_to_stop(losses):
    def losses_and_signal(task, *given):
        if task.global_step == int(os.environ["SENT"]) - 1 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGUSR1)
        return losses(task, *given)

    return losses_and_signal


def main(folder: Path) -> None:
    if "SENT" in os.environ:
        Task.losses = told_to_stop(Task.losses)
    left = folder / f"left{os.environ['RANK']}"
    # the last one
    atexit.register(lambda: left.write_text(str(not torch.distributed.is_initialized())))
    train(Config.model_validate_json((folder / "two.json").read_text()), folder / "two", say=silent)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
