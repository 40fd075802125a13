"""What goes with a regulator that nobody intervened on, as far as interventions elsewhere bear it
out.

What its loss would do is not known from cells without it, and the model has no answer of its own.
What is known is how the cells differ that have less of it. How much of such a difference is a cause
is asked of the interventions that were made: the factor with which the associations of their genes,
in cells without their guides, predict what was measured.

Letters: C cells, N genes, S states, j genes that are perturbed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from grn.cells.interventions import Interventions
from grn.evidence.caused import Caused

FEWEST = 50  # cells without its guides, of which a gene's association is read


@dataclass(frozen=True)
class Associations:
    """What associations are computed from.

    multiplicity: CSR [C, N].
    membership [C, S]: of states, within which cells are compared.
    done: what was done to the cells.
    """

    multiplicity: sparse.csr_matrix
    membership: np.ndarray
    done: Interventions

    def slopes(self, places: list[int], cells: np.ndarray | None = None) -> np.ndarray:
        """[j, N]: of a unit of each of the genes `places`, together. cells: bool [C], which count;
        None: all.
        """
        chosen = slice(None) if cells is None else cells
        values, share = self.multiplicity[chosen], self.membership[chosen]
        x = values[:, places].toarray().astype(np.float64)
        x -= share @ ((share.T @ x) / np.maximum(share.sum(0), 1e-9)[:, None])
        gram = x.T @ x + 1e-6 * len(x) * np.eye(len(places))
        return np.linalg.solve(gram, (values.T @ x).T)

    def borne_out(self, caused: Caused, level: np.ndarray) -> float:
        """The share of associations that interventions bear out, 0 to 1; 1 where none can say.
        level [N]: mean multiplicities of controls, which a loss takes away.
        """
        product = square = 0.0
        given = self.done.given.tocsc()
        for number, place in enumerate(self.done.place.tolist()):
            without = np.ones(self.multiplicity.shape[0], bool)
            without[given[:, [number]].nonzero()[0]] = False
            if place < 0 or without.sum() < FEWEST:
                continue
            expected = self.slopes([place], without)[0] * level[place] / caused.sd
            effect, error = caused.effect[:, number], caused.error[:, number]
            known = np.isfinite(effect)
            weight = 1 / np.square(error[known])
            product += float((weight * expected[known]) @ effect[known])
            square += float((weight * expected[known]) @ expected[known])
        return float(np.clip(product / square, 0, 1)) if square else 1.0
