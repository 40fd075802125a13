"""Two processes that share the genes of every cell train as one process that has them all.

Run as a script, this file is one of the processes: `torchrun ... test_processes.py FOLDER` trains every
configuration that lies in the folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from grn.config.schema import Config
from grn.errors import ConfigError
from grn.messages import silent

SMALL = ["data.simulated.cells=200", "data.simulated.genes=16", "data.simulated.regulators=4", "model.width=16"]
# Dropout is drawn by each process for itself; everything else (order, masks, initial values) is the same by design.
RUN = ["model.dropout=0", "trainer.max_steps=30", "trainer.validate_every=5", "network.cells=8"]
RUN += ["regulation.members=2", "regulation.steps=10", "cell_reader.steps=10", "network.false_discovery=false"]
CPU = "trainer.accelerator=cpu"


def losses(folder: Path, *overrides: str) -> pd.DataFrame:
    """Rows of metrics.csv by step, without what only the clock could change."""
    arguments = [part for field in (*SMALL, *RUN, CPU, *overrides) for part in ("--set", field)]
    command = [sys.executable, "-m", "grn", "train", "--config", "simulated.yaml", "--output", folder, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder.parent, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return pd.read_csv(folder / "metrics.csv").groupby("step").first().filter(regex="^(train|validation)/")


@pytest.mark.slow
def test_two_processes_train_to_the_losses_of_one_with_the_double_batch(tmp_path):
    one = losses(tmp_path / "one", "trainer.batch_size=32")
    two = losses(tmp_path / "two", "trainer.batch_size=16", "trainer.devices=2", "trainer.strategy=ddp")
    assert list(one.columns) == list(two.columns) and len(one) == len(two) >= 6
    assert one["train/loss"].max() - one["train/loss"].min() > 0.05  # the run went somewhere
    # float32 sums in another order, through 30 steps of AdamW.
    pd.testing.assert_frame_equal(one, two, rtol=1e-3, atol=1e-3)


BAGS = ("dense", "packed")
STEPS = 30
# float32 sums in another order, through 30 steps of AdamW: losses, which are near 1; parameters, which moved by 0.05.
LOSS, PARAMETER = 1e-4, 5e-4


def configured(make_config, bags: str, **trainer) -> Config:
    """A run without dropout, which processes draw for themselves, and without cell readers, which need all genes of a
    cell; everything else is the same by design."""
    found = make_config(max_steps=STEPS, validate_every=5, batch_size=16, **trainer).model_dump()
    found["model"]["dropout"] = 0.0
    found["cell_reader"]["members"] = 0
    found["data"]["bags"] = bags
    return Config.model_validate(found)


def logged(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv").groupby("step").first()


def parameters(folder: Path, name: str) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoints" / f"{name}.ckpt", map_location="cpu", weights_only=True)["state_dict"]
    return {name: tensor for name, tensor in state.items() if name.startswith("model.")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_config) -> Path:
    """Run folders `<bags>` of two processes, and `<bags>-alone` of one."""
    from grn.training.run import train

    folder = tmp_path_factory.mktemp("shared")
    for bags in BAGS:
        config = configured(make_config, bags, devices=2, gene_parallel=2)
        (folder / f"{bags}.json").write_text(config.model_dump_json())
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, __file__, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as two:
        try:
            for bags in BAGS:
                train(configured(make_config, bags), folder / f"{bags}-alone", say=silent)
            output = two.communicate(timeout=200)[0]
        finally:
            two.terminate()
    assert two.returncode == 0, output
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("bags", BAGS)
def test_losses_and_metrics_are_those_of_one_process(runs, bags):
    alone, shared = logged(runs / f"{bags}-alone"), logged(runs / bags)
    assert list(alone.columns) == list(shared.columns) and len(alone) == len(shared) >= STEPS / 5
    assert alone["train/loss"].max() - alone["train/loss"].min() > 0.05  # the run went somewhere
    assert {"validation/auroc", "validation/r2", "test/r2", "test/regulation_error"} <= set(alone.columns)
    pd.testing.assert_frame_equal(alone, shared, rtol=LOSS, atol=LOSS)


@pytest.mark.slow
@pytest.mark.parametrize("bags", BAGS)
@pytest.mark.parametrize("name", ["last", "best"])
def test_parameters_and_their_average_are_those_of_one_process(runs, bags, name):
    alone, shared = parameters(runs / f"{bags}-alone", name), parameters(runs / bags, name)
    assert alone.keys() == shared.keys()
    for parameter, tensor in alone.items():
        torch.testing.assert_close(shared[parameter], tensor, rtol=0, atol=PARAMETER, msg=parameter)


@pytest.mark.slow
@pytest.mark.parametrize("bags", BAGS)
def test_one_process_writes_the_whole_run(runs, bags):
    assert {path.name for path in (runs / bags).iterdir()} == {path.name for path in (runs / f"{bags}-alone").iterdir()}
    alone, shared = (pd.read_parquet(runs / name / "edges.parquet") for name in (f"{bags}-alone", bags))
    pd.testing.assert_frame_equal(alone, shared, check_exact=False, rtol=1e-3)


def test_automatic_devices_are_counted_before_there_is_a_run_folder(make_config, tmp_path):
    from grn.training.run import train

    config = make_config(devices="auto", gene_parallel=2)
    with pytest.raises(ConfigError, match=r"trainer\.gene_parallel 2 does not divide the number of processes.*, 1;"):
        train(config, tmp_path / "run", say=silent)
    assert not (tmp_path / "run").exists()


def main(folder: Path) -> None:
    from grn.training.run import train

    for bags in BAGS:
        train(Config.model_validate_json((folder / f"{bags}.json").read_text()), folder / bags, say=silent)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
