"""The error of the regulation layer on test cells, beside that of ridge regression on the same regulators."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grn.data.cells import Cells
from grn.data.preprocessing.split import Split
from grn.network.baselines import ridge_predictions
from grn.regulation.fit import FittedLayer

LARGEST_RIDGE = 2**27  # most numbers in the table that ridge is fitted on: 1 GiB, of which there are a few copies


def held_out_errors(fitted: FittedLayer, cells: Cells, split: Split, mean: Tensor, sd: Tensor) -> dict[str, float]:
    """`regulation_error` and `ridge_error`: mean squared error over genes and test cells, in variances of the genes.

    Genes are predicted from the regulators of the cell, none from itself. 1 is the error of the genes' means. Empty
    where ridge would take too much memory or time.   mean, sd [N]: of every gene.
    """
    regulators = fitted.layer.regulators
    genes = cells.multiplicity.shape[1]
    if max(len(cells) * genes, len(regulators) ** 2 * genes // 64) > LARGEST_RIDGE:
        return {}
    test = cells.multiplicity[split.test].toarray()
    with torch.no_grad():
        standardised = fitted.layer(torch.as_tensor(test)[:, regulators], torch.as_tensor(cells.basal[split.test]))
    by_layer = (mean + sd * standardised).numpy()
    by_ridge = ridge_predictions(cells.multiplicity[split.train].toarray(), test, regulators.numpy())
    scale = sd.numpy()
    return {
        "regulation_error": float(np.square((by_layer - test) / scale).mean()),
        "ridge_error": float(np.square((by_ridge - test) / scale).mean()),
    }
