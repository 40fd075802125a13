"""What goes with a regulator that nobody intervened on, as far as interventions elsewhere bear it out.

What its loss would do is not known from cells without it, and the model has no answer of its own. What is known is how
the cells differ that have less of it. How much of such a difference is a cause is asked of the interventions that were
made: the factor with which the associations of their genes, in cells without their guides, predict what was measured.

Letters: C cells, N genes, j genes that are perturbed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grn.cells.cells import Cells
from grn.networks.evidence.caused import Caused

CELLS = 4000  # in which associations are read: enough for a slope
FEWEST = 50  # cells without its guides, of which a gene's association is read


@dataclass(frozen=True)
class Associations:
    """values [C, N]: multiplicities of some cells, less the means of their states.   given [C, T]: bool, which
    interventions they have.   place [T]: of the genes that were intervened on, -1 where one was not measured."""

    values: np.ndarray
    given: np.ndarray
    place: np.ndarray

    @classmethod
    def of(cls, cells: Cells, membership: np.ndarray) -> Associations:
        """membership [C, S]: see States."""
        done = cells.interventions
        assert done is not None, "the caller has asked"
        some = np.sort(np.random.default_rng(0).permutation(len(cells))[:CELLS])
        values, share = cells.multiplicity[some].toarray().astype(np.float64), membership[some]
        values -= share @ ((share.T @ values) / np.maximum(share.sum(0), 1e-9)[:, None])
        return cls(values, done.given[some].toarray() > 0, done.place)

    def slopes(self, places: list[int], cells: np.ndarray | None = None) -> np.ndarray:
        """[j, N]: of a unit of each of the genes `places`, together. cells: bool [C], which count; None: all."""
        values = self.values if cells is None else self.values[cells]
        x = values[:, places] - values[:, places].mean(0)
        gram = x.T @ x + 1e-6 * len(x) * np.eye(len(places))
        return np.linalg.solve(gram, x.T @ (values - values.mean(0)))

    def borne_out(self, caused: Caused, level: np.ndarray) -> float:
        """The share of associations that interventions bear out, 0 to 1; 1 where none can say. level [N]: mean
        multiplicities of controls, which a loss takes away."""
        product = square = 0.0
        for number, place in enumerate(self.place.tolist()):
            without = ~self.given[:, number]
            if place < 0 or without.sum() < FEWEST:
                continue
            expected = self.slopes([place], without)[0] * level[place] / caused.sd
            effect, error = caused.effect[:, number], caused.error[:, number]
            known = np.isfinite(effect)
            weight = 1 / np.square(error[known])
            product += float((weight * expected[known]) @ effect[known])
            square += float((weight * expected[known]) @ expected[known])
        return float(np.clip(product / square, 0, 1)) if square else 1.0
