"""The fitted cells as a table of numbers in the model's units: what penalties and knock-offs are
computed from.

A gene's unit is its sd around the levels of the states, so that a regulator that differs between
states is penalised as others are. A state's level is its mean; where a part of the differences
between states counts as regulation (`levels`, levels.py), that part of the way from the state's
mean to the mean of all cells is left in.

Letters: C cells, N genes, R regulators, S states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.cells.interventions import cut_rows
from grn.cells.preprocessing.moments import moments
from grn.evidence.exact import CELLS
from grn.evidence.linear import Columns
from grn.model.regulation import DEPTH, LIMIT

LEAST_SD = 1e-3
ON_DEVICE = 2**30  # numbers of a table that a GPU keeps dense


@dataclass(frozen=True)
class CellTable:
    """The cells as exact solutions read them.

    multiplicity: CSR float32 [C, N].
    basal [C]: multiplicity of the basal gene.
    states [C, S]: see States.membership.
    regulators [R]: positions among the genes.
    noise [C, R]: variance of the regulators by counting, CSR; None where cells have no counts.
    groups [C]: each cell's donor or batch, whose cells are held out together; None: each by itself.
    device: of the tensors.
    levels: 0 to 1, the part of differences between states that counts.
    keys: positions of guides' keys, which nobody counted, among the genes.
    cut [C, N]: genes of cells that an intervention set, CSR; None: none.
    programmes [C, G]: scores whose part in every gene is no regulation; None: none.
    """

    multiplicity: sp.csr_matrix
    basal: np.ndarray
    states: np.ndarray
    regulators: np.ndarray
    noise: sp.csr_matrix | None = None
    groups: np.ndarray | None = None
    device: torch.device | str = "cpu"
    levels: float = 0.0
    keys: tuple[int, ...] = ()
    cut: sp.csr_matrix | None = None
    programmes: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        cells: Cells,
        rows: np.ndarray,
        states: np.ndarray,
        *,
        levels: float = 0.0,
        device: str = "cpu",
    ) -> CellTable:
        """Return the cells `rows` of a data set. Where it names no regulators, every gene may
        regulate.
        """
        every = len(rows) == len(cells) and bool((np.diff(rows) > 0).all())
        multiplicity = cells.multiplicity if every else cells.multiplicity[rows]
        regulators = (
            np.arange(len(cells.vocabulary)) if cells.regulators is None else cells.regulators
        )
        noise = None
        keys = () if cells.interventions is None else tuple(cells.interventions.key.tolist())
        if cells.counting is not None:
            unit = cells.counting.unit
            counting = type(cells.counting)(None if unit is None else unit[rows])
            noise = counting.variance(multiplicity[:, regulators])
            if keys:
                noise = noise.multiply(~np.isin(regulators, keys)).tocsr()
        groups = None if cells.groups is None else cells.groups[rows]
        groups = groups if groups is not None and (groups != groups[0]).any() else None
        told = cells.basal[rows], states[rows], regulators
        done = cells.interventions
        cut = None if done is None else sp.csr_matrix(cut_rows(done, rows, len(cells.vocabulary)))
        scores = None if cells.programmes is None else cells.programmes[rows]
        return cls(multiplicity, *told, noise, groups, device, levels, keys, cut, scores)

    def __len__(self) -> int:
        return len(self.basal)

    def some(self, rows: np.ndarray) -> CellTable:
        """Return the table of the cells `rows` alone, in their own units; this table where these
        are all cells.
        """
        if len(rows) == len(self) and bool((np.diff(rows) > 0).all()):
            return self
        noise = None if self.noise is None else self.noise[rows]
        groups = None if self.groups is None else self.groups[rows]
        cells = self.multiplicity[rows], self.basal[rows], self.states[rows]
        cut = None if self.cut is None else self.cut[rows]
        scores = None if self.programmes is None else self.programmes[rows]
        known = self.device, self.levels, self.keys
        return CellTable(*cells, self.regulators, noise, groups, *known, cut, scores)

    def with_levels(self, levels: float) -> CellTable:
        """Return this table with another part of the differences between states; what does not
        depend on it is not computed again.
        """
        found = replace(self, levels=levels)
        found.__dict__.update({name: getattr(self, name) for name in ("moments", "dense")})
        return found

    # Units.

    @cached_property
    def dense(self) -> Tensor | None:
        """The multiplicities [C, N] on a GPU with room for them, where reading columns of a sparse
        table would take most of the time; None elsewhere.
        """
        cells, genes = self.multiplicity.shape
        if torch.device(self.device).type != "cuda" or cells * genes > ON_DEVICE:
            return None
        table = self.multiplicity
        found = torch.zeros(cells, genes, device=self.device)
        row = torch.as_tensor(np.repeat(np.arange(cells), np.diff(table.indptr)))
        place = (torch.as_tensor(table.indices.astype(np.int64)) + row * genes).to(self.device)
        found.view(-1)[place] = torch.as_tensor(table.data).to(self.device)
        return found

    def values(self, genes: np.ndarray | slice) -> Tensor:
        """Return the multiplicities of some genes, [C, n]: a copy."""
        if self.dense is not None:
            if isinstance(genes, slice):
                return self.dense[:, genes].clone()
            return self.dense[:, torch.as_tensor(genes, device=self.device)]
        # Blocks of genes are read time and again, others once: they do not leave a second copy of
        # the table behind.
        if isinstance(genes, slice):
            found = self.by_gene[:, genes].toarray()
        else:
            found = np.empty((len(self), len(genes)), np.float32)
            for first in range(0, len(self), CELLS):
                some = slice(first, first + CELLS)
                found[some] = self.multiplicity[some].toarray()[:, genes]
        return torch.as_tensor(found, device=self.device)

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return moments(self.multiplicity)

    @cached_property
    def mean(self) -> Tensor:
        """[N], over all cells."""
        return torch.as_tensor(self.moments[0]).float()

    @cached_property
    def spread(self) -> Tensor:
        """[N], sds over all cells; 1 for a constant gene."""
        _, sd, varies = self.moments
        return torch.as_tensor(np.where(varies, sd, 1)).float()

    @cached_property
    def sd(self) -> Tensor:
        """[N], sds around the levels of the states."""
        if self.levels == 1:
            return self.spread
        size = self.states.sum(0, dtype=np.float64) / len(self)
        mean, sd, _ = self.moments
        between = size @ np.square(
            self._state_means(self.multiplicity, self.states), dtype=np.float64
        )
        variance = np.square(sd) - (1 - self.levels**2) * (between - np.square(mean))
        found = np.sqrt(np.maximum(variance, 0))
        return torch.as_tensor(np.where(found > LEAST_SD, found, self.spread.numpy())).float()

    @cached_property
    def depth(self) -> tuple[float, float]:
        """Mean and sd of the basal gene's multiplicity; the sd is 1 where it does not vary."""
        sd = float(self.basal.std())
        return float(self.basal.mean()), sd if sd > 1e-6 else 1.0

    # Tensors in units.

    @cached_property
    def inputs(self) -> Tensor:
        """m [C, R + 1]: see Model.inputs."""
        own = torch.as_tensor(self.regulators)
        mean, sd = (each[own].to(self.device) for each in (self.mean, self.sd))
        values = self.values(self.regulators)
        depth = DEPTH + (torch.as_tensor(self.basal) - self.depth[0]) / self.depth[1]
        return torch.cat(
            [
                ((values - mean) / sd).clamp(max=LIMIT) + mean / sd,
                depth[:, None].float().to(self.device),
            ],
            1,
        )

    @cached_property
    def membership(self) -> Tensor:
        return torch.as_tensor(self.states, dtype=torch.float32, device=self.device)

    @cached_property
    def scores(self) -> Tensor:
        """Of programmes, [C, G]; G is 0 without."""
        found = np.zeros((len(self), 0)) if self.programmes is None else self.programmes
        return torch.as_tensor(found, dtype=torch.float32, device=self.device)

    @cached_property
    def by_gene(self) -> sp.csc_matrix:
        return self.multiplicity.tocsc()

    def targets(self, genes: np.ndarray | slice) -> Tensor:
        """Standardised multiplicities of some genes: [C, n]."""
        mean, sd = (each[genes].to(self.device) for each in (self.mean, self.sd))
        return self.values(genes).sub_(mean).div_(sd).clamp_(max=LIMIT)

    def is_cut(self, genes: np.ndarray) -> Tensor | None:
        """Which multiplicities of some genes an intervention set, bool [C, n]; None: none."""
        return (
            None
            if self.cut is None
            else torch.as_tensor(self.cut[:, genes].toarray(), device=self.device)
        )

    def columns(self, like: Tensor) -> Columns:
        """All genes, some columns at a time, in the dtype of `like`."""

        def read(some: Tensor | slice) -> Tensor:
            return self.targets(some if isinstance(some, slice) else some.cpu().numpy()).to(like)

        return Columns(self.multiplicity.shape, read)

    def means(self, rows: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
        """Return the means of the states, over some of the cells (None: all): of m, [S, R + 1], and
        of the standardised genes, [S, N].
        """
        states = self.states
        # the others count 0: a copy of nearly all cells would take their room once more
        if rows is not None:
            states = states * np.isin(np.arange(len(self)), rows)[:, None].astype(states.dtype)
        level = (
            torch.as_tensor(self._state_means(self.multiplicity, states)).float() - self.mean
        ) / self.sd
        share = torch.as_tensor(states, dtype=torch.float32, device=self.device)
        size = share.sum(0)[:, None]
        centre = share.T @ self.inputs / size.clamp(min=1e-9)
        return centre, level.to(self.device)

    @cached_property
    def mixed(self) -> Tensor:
        """[S, S]: what makes levels of the means of states."""
        size = torch.as_tensor(self.states.sum(0), device=self.device)
        return (1 - self.levels) * torch.eye(
            len(size), device=self.device
        ) + self.levels * size / size.sum()

    @staticmethod
    def _state_means(multiplicity: sp.csr_matrix, states: np.ndarray) -> np.ndarray:
        size = np.maximum(states.sum(0, dtype=np.float64), 1e-9)
        return np.asarray((multiplicity.T @ states).T, np.float64) / size[:, None]

    @cached_property
    def counting(self) -> Tensor | None:
        """Mean variance of the regulators by counting, in squared units: [R]."""
        if self.noise is None:
            return None
        mean = torch.as_tensor(np.asarray(self.noise.mean(0)).ravel()).float()
        return (mean / self.sd[torch.as_tensor(self.regulators)].square()).to(self.device)
