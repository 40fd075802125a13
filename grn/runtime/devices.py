"""The device that a process computes on."""

from __future__ import annotations

import os

import torch

from grn.config.schema import TrainerConfig


def uses_gpu(settings: TrainerConfig) -> bool:
    """Return whether this machine has a GPU and the configuration allows it."""
    return settings.accelerator != "cpu" and torch.cuda.is_available()


def own_device(settings: TrainerConfig) -> str:
    """This process's device:
    Lightning gives each process on a machine the GPU of its local rank.
    """
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if uses_gpu(settings) else "cpu"
