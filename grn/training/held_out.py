"""The error of the regulation layers on test cells, beside that of ridge regression on the same regulators."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.cells.preprocessing.split import Split
from grn.model.signed.regulation import Regulation
from grn.networks.baselines import ridge_predictions
from grn.regulation.states import States

LARGEST_RIDGE = 2**27  # most numbers that ridge is fitted on: more take minutes
CELLS = 128  # test cells that are predicted at the same time


def held_out_errors(
    regulation: Regulation, states: States, cells: Cells, split: Split, mean: Tensor, sd: Tensor
) -> dict[str, float]:
    """`regulation_error`, `pooled_error` and `ridge_error`: mean squared error over genes and test cells, in variances
    of the genes; empty where ridge would take too much time.

    Genes are predicted from the cell's regulators, none from itself, and from its state where states are given (labels,
    a numeric column); found states come from the very genes that are predicted.   mean, sd [N]: of every gene.
    """
    positions = regulation.regulators.numpy()
    genes = cells.multiplicity.shape[1]
    if max(len(cells) * genes, len(positions) ** 2 * genes // 64) > LARGEST_RIDGE:
        return {}
    train, test = cells.multiplicity[split.train], cells.multiplicity[split.test]
    given = states.membership if states.origin in ("labels", "numeric") else None
    means, scale = mean.numpy(), sd.numpy()
    total = {"regulation_error": 0.0, "pooled_error": 0.0, "ridge_error": 0.0}
    for first in range(0, len(split.test), CELLS):
        part = split.test[first : first + CELLS]
        true = (cells.multiplicity[part].toarray() - means) / scale
        read = torch.as_tensor(cells.multiplicity[part][:, positions].toarray()), torch.as_tensor(cells.basal[part])
        for name, known in (("regulation_error", given), ("pooled_error", None)):
            with torch.no_grad():
                predicted = regulation(*read, None if known is None else torch.as_tensor(known[part]))
            total[name] += float(np.square(predicted.numpy() - true, dtype=np.float64).sum())
    columns = test.tocsc()
    for some, predicted in ridge_predictions(train, test, positions):
        total["ridge_error"] += float(np.square((predicted - columns[:, some].toarray()) / scale[some]).sum())
    return {name: error / (len(split.test) * genes) for name, error in total.items()}
