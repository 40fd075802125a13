"""Ridge regression of every gene on the regulators, with deviations by state: what the regulation layer starts from.

    y_i = sum_j (beta_ij + sum_z p_z delta_ijz) x_j          p_z: how much the cell belongs to state z

is one ridge regression with the features [x, rho x p_1, ..., rho x p_K]: beta is penalised by lambda_i, the deviations
by lambda_i / rho^2. rho = 0 gives all states the same slopes; the larger rho is, the more each state speaks for itself,
and a state with few cells is drawn to the shared slope by itself. The levels of the states are taken out before, so
that only differences between cells of one state count. A gene that regulates is never predicted from itself.

One eigendecomposition gives the solutions for every penalty: of the features' products where there are fewer features
than cells, else of the cells' products.

Letters: C cells, N genes, R regulators, K states, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOGETHER = 64  # regulators whose own features are left out at the same time


@dataclass(frozen=True)
class Features:
    """x [C, R], its levels taken out.   states [C, K].   ratio: rho.   own [R]: the gene that each regulator is.
    copies: 2 where the second half of x are the knock-offs of the first, so that own has half as many genes."""

    x: Tensor
    states: Tensor
    ratio: float
    own: Tensor
    copies: int = 1

    @property
    def blocks(self) -> int:
        """How many features a regulator has."""
        return 1 + (self.states.shape[1] if self.ratio else 0)

    def matrix(self, cells: Tensor | slice = slice(None)) -> Tensor:
        """[C, R * blocks]: the features of a regulator are R apart."""
        x = self.x[cells]
        if not self.ratio:
            return x
        return torch.cat([x, *(self.ratio * x * p[:, None] for p in self.states[cells].mT)], 1)

    def of_regulators(self, device: torch.device) -> Tensor:
        """The features of each regulator and its copies, int64 [R, copies * blocks]."""
        first = torch.arange(len(self.own), device=device)[:, None]
        return first + len(self.own) * torch.arange(self.copies * self.blocks, device=device)

    def slopes(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """coefficients [F, N] -> the shared slopes [N, R] and the deviations of the states [K, N, R]."""
        parts = coefficients.unflatten(0, (self.blocks, -1)).mT
        return parts[0], self.ratio * parts[1:]


class Ridge:
    """The solutions for all penalties. features [C, F], targets [C, N]: both with mean 0, own: see Features."""

    def __init__(self, features: Tensor, targets: Tensor, own: Tensor, of_regulators: Tensor):
        self.features, self.dual = features, features.shape[1] > len(features)
        product = features @ features.mT if self.dual else features.mT @ features
        self._solve(product, targets if self.dual else features.mT @ targets, own, of_regulators)

    @classmethod
    def of_moments(cls, gram: Tensor, cross: Tensor, own: Tensor) -> Ridge:
        """The same from the products of the features [R, R] and of features and targets [R, N], for `coefficients`."""
        ridge = cls.__new__(cls)
        ridge.dual = False
        ridge._solve(gram, cross, own, torch.arange(len(own), device=gram.device)[:, None])
        return ridge

    def _solve(self, product: Tensor, targets: Tensor, own: Tensor, of_regulators: Tensor) -> None:
        self.own, self.of_regulators = own, of_regulators
        self.values, self.vectors = torch.linalg.eigh(product)
        self.values = self.values.clamp(min=0)
        self.targets = self.vectors.mT @ targets

    def coefficients(self, penalty: Tensor) -> Tensor:
        """[F, N] for a penalty of each target, [N]; 0 where a target meets itself."""
        found = self.vectors @ (self.targets / (self.values[:, None] + penalty))
        coefficients = self.features.mT @ found if self.dual else found
        coefficients[:, self.own] = self._of_regulators(penalty)
        return coefficients

    def for_prediction(self, features: Tensor) -> Tensor:
        """What `predictions` needs of other cells' features [D, F], whatever the penalty."""
        return (features @ self.features.mT if self.dual else features) @ self.vectors

    def predictions(self, rotated: Tensor, features: Tensor, penalty: Tensor) -> Tensor:
        """features @ coefficients(penalty), [D, N], at less cost. rotated: for_prediction(features)."""
        predicted = rotated @ (self.targets / (self.values[:, None] + penalty))
        if len(self.own):
            predicted[:, self.own] = features @ self._of_regulators(penalty)
        return predicted

    def _of_regulators(self, penalty: Tensor) -> Tensor:
        """The coefficients of the targets that are regulators, [F, n]."""
        penalty = penalty[self.own]
        found = self.vectors @ (self.targets[:, self.own] / (self.values[:, None] + penalty))
        for part in range(0, len(self.own), TOGETHER):
            some = slice(part, part + TOGETHER)
            found[:, some] = self._without(found[:, some], self.of_regulators[some], penalty[some])
        found = self.features.mT @ found if self.dual else found
        found.scatter_(0, self.of_regulators.mT, 0)
        return found

    def _without(self, found: Tensor, columns: Tensor, penalty: Tensor) -> Tensor:
        """Solutions [.., n] without the features columns [n, blocks] of each, by the inverse of a matrix that lacks
        these rows and columns."""
        shrunk = 1 / (self.values + penalty[:, None])  # [n, values]
        if self.dual:
            own = self.features[:, columns].permute(1, 2, 0)  # [n, blocks, C]
            inverse = (own @ self.vectors * shrunk[:, None]) @ self.vectors.mT
            rest = torch.eye(columns.shape[1], dtype=own.dtype, device=own.device) - inverse @ own.mT
            weight = torch.linalg.solve(rest, own @ found.mT[..., None])
            return found + (inverse.mT @ weight)[..., 0].mT
        inverse = (self.vectors[columns] * shrunk[:, None]) @ self.vectors.mT  # [n, blocks, F]
        block = inverse.gather(2, columns[:, None].expand(-1, columns.shape[1], -1))
        weight = torch.linalg.solve(block, found.mT.gather(1, columns)[..., None])
        return found - (inverse.mT @ weight)[..., 0].mT


class HeldOutError:
    """The squared error on cells that were held out, for any penalty: a ridge regression for every fold.

    features: of all cells.   targets [C, N].   folds [C]: number of each cell's fold.   own, regulated: which of the
    targets are regulators, int64 [n], and the numbers of these regulators, int64 [n].
    """

    def __init__(self, features: Features, targets: Tensor, folds: Tensor, own: Tensor, regulated: Tensor):
        matrix = features.matrix()
        columns = features.of_regulators(matrix.device)[regulated]
        self.folds = []
        self.size = torch.zeros_like(targets[0])
        for fold in folds.unique().tolist():
            held_out = folds == fold
            if fold < 0:
                continue
            ridge = Ridge(matrix[~held_out], targets[~held_out], own, columns)
            self.folds.append((ridge, ridge.for_prediction(matrix[held_out]), matrix[held_out], targets[held_out]))
            self.size += targets[held_out].square().sum(0)

    def __call__(self, penalty: float) -> Tensor:
        """[N], in variances of each target."""
        error = torch.zeros_like(self.size)
        for ridge, rotated, features, targets in self.folds:
            predicted = ridge.predictions(rotated, features, self.size.new_full(self.size.shape, penalty))
            error += (targets - predicted).square().sum(0)
        return error / self.size.clamp(min=1e-9)
