"""Where and how Lightning computes, and what it cannot do on this machine, said before any cell is read."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from grn.config.schema import TrainerConfig
from grn.devices import uses_gpu
from grn.errors import ConfigError
from grn.training.loop.quiet import quiet


def processes(settings: TrainerConfig) -> int:
    """How many train in all; "auto" is one per GPU, as Lightning has it."""
    automatic = torch.cuda.device_count() if uses_gpu(settings) else 1
    return settings.num_nodes * (settings.devices if isinstance(settings.devices, int) else automatic)


def lightning_options(settings: TrainerConfig) -> dict[str, Any]:
    """Where and how Lightning computes."""
    automatic = "bf16-mixed" if uses_gpu(settings) else "32-true"
    return {
        "accelerator": settings.accelerator,
        "devices": settings.devices,
        "num_nodes": settings.num_nodes,
        "strategy": settings.strategy,
        "precision": automatic if settings.precision == "auto" else settings.precision,
    }


def refuse_impossible_training(settings: TrainerConfig) -> None:
    """Raises ConfigError for what this machine or Lightning cannot do, before any cell is read."""
    if settings.tensorboard and not any(find_spec(name) for name in ("tensorboard", "tensorboardX")):
        raise ConfigError(
            "trainer.tensorboard is true but tensorboard is not installed; "
            'pip install "grn[tensorboard]", or set it to false.'
        )
    if "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ["WORLD_SIZE"]) != processes(settings):
        raise ConfigError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes and trainer.devices x trainer.num_nodes is "
            f"{processes(settings)}; make them equal (torchrun --nproc-per-node, --nnodes)."
        )
    said = lightning_refusal(settings)
    if said is None:
        return
    for field in ("accelerator", "strategy", "precision", "devices"):
        if lightning_refusal(settings.model_copy(update={field: "auto"})) is None:
            found = f"trainer.{field} is {getattr(settings, field)!r}"
            raise ConfigError(f"{found}, which Lightning refuses on this machine ({said}); set it to auto.")
    raise ConfigError(
        f"Lightning refuses the trainer section on this machine ({said}); "
        "set accelerator, strategy, precision and devices to auto."
    )


def lightning_refusal(settings: TrainerConfig) -> str | None:
    """The first sentence of Lightning's, where it cannot compute as asked; None where it can."""
    try:
        with quiet(), warnings.catch_warnings(action="ignore"):  # the Trainer that trains will warn
            L.Trainer(**lightning_options(settings), logger=False, enable_checkpointing=False)
    except (ValueError, MisconfigurationException, ImportError) as error:
        return str(error).strip().split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__
    return None


def refuse_more_parts_than_genes(settings: TrainerConfig, genes: int) -> None:
    if settings.gene_parallel > genes:
        raise ConfigError(
            f"trainer.gene_parallel {settings.gene_parallel} is more processes than the {genes} genes that they share; "
            "set it to 1."
        )
