"""Where a process stands among all that train: which cells are its own, and which of their genes."""

from __future__ import annotations

from dataclasses import dataclass

from grn.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """`replicas` of the model have cells of their own; each is held by `parts` processes, which share their genes.

    Processes of one replica have consecutive ranks: those are the nearest to each other, and talk in every layer.
    """

    replica: int = 0
    replicas: int = 1
    part: int = 0
    parts: int = 1

    @classmethod
    def of(cls, rank: int, world: int, parts: int) -> Place:
        """Raises ConfigError where the processes do not make whole groups."""
        if world % parts:
            raise ConfigError(
                f"trainer.gene_parallel {parts} does not divide the {world} processes that there are; "
                "set trainer.devices to a multiple of it, or trainer.gene_parallel: 1."
            )
        replica, part = divmod(rank, parts)
        return cls(replica, world // parts, part, parts)

    def ranks(self) -> list[list[int]]:
        """The processes of each replica."""
        return [list(range(first, first + self.parts)) for first in range(0, self.replicas * self.parts, self.parts)]
