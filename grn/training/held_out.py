"""The error of the model's genes on test cells, beside those of simple methods that know what the
model knows.
"""

from __future__ import annotations

import numpy as np
import torch

from grn.bags import Bags
from grn.cells.cells import Cells
from grn.cells.interventions import cut_rows
from grn.cells.preprocessing.split import Split
from grn.evidence.states import States
from grn.model.regulation import Model
from grn.networks.baselines import ridge_predictions
from grn.runtime.processes import ALONE, Processes

LARGEST_RIDGE = 2**27  # most numbers that ridge is fitted on: more take minutes
NAMES = ("error", "ridge_error", "means_error")
CELLS = 128  # test cells that are predicted at the same time


@torch.no_grad()
def held_out_errors(
    model: Model, states: States, cells: Cells, split: Split, processes: Processes = ALONE
) -> dict[str, float]:
    """`error`, `ridge_error` and `means_error` of genes in test cells, over that of their means in
    the training cells (so that 1 is as good as these), each gene in its sds; empty where ridge
    would take too much time.

    Genes are predicted from the cell's regulators and depth, none from itself, and from its state
    where states are given (labels, a numeric column); found states come from the very genes that
    are predicted. All three know the mean of each given state; ridge has slopes of differences
    within states.

    processes: that call this together, with the same model: each predicts some of the cells and, by
        ridge, some of the genes; all return the errors.
    """
    positions = np.flatnonzero(model.is_regulator.cpu().numpy())
    genes = cells.multiplicity.shape[1]
    if max(len(cells) * genes, len(positions) ** 2 * genes // 64) > LARGEST_RIDGE:
        return {}
    model = model.eval()
    device = model.mean.device
    spread = model.identity.sd.cpu().numpy()
    test = cells.multiplicity[split.test].tocsc()
    sums, of_test = (np.asarray(each.sum(0, np.float64)) for each in (cells.multiplicity, test))
    mean = (sums - of_test) / max(len(split.train), 1)
    judged = np.ones((len(split.test), genes), bool)
    if cells.interventions is not None:
        judged = ~cut_rows(cells.interventions, split.test, genes)
    errors, of_means, of_ridge, of_states = (list[float]() for _ in range(4))
    given = None if states.origin == "found" or len(states) < 2 else states.membership
    own = processes.share(len(split.test), CELLS)
    for first in range(own.start, own.stop, CELLS):
        part = split.test[first : first + CELLS]
        true = cells.multiplicity[part].toarray()
        known = None if states.origin == "found" else torch.as_tensor(states.membership[part])
        bags = Bags(torch.as_tensor(true), torch.as_tensor(cells.basal[part]), known).to(device)
        m = model.inputs(bags.multiplicity[:, model.is_regulator], bags.basal)
        cut = None
        if cells.interventions is not None:
            cut = torch.as_tensor(~judged[first : first + CELLS][:, positions], device=device)
        y = model.expected(m, model.states_of(bags, m), cut).mean(0)
        predicted = (model.mean + model.sd * y).cpu().numpy()
        wrong = np.square((predicted - true) / spread, dtype=np.float64)
        errors.append((wrong * judged[first : first + CELLS]).sum())
        of_means.append((np.square((true - mean) / spread) * judged[first : first + CELLS]).sum())
    by_ridge = ridge_predictions(
        cells.multiplicity,
        split.train,
        split.test,
        positions,
        basal=cells.basal,
        membership=given,
        device=device,
        processes=processes,
    )
    for some, predicted, by_means in by_ridge:
        for found, of_genes in ((predicted, of_ridge), (by_means, of_states)):
            wrong = np.square((found - test[:, some].toarray()) / spread[some])
            of_genes.append((wrong * judged[:, some]).sum())
    # Those of all processes, added in the order in which one process has them.
    error, usual, ridge, means = (
        float(sum(processes.joined(np.array(each, float))))
        for each in (errors, of_means, of_ridge, of_states)
    )
    return {
        name: each / max(usual, 1e-9)
        for name, each in zip(NAMES, (error, ridge, means), strict=True)
    }
