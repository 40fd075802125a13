"""What Lightning says by itself and no user of ours can act on. Real warnings still come through."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# The start of each message, and why it is nothing to our users.
NOISE = (
    r".*does not have many workers",  # batches are slices of a matrix in memory
    r"Experiment logs directory .* exists and is not empty",  # the run folder is ours and was made for this run
    r"The number of training batches .* is smaller than the logging interval",  # we log by steps, not by epochs
    r".*LeafSpec.* is deprecated",  # Lightning's own call into torch
)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences NOISE and Lightning's log below warnings (its tips, the hardware that it found, how it saves)."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in NOISE:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        logger.setLevel(level)
