"""What is done to which regulator: knock-outs, knock-downs and overexpression, as new multiplicities of cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.errors import ConfigError, DataError, nearest

KNOCKDOWN, OVEREXPRESSION = 0.5, 0.95
KINDS = ("knockout", "knockdown", "overexpress")
MOST_STEPS = 1000  # of propagation: twenty are nearly all that follows


def check_steps(steps: int) -> None:
    """Raises ConfigError for a number of steps of propagation that cannot be made."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or not 1 <= steps <= MOST_STEPS:
        raise ConfigError(
            f"--steps is {steps}; at least 1 is needed, which reads the direct effects, and at most {MOST_STEPS}."
        )


@dataclass(frozen=True)
class Plan:
    """Names of the regulators that are perturbed, by kind.

    remaining: share of a knocked-down gene's counts that is left.   quantile: overexpression raises a gene, in every
    cell, to this quantile of its multiplicity among the cells that have it; cells above it stay as they are.
    """

    knockout: tuple[str, ...] = ()
    knockdown: tuple[str, ...] = ()
    overexpress: tuple[str, ...] = ()
    remaining: float = KNOCKDOWN
    quantile: float = OVEREXPRESSION

    def __post_init__(self) -> None:
        if not self.genes:
            raise ConfigError("Nothing is perturbed: name a regulator with --knock-out, --knock-down or --overexpress.")
        repeated = {gene for gene in self.genes if self.genes.count(gene) > 1}
        if repeated:
            raise ConfigError(f"{sorted(repeated)[0]!r} is perturbed twice; name each regulator once.")
        for name, value in (("--remaining", self.remaining), ("--quantile", self.quantile)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value}; it is a share from 0 to 1.")
        if self.remaining != KNOCKDOWN and not self.knockdown:
            raise ConfigError(f"--remaining is {self.remaining}, but no gene is knocked down; leave it out.")
        if self.quantile != OVEREXPRESSION and not self.overexpress:
            raise ConfigError(f"--quantile is {self.quantile}, but no gene is overexpressed; leave it out.")

    @classmethod
    def of_one(cls, kind: str, gene: str) -> Plan:
        """One perturbation of one gene."""
        knockout, knockdown, overexpress = (((gene,) if kind == name else ()) for name in KINDS)
        return cls(knockout, knockdown, overexpress)

    @property
    def genes(self) -> tuple[str, ...]:
        return (*self.knockout, *self.knockdown, *self.overexpress)

    def described(self) -> str:
        """What is done, in a few words."""
        verbs = {"knockout": "knock-out", "knockdown": "knock-down", "overexpress": "overexpression"}
        return "; ".join(f"{verbs[kind]} of {', '.join(getattr(self, kind))}" for kind in KINDS if getattr(self, kind))

    def columns(self, vocabulary: Sequence[str], regulators: np.ndarray) -> dict[str, int]:
        """The column among the regulators [R] of each perturbed gene. Raises DataError for a gene that is none."""
        column = {vocabulary[position]: number for number, position in enumerate(regulators.tolist())}
        for gene in self.genes:
            if gene in column:
                continue
            if gene in vocabulary:
                raise DataError(
                    f"{gene!r} is not among the {len(column)} regulators of this run, so that nothing is known of what "
                    "it changes; train with it in data.regulators, or name another gene."
                )
            several = [part.strip() for part in gene.split(",")]
            if len(several) > 1 and set(several) <= set(vocabulary):
                raise DataError(
                    f"{gene!r} is several genes in one text; name each by itself: --knock-out {several[0]} --knock-out "
                    f"{several[1]}, or knockout={several[:2]} from Python."
                )
            near = nearest(gene, column)
            hint = f"did you mean {near!r}?" if near else f"its regulators are like {next(iter(column))!r}."
            raise DataError(f"{gene!r} is not among the genes of this run; {hint}")
        return {gene: column[gene] for gene in self.genes}

    def new_values(self, gene: str, cells: Cells, rows: np.ndarray, logarithmic: bool) -> Tensor:
        """The multiplicities of a perturbed gene in the cells `rows`, float32 [C].

        logarithmic: multiplicities are log(1 + count), of which a knock-down divides the count.
        """
        every = cells.multiplicity[:, [cells.vocabulary.index(gene)]].toarray()[:, 0]
        before = torch.as_tensor(every[rows])
        if gene in self.knockout:
            return torch.zeros_like(before)
        if gene in self.knockdown:
            return torch.log1p(self.remaining * torch.expm1(before)) if logarithmic else self.remaining * before
        present = every[every > 0]
        if not len(present):
            raise DataError(f"No cell of this run has {gene!r}, so it is not known how high it can be; leave it out.")
        return before.clamp(min=float(np.quantile(present, self.quantile)))
