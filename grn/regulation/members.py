"""Training the ensemble members of a regulation layer: all together, each with its own cells held out.

Each member keeps the weights with which it predicts its own held-out cells best. Every other member does not read the
sequencing depth (fit.py). A cell's total is partly depth and partly biology, and the cells do not show in what
proportion: a member that reads the depth attributes to it what the regulators do to the total, and one that does not
attributes to the regulators what the depth does. Their mean ranks edges better than either.

Letters: P members, C cells, N genes, R regulators, B cells of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.config.schema import RegulationConfig
from grn.messages import Say, at_most_every, silent
from grn.model.regulation_layer import RegulationLayer
from grn.regulation.folds import held_out_cells, padded
from grn.regulation.training_cells import TrainingCells

FOLDS = 10  # a member holds out one of at least this many folds of the cells, or of as many as there are groups
VALIDATIONS = 16  # times that the held-out error is measured, evenly over the steps
AVERAGING = 0.99  # decay of the moving average of weights that is kept
MESSAGE_EVERY_S = 15
DENSE = 2**28  # up to this many numbers, the targets of all cells are kept on the device
# A regulator's unit is its sd to this power: 1 gives all regulators the same influence, 0 influence by abundance.
UNIT_POWER = 0.5


class CellTable:
    """Cells as the layer reads them: inputs [C, R + 1] in units, standardised targets [C, N], weights [C].

    Called with rows, it returns a batch for each member.
    """

    def __init__(self, layer: RegulationLayer, cells: TrainingCells):
        device, multiplicity = layer.unit.device, cells.multiplicity
        self.mean, self.sd, self.multiplicity = cells.mean.to(device), cells.sd.to(device), multiplicity
        regulators = torch.as_tensor(multiplicity[:, layer.regulators.cpu().numpy()].toarray(), device=device)
        self.inputs = layer.inputs(regulators, torch.as_tensor(cells.basal, device=device))
        self.weight = torch.as_tensor(cells.weight, device=device)
        small = multiplicity.shape[0] * multiplicity.shape[1] <= DENSE
        self.targets = self._standardised(multiplicity) if small else None

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """rows [P, B] -> inputs [P, B, R + 1], targets [P, B, N], weights [P, B, 1]."""
        if self.targets is not None:
            targets = self.targets[rows]
        else:
            targets = self._standardised(self.multiplicity[rows.flatten().cpu().numpy()]).unflatten(0, rows.shape)
        return self.inputs[rows], targets, self.weight[rows][..., None]

    def _standardised(self, multiplicity: sp.csr_matrix) -> Tensor:
        return (torch.as_tensor(multiplicity.toarray(), device=self.mean.device) - self.mean) / self.sd


def new_layer(config: RegulationConfig, members: int, cells: TrainingCells, *, seed: int, device) -> RegulationLayer:
    """An untrained layer in the units of the fitted cells; its initial values depend on the seed alone."""
    torch.manual_seed(seed)
    layer = RegulationLayer(members, len(cells.mean), torch.as_tensor(cells.regulators), config.heads, config.width)
    set_units(layer, cells)
    return layer.to(device)


def set_units(layer: RegulationLayer, cells: TrainingCells) -> None:
    """Sets the layer's units (from the genes' sds) and centres (from the fitted cells)."""
    basal = cells.basal[cells.rows]
    spread = cells.sd[layer.regulators]
    typical = spread.square().mean().sqrt()
    layer.unit[:-1] = typical * (spread / typical) ** UNIT_POWER
    layer.unit[-1] = max(float(basal.std()), 1e-3) if basal.std() > 0 else 1.0
    fitted = cells.multiplicity[cells.rows]
    mean = np.asarray(fitted[:, layer.regulators.numpy()].mean(0, dtype=np.float64)).ravel()
    layer.centre.copy_(torch.as_tensor(np.append(mean, basal.mean())) / layer.unit)


def train_members(
    layer: RegulationLayer,
    table: CellTable,
    cells: TrainingCells,
    config: RegulationConfig,
    *,
    penalties: Sequence[float],
    held_out_folds: Sequence[int],
    steps: int,
    seed: int,
    say: Say = silent,
) -> Tensor:
    """Trains the members in place; returns the lowest held-out error of each, [P], with which its weights are kept.

    table: of the layer and the cells.   penalties, held_out_folds: of each member.   say: gets a line of progress now
    and then.
    """
    device, members = layer.unit.device, layer.members
    # Random numbers come from the CPU: the same cells in the same order on every device.
    generator = torch.Generator().manual_seed(seed)
    folds = max(FOLDS, members)
    training, validation = held_out_cells(cells.rows, cells.fitted_groups(), held_out_folds, folds, generator)
    held_out, counted = (each.to(device) for each in padded(validation))
    strength = torch.stack(
        [
            torch.as_tensor(penalty, dtype=torch.float32, device=device) / len(part)
            for penalty, part in zip(penalties, training, strict=True)
        ]
    )

    parameters: list[Tensor] = list(layer.parameters())
    optimiser = torch.optim.Adam(parameters, lr=config.learning_rate)
    average = [parameter.detach().clone() for parameter in parameters]
    best = [parameter.detach().clone() for parameter in parameters]
    least_error = torch.full((members,), math.inf, device=device)
    validate_every = max(1, steps // VALIDATIONS)
    progress = at_most_every(MESSAGE_EVERY_S, say)
    for step in range(steps):
        rate = min(1.0, (step + 1) / (0.05 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.param_groups[0]["lr"] = config.learning_rate * rate
        drawn = [part[torch.randint(len(part), (config.batch_size,), generator=generator)] for part in training]
        inputs, targets, weight = table(torch.stack(drawn).to(device))
        scores = layer.scores()
        predicted = layer.predict_from(scores, inputs) + layer.bias[:, None]
        error = ((predicted - targets).square() * weight).mean(1).sum(-1)  # summed over genes
        loss = (error + strength * layer.squared_slopes(scores)).sum()
        progress(f"Fitting the regulation layer: {100 * step // steps} % of the steps are done.")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            decay = min(AVERAGING, (step + 1) / (step + 10))
            torch._foreach_lerp_(average, parameters, 1 - decay)
            if (step + 1) % validate_every == 0 or step + 1 == steps:
                current = [parameter.detach().clone() for parameter in parameters]
                _set(parameters, average)
                errors = _held_out_errors(layer, table, held_out, counted)
                better = errors < least_error
                least_error = torch.where(better, errors, least_error)
                for kept, now in zip(best, average, strict=True):
                    kept[better] = now[better]
                _set(parameters, current)
    with torch.no_grad():
        _set(parameters, best)
    return least_error.cpu()


def _held_out_errors(layer: RegulationLayer, table: CellTable, rows: Tensor, counted: Tensor) -> Tensor:
    """Weighted squared error of each member on its own held-out cells, [P]. rows, counted [P, V]: see `padded`."""
    total, count = torch.zeros(len(rows), device=rows.device), torch.zeros(len(rows), device=rows.device)
    for part, counts in zip(rows.split(512, dim=1), counted.split(512, dim=1), strict=True):
        inputs, targets, weight = table(part)
        weight = weight * counts[..., None]
        total += ((layer.predict(inputs) - targets).square() * weight).mean(2).sum(1)
        count += weight.sum((1, 2))
    return total / count


def _set(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
