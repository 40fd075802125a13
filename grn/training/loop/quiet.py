"""Silences the messages of Lightning that our users cannot act on. Other warnings still come through."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# The start of each message, and why our users can ignore it.
NOISE = (
    r".*does not have many workers",  # batches are slices of a matrix in memory
    r"Experiment logs directory .* exists and is not empty",  # the run folder is ours and was made for this run
    r"The number of training batches .* is smaller than the logging interval",  # we log by steps, not by epochs
    r".*LeafSpec.* is deprecated",  # Lightning's own call into torch
    r"GPU available but not used",  # trainer.accelerator: cpu asked for that
    r"It is recommended to use .*sync_dist=True",  # torchmetrics has already summed over the processes
)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences NOISE, and what Lightning logs below warnings (tips, the hardware it found, how it saves)."""
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
