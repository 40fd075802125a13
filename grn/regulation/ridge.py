"""Ridge regression of every gene on the regulators, with deviations by state.

    y_i = sum_j (beta_ij + sum_z p_z delta_ijz) x_j          p_z: how much the cell belongs to state z

is one ridge regression with the features [x, rho x p_1, ..., rho x p_K]: beta is penalised by lambda_i, the deviations
by lambda_i / rho^2. rho = 0 gives all states the same slopes; the larger rho is, the more each state speaks for itself,
and a state with few cells is drawn to the shared slope by itself. The levels of the states are taken out before, so
that only differences between cells of one state count. A gene that regulates is never predicted from itself.

One eigendecomposition gives the solutions for every penalty: of the features' products where there are fewer features
than cells, else of the cells' products. Targets are read some columns at a time, so that no more of a sparse table is
dense at once.

Letters: C cells, N genes, R regulators, K states, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

TOGETHER = 64  # regulators whose own features are left out at the same time
COLUMNS = 256  # targets that are dense at the same time
CELLS = 4096  # whose features are computed at the same time where only their products are needed


@dataclass(frozen=True)
class Columns:
    """Targets [C, N] that are read some columns at a time. read: positions or a slice of columns -> [C, n]."""

    shape: tuple[int, int]
    read: Callable[[Tensor | slice], Tensor]

    @classmethod
    def of(cls, targets: Tensor | Columns) -> Columns:
        """The columns of a tensor [C, N]; columns stay as they are."""
        if isinstance(targets, Columns):
            return targets
        cells, genes = targets.shape
        return cls((cells, genes), lambda some: targets[:, some])

    def each(self, change: Callable[[Tensor], Tensor]) -> Columns:
        """The same after a change [C, n] -> [C, n] of the columns that are read."""
        return Columns(self.shape, lambda some: change(self.read(some)))

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """All columns, COLUMNS at a time: which, and their values."""
        for first in range(0, self.shape[1], COLUMNS):
            some = slice(first, min(first + COLUMNS, self.shape[1]))
            yield some, self.read(some)


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

    @property
    def width(self) -> int:
        """How many features there are: R * blocks."""
        return self.x.shape[1] * self.blocks

    def scale(self) -> Tensor:
        """What rho multiplies each feature by, [F]."""
        return self.x.new_tensor([1.0] + [self.ratio] * (self.blocks - 1)).repeat_interleave(self.x.shape[1])

    def matrix(self, cells: Tensor | slice = slice(None)) -> Tensor:
        """[C, R * blocks]: the features of a regulator are R apart."""
        x = self.x[cells]
        if not self.ratio:
            return x
        shared = self.states.new_ones(len(x), 1)
        return (torch.cat([shared, self.ratio * self.states[cells]], 1)[:, :, None] * x[:, None]).flatten(1)

    def products(self, targets: Tensor | None = None, cells: Tensor | None = None) -> Tensor:
        """Sums over cells (None: all) of the features' products with targets [C, n], or with themselves (None)."""
        rows = torch.arange(len(self.x), device=self.x.device) if cells is None else cells
        total = self.x.new_zeros(self.width, self.width if targets is None else targets.shape[1])
        for some in rows.split(CELLS):
            matrix = self.matrix(some)
            total.addmm_(matrix.mT, matrix if targets is None else targets[some])
        return total

    def of_regulators(self, device: torch.device) -> Tensor:
        """The features of each regulator and its copies, int64 [R, copies * blocks]."""
        first = torch.arange(len(self.own), device=device)[:, None]
        return first + len(self.own) * torch.arange(self.copies * self.blocks, device=device)

    def slopes(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """coefficients [F, N] -> the shared slopes [N, R] and the deviations of the states [K, N, R]."""
        parts = coefficients.unflatten(0, (self.blocks, -1)).mT
        return parts[0], self.ratio * parts[1:]


class Ridge:
    """The solutions for all penalties. features [C, F], targets [C, N]: with mean 0.   The others: see Features."""

    def __init__(self, features: Tensor, targets: Tensor, own: Tensor, of_regulators: Tensor):
        self.features, self.dual = features, features.shape[1] > len(features)
        self._solve(features @ features.mT if self.dual else features.mT @ features)
        self.own, self.of_regulators = own, of_regulators
        self.targets = self.vectors.mT @ (targets if self.dual else features.mT @ targets)

    @classmethod
    def of_moments(cls, gram: Tensor) -> Ridge:
        """From the products of the features, [F, F]; targets come `with_targets`."""
        ridge = cls.__new__(cls)
        ridge.dual = False
        ridge._solve(gram)
        return ridge

    @classmethod
    def without_targets(cls, features: Features, cells: Tensor | None = None) -> Ridge:
        """Of the features of some cells (None: all); targets come `with_targets`."""
        count, none = len(features.x) if cells is None else len(cells), features.own[:0]
        if features.width > count:
            matrix = features.matrix(slice(None) if cells is None else cells)
            return cls(matrix, matrix[:, :0], none, none[:, None])
        return cls.of_moments(features.products(cells=cells))

    def with_targets(self, targets: Tensor, own: Tensor, of_regulators: Tensor) -> Ridge:
        """The same for other targets: [C, N] where `dual`, else their products with the features, [F, N]."""
        other = copy(self)
        other.own, other.of_regulators, other.targets = own, of_regulators, self.vectors.mT @ targets
        return other

    def _solve(self, product: Tensor) -> None:
        self.values, self.vectors = torch.linalg.eigh(product)
        self.values = self.values.clamp(min=0)

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
        """Solutions [.., n] without the features columns [n, blocks] of each: the inverse without these rows."""
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
    """The squared error on cells that were held out, for any penalties: a ridge regression for every fold.

    targets [C, N].   folds [C]: negative for cells that are never held out.   own, regulated [n]: the targets that are
    regulators, and the numbers of these regulators.
    """

    def __init__(self, features: Features, targets: Tensor | Columns, folds: Tensor, own: Tensor, regulated: Tensor):
        self.features, self.targets, self.own = features, Columns.of(targets), own
        self.of_regulators = features.of_regulators(folds.device)[regulated]
        parts = [(folds == number).nonzero()[:, 0] for number in folds.unique().tolist()]
        any_others = int(bool((folds < 0).any()))  # their number is the lowest
        self.others: Tensor = parts[0] if any_others else folds[:0]
        self.held_out = parts[any_others:]
        self.dual = features.width > len(folds) - max(map(len, self.held_out))
        if self.dual:
            self.training = [(folds != folds[held_out[0]]).nonzero()[:, 0] for held_out in self.held_out]
            self.ridges = [Ridge.without_targets(features, training) for training in self.training]
            return
        # The products of the training cells are those of all cells without those of the cells that are held out.
        self.grams = [features.products(cells=cells) for cells in self.held_out]
        total = sum(self.grams, features.products(cells=self.others))
        self.ridges = [Ridge.of_moments(total - gram) for gram in self.grams]

    def __call__(self, penalties: Sequence[float]) -> Tensor:
        """[penalties, N], in variances of each target."""
        found = []
        for some, targets in self.targets.blocks():
            here = ((self.own >= some.start) & (self.own < some.stop)).nonzero()[:, 0]
            own = self.own[here] - some.start, self.of_regulators[here]
            wanted = targets.new_tensor(penalties)[:, None].expand(-1, targets.shape[1])
            error = (self._errors_of_cells if self.dual else self._errors_of_moments)(targets, own, wanted)
            size = torch.stack([targets[held_out].square().sum(0) for held_out in self.held_out]).sum(0)
            found.append(error / size.clamp(min=1e-9))
        return torch.cat(found, 1)

    def _errors_of_cells(self, targets: Tensor, own: tuple[Tensor, Tensor], penalties: Tensor) -> Tensor:
        """Squared errors [P, n] of targets [C, n], for penalties [P, n]. own: for Ridge.with_targets."""
        error = torch.zeros_like(penalties)
        for training, held_out, ridge in zip(self.training, self.held_out, self.ridges, strict=True):
            given = targets[training] if ridge.dual else self.features.products(targets, training)
            ridge, matrix = ridge.with_targets(given, *own), self.features.matrix(held_out)
            rotated = ridge.for_prediction(matrix)
            for each, penalty in zip(error, penalties, strict=True):
                each += (targets[held_out] - ridge.predictions(rotated, matrix, penalty)).square().sum(0)
        return error

    def _errors_of_moments(self, targets: Tensor, own: tuple[Tensor, Tensor], penalties: Tensor) -> Tensor:
        """The same, |y|^2 - 2 b'X'y + b'X'X b for coefficients b and the cells X, y that are held out."""
        *crosses, others = [self.features.products(targets, cells) for cells in (*self.held_out, self.others)]
        total, error = sum(crosses, others), torch.zeros_like(penalties)
        for held_out, ridge, gram, cross in zip(self.held_out, self.ridges, self.grams, crosses, strict=True):
            ridge, y = ridge.with_targets(total - cross, *own), targets[held_out]
            # Fewer cells than features: their predictions cost less than X'X b.
            matrix = self.features.matrix(held_out) if len(held_out) < len(gram) else None
            for each, penalty in zip(error, penalties, strict=True):
                found = ridge.coefficients(penalty)
                if matrix is None:
                    rest = y.square().sum(0) + ((gram @ found - 2 * cross) * found).sum(0)
                    each += rest.clamp(min=0)
                else:
                    each += (y - matrix @ found).square().sum(0)
        return error
