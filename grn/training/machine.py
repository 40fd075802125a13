"""How Lightning uses this machine, and errors for what it cannot do here, raised before any cell is read."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from grn.cells.loading.order import ParallelRank
from grn.config.launcher import number_in_environment, refuse_odd_launcher
from grn.config.schema import TrainerConfig
from grn.devices import uses_gpu
from grn.errors import ConfigError
from grn.training.loop.quiet import quiet

# Variables with which launchers tell a process about the other machines: torchrun, srun, mpirun, LSF, or by hand.
LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "LSB_JOBID", "MASTER_ADDR", "NODE_RANK")


def processes(settings: TrainerConfig) -> int:
    """How many processes train together; devices "auto" means one per GPU, as in Lightning."""
    automatic = torch.cuda.device_count() if uses_gpu(settings) else 1
    return settings.num_nodes * (settings.devices if isinstance(settings.devices, int) else automatic)


def lightning_options(settings: TrainerConfig) -> dict[str, Any]:
    """The arguments of Lightning's Trainer that say where and how it computes."""
    automatic = "bf16-mixed" if uses_gpu(settings) else "32-true"
    return {
        "accelerator": settings.accelerator,
        "devices": settings.devices,
        "num_nodes": settings.num_nodes,
        "strategy": settings.strategy,
        "precision": automatic if settings.precision == "auto" else settings.precision,
    }


def refuse_impossible_training(settings: TrainerConfig) -> None:
    """Raises ConfigError for what this machine or Lightning cannot do."""
    if settings.tensorboard and not any(find_spec(name) for name in ("tensorboard", "tensorboardX")):
        raise ConfigError(
            "trainer.tensorboard is true, but tensorboard is not installed; "
            'run pip install "grn[tensorboard]", or set it to false.'
        )
    refuse_odd_launcher()
    started = number_in_environment("WORLD_SIZE") if os.environ.get("WORLD_SIZE") else 1
    if "TORCHELASTIC_RUN_ID" in os.environ and started != processes(settings):
        raise ConfigError(
            f"torchrun started {started} processes, but trainer.devices x trainer.num_nodes is "
            f"{processes(settings)}; make the two equal (torchrun --nproc-per-node, --nnodes)."
        )
    if settings.num_nodes > 1 and not any(name in os.environ for name in LAUNCHERS):
        raise ConfigError(
            f"trainer.num_nodes is {settings.num_nodes}, but no launcher started this process, so it would wait for "
            "the other machines for ever; start it with torchrun or srun on each, or set trainer.num_nodes to 1."
        )
    if settings.precision == "16-mixed" and not uses_gpu(settings):
        raise ConfigError("trainer.precision is '16-mixed', which needs a GPU, and there is none; set it to auto.")
    ParallelRank.of(0, processes(settings), settings.gene_parallel)  # raises ConfigError
    reason = lightning_refusal(settings)
    if reason is None:
        return
    if "SLURM" in reason:
        raise ConfigError(
            f"SLURM's tasks are not those that trainer.devices and trainer.num_nodes ask for ({reason}); start it with "
            f"srun --nodes={settings.num_nodes} --ntasks-per-node={processes(settings) // settings.num_nodes}."
        )
    for field in ("accelerator", "strategy", "precision", "devices"):
        if lightning_refusal(settings.model_copy(update={field: "auto"})) is None:
            value = f"trainer.{field} is {getattr(settings, field)!r}"
            raise ConfigError(f"{value}, which Lightning refuses on this machine ({reason}); set it to auto.")
    raise ConfigError(
        f"Lightning refuses the trainer section on this machine ({reason}); "
        "set accelerator, strategy, precision and devices to auto."
    )


def lightning_refusal(settings: TrainerConfig) -> str | None:
    """Why Lightning cannot compute with these settings, in its own first sentence; None where it can."""
    try:
        with quiet(), warnings.catch_warnings(action="ignore"):  # the Trainer that trains will warn
            L.Trainer(**lightning_options(settings), logger=False, enable_checkpointing=False)
    except (ValueError, RuntimeError, MisconfigurationException, ImportError) as error:
        return str(error).strip().split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__
    return None


def refuse_more_parts_than_genes(settings: TrainerConfig, genes: int) -> None:
    """Raises ConfigError where gene parallelism would leave a process without genes."""
    if settings.gene_parallel > genes:
        raise ConfigError(
            f"trainer.gene_parallel is {settings.gene_parallel}, which is more processes than the {genes} genes that "
            "they share; set it to 1."
        )
