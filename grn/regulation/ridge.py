"""Ridge regression of every gene on the regulators. A gene that regulates is never predicted from itself.

One eigendecomposition gives the solutions for every penalty: of the features' products where there are fewer features
than cells, else of the cells' products. Features are the regulators or, besides, copies of them (knock-offs), R columns
apart. Targets are read some columns at a time, so that no more of a sparse table is dense at once.

Letters: C cells, N genes, R regulators, F features.
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


def of_regulators(features: Tensor, own: Tensor) -> Tensor:
    """The columns of features [C, F] that are made of each of the regulators `own` [R]: int64 [R, F / R]."""
    return torch.arange(features.shape[1], device=features.device).view(-1, len(own)).mT


def products(features: Tensor, targets: Tensor | None = None, cells: Tensor | None = None) -> Tensor:
    """Sums over cells (None: all) of the products of features [C, F] with targets [C, n], or with themselves (None)."""
    rows = torch.arange(len(features), device=features.device) if cells is None else cells
    total = features.new_zeros(features.shape[1], (features if targets is None else targets).shape[1])
    for some in rows.split(CELLS):
        matrix = features[some]
        total.addmm_(matrix.mT, matrix if targets is None else targets[some].to(matrix))
    return total


class Ridge:
    """The solutions for all penalties. features [C, F], targets [C, N]: with mean 0.   own [n]: the targets that are
    regulators.   columns [n, F / R]: their features, see `of_regulators`."""

    def __init__(self, features: Tensor, targets: Tensor, own: Tensor, columns: Tensor):
        self.features, self.dual = features, features.shape[1] > len(features)
        self._solve(features @ features.mT if self.dual else features.mT @ features)
        self.own, self.columns = own, columns
        self.targets = self.vectors.mT @ (targets if self.dual else features.mT @ targets)

    @classmethod
    def of_moments(cls, gram: Tensor) -> Ridge:
        """From the products of the features, [F, F]; targets come `with_targets`."""
        ridge = cls.__new__(cls)
        ridge.dual = False
        ridge._solve(gram)
        return ridge

    @classmethod
    def without_targets(cls, features: Tensor, cells: Tensor | None = None) -> Ridge:
        """Of the features of some cells (None: all); targets come `with_targets`."""
        count = len(features) if cells is None else len(cells)
        if features.shape[1] > count:
            matrix = features if cells is None else features[cells]
            none = torch.zeros(0, dtype=torch.long, device=features.device)
            return cls(matrix, matrix[:, :0], none, none[:, None])
        return cls.of_moments(products(features, cells=cells))

    def with_targets(self, targets: Tensor, own: Tensor, columns: Tensor) -> Ridge:
        """The same for other targets: [C, N] where `dual`, else their products with the features, [F, N]."""
        other = copy(self)
        other.own, other.columns, other.targets = own, columns, self.vectors.mT @ targets
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
            found[:, some] = self._without(found[:, some], self.columns[some], penalty[some])
        found = self.features.mT @ found if self.dual else found
        found.scatter_(0, self.columns.mT, 0)
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

    features [C, F], targets [C, N].   folds [C]: negative for cells that are never held out.   own [R]: the gene that
    each regulator is.
    """

    def __init__(self, features: Tensor, targets: Tensor | Columns, folds: Tensor, own: Tensor):
        self.features, self.targets, self.own = features, Columns.of(targets), own
        self.columns = of_regulators(features, own)
        parts = [(folds == number).nonzero()[:, 0] for number in folds.unique().tolist()]
        any_others = int(bool((folds < 0).any()))  # their number is the lowest
        self.others: Tensor = parts[0] if any_others else folds[:0]
        self.held_out = parts[any_others:]
        self.dual = features.shape[1] > len(folds) - max(map(len, self.held_out))
        if self.dual:
            self.training = [(folds != folds[held_out[0]]).nonzero()[:, 0] for held_out in self.held_out]
            self.ridges = [Ridge.without_targets(features, training) for training in self.training]
            return
        # The products of the training cells are those of all cells without those of the cells that are held out.
        self.grams = [products(features, cells=cells) for cells in self.held_out]
        total = sum(self.grams, products(features, cells=self.others))
        self.ridges = [Ridge.of_moments(total - gram) for gram in self.grams]

    def __call__(self, penalties: Sequence[float]) -> Tensor:
        """[penalties, N], in variances of each target."""
        found = []
        for some, targets in self.targets.blocks():
            here = ((self.own >= some.start) & (self.own < some.stop)).nonzero()[:, 0]
            own = self.own[here] - some.start, self.columns[here]
            wanted = targets.new_tensor(penalties)[:, None].expand(-1, targets.shape[1])
            error = (self._errors_of_cells if self.dual else self._errors_of_moments)(targets, own, wanted)
            size = torch.stack([targets[held_out].square().sum(0) for held_out in self.held_out]).sum(0)
            found.append(error / size.clamp(min=1e-9))
        return torch.cat(found, 1)

    def _errors_of_cells(self, targets: Tensor, own: tuple[Tensor, Tensor], penalties: Tensor) -> Tensor:
        """Squared errors [P, n] of targets [C, n], for penalties [P, n]. own: for Ridge.with_targets."""
        error = torch.zeros_like(penalties)
        for training, held_out, ridge in zip(self.training, self.held_out, self.ridges, strict=True):
            given = targets[training] if ridge.dual else products(self.features, targets, training)
            ridge, matrix = ridge.with_targets(given, *own), self.features[held_out]
            rotated = ridge.for_prediction(matrix)
            for each, penalty in zip(error, penalties, strict=True):
                each += (targets[held_out] - ridge.predictions(rotated, matrix, penalty)).square().sum(0)
        return error

    def _errors_of_moments(self, targets: Tensor, own: tuple[Tensor, Tensor], penalties: Tensor) -> Tensor:
        """The same, |y|^2 - 2 b'X'y + b'X'X b for coefficients b and the cells X, y that are held out."""
        *crosses, others = [products(self.features, targets, cells) for cells in (*self.held_out, self.others)]
        total, error = sum(crosses, others), torch.zeros_like(penalties)
        for held_out, ridge, gram, cross in zip(self.held_out, self.ridges, self.grams, crosses, strict=True):
            ridge, y = ridge.with_targets(total - cross, *own), targets[held_out]
            # Fewer cells than features: their predictions cost less than X'X b.
            matrix = self.features[held_out] if len(held_out) < len(gram) else None
            for each, penalty in zip(error, penalties, strict=True):
                found = ridge.coefficients(penalty)
                if matrix is None:
                    rest = y.square().sum(0) + ((gram @ found - 2 * cross) * found).sum(0)
                    each += rest.clamp(min=0)
                else:
                    each += (y - matrix @ found).square().sum(0)
        return error
