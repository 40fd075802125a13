"""The error of the regulation layers on test cells, beside that of ridge regression on the same regulators."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grn.data.cells import Cells
from grn.data.preprocessing.split import Split
from grn.model.regulation import Regulation
from grn.network.baselines import ridge_predictions
from grn.regulation.states import States

LARGEST_RIDGE = 2**27  # most numbers in the table that ridge is fitted on: 1 GiB, of which there are a few copies


def held_out_errors(
    regulation: Regulation, states: States, cells: Cells, split: Split, mean: Tensor, sd: Tensor
) -> dict[str, float]:
    """`regulation_error`, `pooled_error` and `ridge_error`: mean squared error over genes and test cells, in variances
    of the genes.

    Genes are predicted from the regulators of the cell, none from itself; the layer of the states, if its states are
    given (labels, a numeric column), is told the cell's state, too. States that were found are not used: they were
    found in the very genes that are predicted. 1 is the error of the genes' means. Empty where ridge would take too
    much memory or time.   mean, sd [N]: of every gene.
    """
    regulators = regulation.regulators
    genes = cells.multiplicity.shape[1]
    if max(len(cells) * genes, len(regulators) ** 2 * genes // 64) > LARGEST_RIDGE:
        return {}
    test = cells.multiplicity[split.test].toarray()
    read = torch.as_tensor(test)[:, regulators], torch.as_tensor(cells.basal[split.test])
    given = torch.as_tensor(states.membership[split.test]) if states.origin in ("labels", "numeric") else None
    scale = sd.numpy()

    def error(predicted: np.ndarray) -> float:
        return float(np.square((predicted - test) / scale).mean())

    with torch.no_grad():
        pooled, informed = (regulation(*read, known) for known in (None, given))
    by_ridge = ridge_predictions(cells.multiplicity[split.train].toarray(), test, regulators.numpy())
    return {
        "regulation_error": error((mean + sd * informed).numpy()),
        "pooled_error": error((mean + sd * pooled).numpy()),
        "ridge_error": error(by_ridge),
    }
