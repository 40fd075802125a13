"""What a launcher (torchrun, srun) tells a process in its environment: whole numbers."""

from __future__ import annotations

import os

from grn.errors import ConfigError

# Lightning reads them already while it is imported.
NUMBERS = (
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "MASTER_PORT",
)


def refuse_odd_launcher() -> None:
    """Raises ConfigError where one of NUMBERS is set to anything but a whole number."""
    for name in NUMBERS:
        if os.environ.get(name):
            number_in_environment(name)


def number_in_environment(name: str) -> int:
    """The whole number in an environment variable of a launcher. Raises ConfigError."""
    value = os.environ[name]
    if not value.isdecimal():
        raise ConfigError(
            f"The environment variable {name} is {value!r}, and launchers such as torchrun write a whole number there; "
            "unset it, or start with a launcher."
        )
    return int(value)
