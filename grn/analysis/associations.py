"""What goes with a regulator that nobody intervened on, as far as interventions elsewhere bear it out.

What an intervention does to other genes is not known from cells without it. What the model expects of every gene in
cells that have less of the regulator is: the slope of its expectations on the regulator's multiplicity, over cells. How
much of such an association is a cause is asked of the interventions that were made: the factor with which the
associations of their genes, in cells without their guides, predict what was measured.

Letters: P members, C cells, N genes, j genes that are perturbed, T genes that were intervened on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from grn.cells.interventions import Interventions
from grn.model.transformer import Model
from grn.networks.evidence.caused import Caused

CELLS = 4000  # in which genes are expected: enough for a slope
FEWEST = 50  # cells without its guides, of which a gene's association is read


@dataclass(frozen=True)
class Associations:
    """expected [P, C, N]: of the model, in sds.   measured: CSR [C, N], multiplicities.   done: of these cells."""

    expected: np.ndarray
    measured: sparse.csr_matrix
    done: Interventions

    def slopes(self, places: list[int], cells: np.ndarray | None = None) -> np.ndarray:
        """[P, j, N]: of a unit of each of the genes `places`, together. cells: bool [C], which count; None: all."""
        chosen = np.ones(len(self.done.control), bool) if cells is None else cells
        x = self.measured[chosen][:, places].toarray().astype(np.float64)
        x -= x.mean(0)
        y = self.expected[:, chosen]
        gram = x.T @ x
        gram[np.diag_indices(len(gram))] += 1e-6 * len(x)
        return np.linalg.solve(gram, np.einsum("cj,pcn->pjn", x, y - y.mean(1, keepdims=True), optimize=True))

    def borne_out(self, caused: Caused, sd: np.ndarray) -> float:
        """The share of associations that interventions bear out, 0 to 1; 1 where none can say. sd [N]: unit of
        `expected`."""
        product = square = 0.0
        for number, place in enumerate(self.done.place.tolist()):
            without = np.asarray(self.done.given[:, [number]].todense()).ravel() == 0
            if place < 0 or without.sum() < FEWEST:
                continue
            level = float(self.measured[self.done.control][:, [place]].mean())
            association = self.slopes([place], without)[:, 0].mean(0) * level * sd / caused.sd  # of a loss, reversed
            effect, error = caused.effect[:, number], caused.error[:, number]
            known = np.isfinite(effect) & (error > 0)
            weight = 1 / np.square(error[known])
            product += float((weight * association[known]) @ effect[known])
            square += float((weight * association[known]) @ association[known])
        return float(np.clip(product / square, 0, 1)) if square else 1.0


@torch.no_grad()
def associations(
    model: Model, measured: Tensor, basal: Tensor, states: Tensor, multiplicity: sparse.csr_matrix, done: Interventions
) -> Associations:
    """measured [C, R]: multiplicities of the regulators.   basal [C].   states [C, S].   multiplicity: CSR [C, N], and
    done, of the same cells."""
    parts, step = [], max(1, 2**25 // (model.config.members * model.genes))
    for first in range(0, len(measured), step):
        part = slice(first, first + step)
        parts.append(model.expected(model.inputs(measured[part], basal[part]), states[part]).cpu())
    return Associations(torch.cat(parts, 1).numpy(), multiplicity, done)
