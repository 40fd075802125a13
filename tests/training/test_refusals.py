"""Training that is impossible is refused in one sentence, where possible before there is a run
folder.
"""

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from anndata import AnnData

from grn.cells.simulated.cells import simulate
from grn.config.files import change_config
from grn.config.schema import Config
from grn.runtime.errors import ConfigError, DataError, RunFolderError
from grn.runtime.messages import silent
from grn.training import machine, run
from grn.training.run import train


@pytest.fixture
def refused_field(tmp_path, monkeypatch):
    """The field of the error of a run that is refused before its folder is made or cells read."""

    def refused(config: Config) -> str | None:
        monkeypatch.setattr(
            run, "load_cells", lambda *arguments, **options: pytest.fail("cells were read")
        )
        with pytest.raises(ConfigError) as caught:
            train(config, tmp_path / "run", say=silent)
        assert not (tmp_path / "run").exists()
        assert "\n" not in str(caught.value)
        return caught.value.field

    return refused


def test_what_lightning_refuses_is_one_sentence(refused_field, make_config):
    assert refused_field(make_config(strategy="bogus", devices=7)) == "trainer"
    if not torch.cuda.is_available():
        assert refused_field(make_config(accelerator="gpu")) == "trainer"


JOB = {"NTASKS": "4", "JOB_ID": "1", "JOB_NAME": "x", "NODELIST": "n1"}
JOB |= dict.fromkeys(("PROCID", "LOCALID", "NODEID"), "0")


def test_one_process_of_a_job_that_may_have_four_trains_alone(
    refused_field, make_config, monkeypatch
):
    """After `sbatch --ntasks=4`, a command that srun does not start is one process; Lightning
    raises a RuntimeError.
    """
    for name, value in JOB.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for devices in (1, 2):
        machine.refuse_impossible_training(make_config(devices=devices).trainer)
    trainer = L.Trainer(**machine.lightning_options(make_config().trainer), logger=False)
    assert trainer.world_size == 1 and type(trainer.strategy).__name__ == "SingleDeviceStrategy"
    # Four tasks of srun would each train the same.
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert refused_field(make_config()) == "trainer.devices"


def test_processes_that_nobody_starts_are_refused(refused_field, make_config, monkeypatch):
    """The first process would wait for the others for ever."""
    for name in machine.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    assert refused_field(make_config(num_nodes=2)) == "trainer.num_nodes"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert refused_field(make_config(devices=2)) == "trainer.devices"


def written(tmp_path, counts) -> str:
    adata = AnnData(counts.astype(np.float32))
    adata.obs_names, adata.var_names = "c" + adata.obs_names, "g" + adata.var_names
    adata.write_h5ad(tmp_path / "cells.h5ad")
    return str(tmp_path / "cells.h5ad")


COUNTS = np.random.default_rng(0).poisson(2.0, (60, 8))


@pytest.mark.parametrize(
    ("counts", "fields", "field"),
    [
        (np.full((60, 8), 3), {}, "data.regulators"),
        (COUNTS * (np.arange(8) > 2), {"regulators": ["g0", "g1"]}, "data.regulators"),
        (COUNTS, {"genes": 1}, "data.regulators"),
        (COUNTS[:0], {}, None),
        (COUNTS[:, :0], {}, None),
    ],
)
def test_cells_from_which_nothing_can_be_learned_are_refused_and_leave_nothing(
    counts, fields, field, make_config, tmp_path
):
    data = {"path": written(tmp_path, counts), "label_key": None, "regulators": "all"} | fields
    data = {f"data.{name}": value for name, value in data.items()}
    with pytest.raises(DataError) as caught:
        train(change_config(make_config(), data), tmp_path / "run", say=silent)
    assert field in (None, caught.value.field)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("existed", [False, True])
def test_a_run_that_fails_before_its_first_checkpoint_can_be_given_again(
    make_config, tmp_path, monkeypatch, existed
):
    def fail(*arguments, **options):
        raise RuntimeError("DefaultCPUAllocator: you tried to allocate 8 bytes.")

    if existed:
        (tmp_path / "run").mkdir()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(run, "prepare", fail)
        train(make_config(), tmp_path / "run", say=silent)
    assert (tmp_path / "run").exists() == existed and not list(tmp_path.glob("run/*"))
    assert train(make_config(max_steps=2), tmp_path / "run", say=silent) is not None


def of_one_type(config: Config, labelled: int = 80) -> AnnData:
    """Cells of one type; only the first ones have the label."""
    adata = simulate(config.data.simulated)
    adata.obs["cell_type"] = np.where(np.arange(80) < labelled, "T", None)
    return adata


@pytest.mark.parametrize("labelled", [80, 50])
def test_with_one_cell_type_the_network_is_trained_and_no_types_are_predicted(
    make_config, tmp_path, labelled
):
    config = make_config()
    found = train(config, tmp_path / "run", adata=of_one_type(config, labelled), say=silent)
    assert len(found.edges) == 4 * 15 and found.trained.classes == ()
    columns = pd.read_csv(tmp_path / "run" / "metrics.csv").columns
    assert {"test/r2", "test/error"} <= set(columns)
    assert not [name for name in columns if "cell_type" in name or "accuracy" in name]


def test_one_cell_type_without_another_objective_is_refused(make_config, tmp_path):
    config = change_config(make_config(), {"objectives.masked_multiplicity.weight": 0.0})
    with pytest.raises(ConfigError):
        train(config, tmp_path / "run", adata=of_one_type(config), say=silent)


def test_unreadable_data_leave_nothing_behind(make_config, tmp_path):
    """So that the corrected command can be given again with the same --output."""
    config = make_config()
    wrong = change_config(config, {"data.path": str(tmp_path / "nowhere.h5ad")})
    with pytest.raises(DataError, match="does not exist"):
        train(wrong, tmp_path / "run", say=silent)
    assert not (tmp_path / "run").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("kept")
    with pytest.raises(RunFolderError, match="used already exists and is not an empty folder"):
        train(wrong, tmp_path / "used", say=silent)
