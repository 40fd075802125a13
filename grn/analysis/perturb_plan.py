"""What is done to which regulators, in which cells of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from anndata import AnnData
from torch import Tensor

from grn.analysis.perturb_mechanism import Association, Mechanism
from grn.cells.cells import Cells
from grn.cells.load import read_columns
from grn.config.schema import Config
from grn.errors import ConfigError, DataError, nearest
from grn.model.saved import TrainedModel
from grn.networks.cells_of_run import cells_of_run, states_of_run
from grn.regulation.states import States

KINDS = {"knockout": "knock-out", "knockdown": "knock-down", "overexpress": "overexpression"}


@dataclass(frozen=True)
class Plan:
    """Names of the regulators that are perturbed, by kind.

    remaining: share of a knocked-down gene's counts that is left.   quantile: overexpression raises a gene, in every
    cell, to this quantile of its multiplicity among the cells that have it; cells above it stay as they are.
    """

    knockout: tuple[str, ...] = ()
    knockdown: tuple[str, ...] = ()
    overexpress: tuple[str, ...] = ()
    remaining: float = 0.5
    quantile: float = 0.95

    def __post_init__(self) -> None:
        if not self.genes:
            raise ConfigError("Nothing is perturbed: name a regulator to knock out, to knock down or to overexpress.")

    @classmethod
    def of_one(cls, kind: str, gene: str) -> Plan:
        """One perturbation of one gene."""
        knockout, knockdown, overexpress = ((gene,) if kind == each else () for each in KINDS)
        return cls(knockout, knockdown, overexpress)

    @property
    def genes(self) -> tuple[str, ...]:
        return (*self.knockout, *self.knockdown, *self.overexpress)

    def described(self) -> str:
        """What is done, in a few words."""
        done = {word: getattr(self, kind) for kind, word in KINDS.items()}
        return "; ".join(f"{word} of {', '.join(genes)}" for word, genes in done.items() if genes)

    def columns(self, vocabulary: Sequence[str], regulators: np.ndarray) -> dict[str, int]:
        """The column among the regulators [R] of each perturbed gene. Raises DataError for a gene that is none."""
        column = {vocabulary[position]: number for number, position in enumerate(regulators.tolist())}
        for gene in self.genes:
            if gene in column:
                continue
            near = nearest(gene, column)
            hint = f"did you mean {near!r}?" if near else f"these are like {next(iter(column))!r}."
            hint = "train with it in data.regulators." if gene in vocabulary else hint
            raise DataError(f"{gene!r} is not among the {len(column)} regulators of this run; {hint}")
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


@dataclass(frozen=True)
class Subject:
    """A run with the cells that it was trained on. adata: these in memory, where it was trained on an AnnData."""

    config: Config
    trained: TrainedModel
    cells: Cells
    states: States
    adata: AnnData | None

    @classmethod
    def of_run(cls, run: Path, config: Config, trained: TrainedModel, adata: AnnData | None = None) -> Subject:
        """Raises ConfigError, DataError; also where the cells are not those of the run any more."""
        if trained.model.regulation is None:
            raise ConfigError(f"The run in {run} has no regulation layer; train with regulation.members of 1 or more.")
        cells = cells_of_run(run, config, trained, adata)
        return cls(config, trained, cells, states_of_run(run, cells, config.trainer.seed, trained), adata)

    @cached_property
    def mechanism(self) -> Mechanism:
        regulation, sd = self.trained.model.regulation, self.trained.model.sd
        assert regulation is not None
        return Mechanism.of(regulation, sd, Association.of(regulation, self.cells, self.states, sd))

    @property
    def logarithmic(self) -> bool:
        """Whether multiplicities are log(1 + count)."""
        return self.trained.values == "counts" and self.trained.multiplicity != "counts"

    def rows(self, cell_type: str | None = None, where: Mapping[str, str] | None = None) -> np.ndarray:
        """The cells of a type (or state that was found) for which columns of obs have these values, int64 [C].

        Raises DataError where there are none.
        """
        chosen = np.ones(len(self.cells), dtype=bool)
        if cell_type is not None:
            chosen &= self._of_type(cell_type)
        if where:
            columns = read_columns(self.config.data, self.cells, dict.fromkeys(where, "where"), self.adata)
            for column, value in where.items():
                values = columns[column].astype(object).map(str).to_numpy()
                if value not in values:
                    known = ", ".join(map(repr, sorted(set(values))[:12]))
                    raise DataError(f"Column {column!r} of obs has no value {value!r}; it has {known}.", field="where")
                chosen &= values == value
        if not chosen.any():
            raise DataError("No cell is of this type and has these values; choose others.")
        return np.flatnonzero(chosen)

    def _of_type(self, name: str) -> np.ndarray:
        cells, states = self.cells, self.states
        if name in cells.classes:
            return cells.labels == cells.classes.index(name)
        if len(states) > 1 and name in states.names:
            return states.membership.argmax(1) == states.names.index(name)
        known = cells.classes or (states.names if len(states) > 1 else ())
        listed = f"its types are {', '.join(map(repr, known))}" if known else "it has none: train with labels"
        raise DataError(f"The run has no cell type {name!r}; {listed}.", field="cell_type")
