"""How Lightning uses this machine, what of its messages is shown, and errors for what it cannot do
here.
"""

from __future__ import annotations

import atexit
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import distributed

from grn.config.schema import TrainerConfig
from grn.runtime.devices import uses_gpu
from grn.runtime.errors import ConfigError, one_line
from grn.runtime.processes import ALONE, Processes
from grn.training.together import MeanGradients, leave

# Variables of torchrun, srun, mpirun, LSF and manual starts about the other machines.
LAUNCHERS = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_SIZE",
    "LSB_JOBID",
    "MASTER_ADDR",
    "NODE_RANK",
)

# Messages of Lightning that our users can ignore, and why.
NOISE = (
    r".*does not have many workers",  # batches are slices of a matrix in memory
    # the run folder is ours and was made for this run
    r"Experiment logs directory .* exists and is not empty",
    # we log by steps, not by epochs
    r"The number of training batches .* is smaller than the logging interval",
    r".*LeafSpec.* is deprecated",  # Lightning's own call into torch
    r"GPU available but not used",  # trainer.accelerator: cpu asked for that
    # torchmetrics has already summed over the processes
    r"It is recommended to use .*sync_dist=True",
)

LEAST_CELLS, MOST_CELLS = 128, 1024  # of a step, where none are asked for
ON_PROCESSOR = 256  # the most there, where steps with more take longer
# of processes for the first one, which computes q-values before training
LONGEST_WAIT = timedelta(days=7)
STEPS_OF_ALL = 16  # steps in which all processes together have seen every cell


def processes(settings: TrainerConfig) -> int:
    """Return how many processes train together; devices "auto" means one per GPU, as in
    Lightning.
    """
    automatic = torch.cuda.device_count() if uses_gpu(settings) else 1
    return settings.num_nodes * (
        settings.devices if isinstance(settings.devices, int) else automatic
    )


def cells_of_step(settings: TrainerConfig, training: int) -> int:
    """Cells per step and process, of so many training cells.

    Steps with more cells are less noisy (docs/log.md). On a GPU they take hardly longer.
    """
    if settings.batch_size != "auto":
        return settings.batch_size
    most = (
        MOST_CELLS if uses_gpu(settings) else max(ON_PROCESSOR // processes(settings), LEAST_CELLS)
    )
    return min(max(training // (STEPS_OF_ALL * processes(settings)), LEAST_CELLS), most)


def lightning_options(settings: TrainerConfig) -> dict[str, Any]:
    """Return the arguments of Lightning's Trainer that say where and how it computes."""
    ours = settings.strategy in ("auto", "ddp")
    return {
        "accelerator": settings.accelerator,
        "devices": settings.devices,
        "num_nodes": settings.num_nodes,
        "strategy": settings.strategy
        if not ours
        else MeanGradients()
        if processes(settings) > 1
        else "auto",
        "precision": "32-true" if settings.precision == "auto" else settings.precision,
        "plugins": [LightningEnvironment()] if _in_job_without_srun(settings) else [],
    }


def _in_job_without_srun(settings: TrainerConfig) -> bool:
    """Return whether this process runs in a SLURM job that srun did not start it in.

    Under `sbatch -n 4`, as many tasks *may* be started, but a plain command is one. Lightning would
    take it for one of four, and refuse or wait for the others.
    """
    elsewhere = {"SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"} & set(os.environ)
    return "SLURM_NTASKS" in os.environ and not elsewhere and settings.num_nodes == 1


def refuse_impossible_training(settings: TrainerConfig) -> None:
    """Raise ConfigError for what this machine or Lightning cannot do."""
    started = int(os.environ.get("WORLD_SIZE") or 1)
    if "TORCHELASTIC_RUN_ID" in os.environ and started != processes(settings):
        raise ConfigError(
            f"torchrun started {started} processes, but {{field}} x trainer.num_nodes is "
            f"{processes(settings)}",
            field="trainer.devices",
            advice="make the two equal (torchrun --nproc-per-node, --nnodes)",
        )
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
    if (
        "SLURM_STEP_ID" in os.environ
        and "TORCHELASTIC_RUN_ID" not in os.environ
        and tasks != processes(settings)
    ):
        raise ConfigError(
            f"srun started {tasks} tasks, but {{field}} x trainer.num_nodes is "
            f"{processes(settings)}",
            field="trainer.devices",
            advice="make the two equal (srun --ntasks, --ntasks-per-node)",
        )
    if settings.num_nodes > 1 and not any(name in os.environ for name in LAUNCHERS):
        raise ConfigError(
            f"{{field}} is {settings.num_nodes}, but no launcher started this process, so it "
            "would wait for the other machines for ever",
            field="trainer.num_nodes",
            advice="start it with torchrun or srun on each, or set {field} to 1",
        )
    try:
        with quiet(), warnings.catch_warnings(action="ignore"):  # the Trainer that trains will warn
            L.Trainer(**lightning_options(settings), logger=False, enable_checkpointing=False)
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        raise ConfigError(
            f"Lightning refuses the trainer section on this machine ({one_line(error)})",
            field="trainer",
            advice="set trainer.accelerator, strategy, precision and devices to auto; "
            "under SLURM, start as many tasks as trainer.devices x trainer.num_nodes",
        ) from error


def started_together(settings: TrainerConfig) -> Processes:
    """Return the processes that train together, which know each other from here on: those that
    torchrun, srun or mpirun has started, else those that Lightning starts, which it does here.
    """
    if processes(settings) == 1:
        return ALONE
    with quiet(), warnings.catch_warnings(action="ignore"):
        trainer = L.Trainer(**lightning_options(settings), logger=False, enable_checkpointing=False)
        strategy = trainer.strategy
        if not isinstance(strategy, MeanGradients) or strategy.launcher is None:
            return ALONE  # what other strategies start, they start where training begins
        # what training begins with, which finds it done
        strategy.launcher.launch(strategy.setup_environment)
    atexit.register(leave)
    hosts = distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)
    return Processes(strategy.global_rank, strategy.world_size, hosts)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences NOISE, and what Lightning logs below warnings (tips, the hardware it found, how it
    saves).
    """
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in NOISE:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
