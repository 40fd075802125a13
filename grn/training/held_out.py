"""The regulation layer judged on cells that it has not seen, beside ridge on the same regulators."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grn.data.cells import Cells
from grn.data.preprocessing.split import Split
from grn.network.baselines import ridge_predictions
from grn.regulation.fit import Fit

LARGEST_RIDGE = 2**27  # numbers of the table that ridge is fitted on, 1 GiB each of a few copies


def held_out_errors(layer: Fit, cells: Cells, split: Split, mean: Tensor, sd: Tensor) -> dict[str, float]:
    """Of genes predicted from the regulators of test cells, none from itself: the layer's error, and ridge's.

    Empty where ridge would take too much memory or time. About 1: no better than each gene's mean.
    """
    regulators = layer.regulation.regulators
    genes = cells.multiplicity.shape[1]
    if max(len(cells) * genes, len(regulators) ** 2 * genes // 64) > LARGEST_RIDGE:
        return {}
    test = cells.multiplicity[split.test].toarray()
    with torch.no_grad():
        standardised = layer.regulation(torch.as_tensor(test)[:, regulators], torch.as_tensor(cells.basal[split.test]))
    ours = (mean + sd * standardised).numpy()
    theirs = ridge_predictions(cells.multiplicity[split.train].toarray(), test, regulators.numpy())
    scale = sd.numpy()
    return {
        "regulation_error": float(np.square((ours - test) / scale).mean()),
        "ridge_error": float(np.square((theirs - test) / scale).mean()),
    }
