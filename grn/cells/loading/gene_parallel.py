"""Gene parallelism: which cells and which of their genes a process has, among all processes that train."""

from __future__ import annotations

from dataclasses import dataclass

from grn.errors import ConfigError


@dataclass(frozen=True)
class ParallelRank:
    """The position of one process: number `replica` of `replicas` copies of the model, part `part` of its `parts`.

    Each replica has cells of its own; the `parts` processes of one replica share the genes of these cells. They have
    consecutive ranks, because such processes are closest to each other and communicate in every layer.
    """

    replica: int = 0
    replicas: int = 1
    part: int = 0
    parts: int = 1

    @classmethod
    def of(cls, rank: int, world: int, parts: int) -> ParallelRank:
        """The position of process `rank` of `world`. Raises ConfigError where `parts` does not divide `world`."""
        if world % parts:
            raise ConfigError(
                f"trainer.gene_parallel {parts} does not divide the number of processes of this run, {world}; set "
                "trainer.devices to a multiple of it, or trainer.gene_parallel: 1."
            )
        replica, part = divmod(rank, parts)
        return cls(replica, world // parts, part, parts)

    def ranks(self) -> list[list[int]]:
        """The ranks of the processes of each replica."""
        return [list(range(first, first + self.parts)) for first in range(0, self.replicas * self.parts, self.parts)]
