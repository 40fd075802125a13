"""Training of the ensemble members of a regulation layer: all together, each with its own cells held out.

Each member stops where its own held-out cells are predicted best. Every other member does not read the depth: a total
is partly depth and partly biology, and nothing in the cells tells how much. One that reads it takes for depth what the
regulators do to the total, one that does not takes for regulation what depth does; their mean ranks better than either.

Letters: P members, C cells, N genes, R regulators, B cells of a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.config.schema import RegulationConfig
from grn.model.regulation_layer import Regulation
from grn.regulation.folds import held_out_cells, padded
from grn.regulation.training_cells import FitCells

FOLDS = 10  # a member holds out one of at least so many parts of the cells, or of as many as there are groups
LOOKS = 16  # at the held-out cells, evenly over the steps
AVERAGING = 0.99  # decay of the moving average of weights that is kept
QUIET_S = 15
DENSE = 2**28  # numbers: up to here the cells' targets lie on the device as a whole
UNIT_POWER = 0.5  # a regulator's unit is its sd to this power: between equal say for all and say by abundance


class CellTable:
    """Cells as the layer reads them: inputs [C, R + 1] in units, standardised targets [C, N], weights [C]."""

    def __init__(self, regulation: Regulation, cells: FitCells):
        device, multiplicity = regulation.unit.device, cells.multiplicity
        self.mean, self.sd, self.rows = cells.mean.to(device), cells.sd.to(device), multiplicity
        regulators = torch.as_tensor(multiplicity[:, regulation.regulators.cpu().numpy()].toarray(), device=device)
        self.inputs = regulation.inputs(regulators, torch.as_tensor(cells.basal, device=device))
        self.weight = torch.as_tensor(cells.weight, device=device)
        small = multiplicity.shape[0] * multiplicity.shape[1] <= DENSE
        self.targets = self._standardised(multiplicity) if small else None

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """rows [P, B] -> inputs [P, B, R + 1], targets [P, B, N], weights [P, B, 1]."""
        if self.targets is not None:
            targets = self.targets[rows]
        else:
            targets = self._standardised(self.rows[rows.flatten().cpu().numpy()]).unflatten(0, rows.shape)
        return self.inputs[rows], targets, self.weight[rows][..., None]

    def _standardised(self, multiplicity: sp.csr_matrix) -> Tensor:
        return (torch.as_tensor(multiplicity.toarray(), device=self.mean.device) - self.mean) / self.sd


def new_layer(config: RegulationConfig, members: int, cells: FitCells, *, seed: int, device) -> Regulation:
    """An untrained layer, the same for the same seed, in the units of the fitted cells."""
    torch.manual_seed(seed)
    layer = Regulation(members, len(cells.mean), torch.as_tensor(cells.regulators), config.heads, config.width)
    set_units(layer, cells)
    return layer.to(device)


def set_units(layer: Regulation, cells: FitCells) -> None:
    """Units and centres from the fitted cells and the sds of the genes."""
    basal = cells.basal[cells.rows]
    spread = cells.sd[layer.regulators]
    typical = spread.square().mean().sqrt()
    layer.unit[:-1] = typical * (spread / typical) ** UNIT_POWER
    layer.unit[-1] = max(float(basal.std()), 1e-3) if basal.std() > 0 else 1.0
    fitted = cells.multiplicity[cells.rows]
    mean = np.asarray(fitted[:, layer.regulators.numpy()].mean(0, dtype=np.float64)).ravel()
    layer.centre.copy_(torch.as_tensor(np.append(mean, basal.mean())) / layer.unit)


def train_members(
    layer: Regulation,
    table: CellTable,
    cells: FitCells,
    penalties: Sequence[float],
    held_out: Sequence[int],
    steps: int,
    config: RegulationConfig,
    seed: int,
    say: Callable[[str], None] = lambda line: None,
) -> Tensor:
    """Trains the members in place; returns the held-out error of each, at its best.

    table: of the layer and the cells.   held_out: the fold of each member.   say: hears now and then how far.
    """
    device, members = layer.unit.device, layer.members
    # Random numbers come from the CPU: the same cells in the same order on every device.
    generator = torch.Generator().manual_seed(seed)
    folds = max(FOLDS, members)
    training, validation = held_out_cells(cells.rows, cells.fitted_groups(), held_out, folds, generator)
    looked_at, counted = (each.to(device) for each in padded(validation))
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
    look, spoken = max(1, steps // LOOKS), time.monotonic()
    for step in range(steps):
        rate = min(1.0, (step + 1) / (0.05 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.param_groups[0]["lr"] = config.learning_rate * rate
        drawn = [part[torch.randint(len(part), (config.batch_size,), generator=generator)] for part in training]
        inputs, targets, weight = table(torch.stack(drawn).to(device))
        said = layer.scores()
        predicted = layer.answer(said, inputs) + layer.bias[:, None]
        error = ((predicted - targets).square() * weight).mean(1).sum(-1)  # summed over genes
        loss = (error + strength * layer.penalty(said)).sum()
        if time.monotonic() - spoken > QUIET_S:
            spoken = time.monotonic()
            say(f"fitting the regulation layer: {100 * step // steps} %")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            decay = min(AVERAGING, (step + 1) / (step + 10))
            torch._foreach_lerp_(average, parameters, 1 - decay)
            if (step + 1) % look == 0 or step + 1 == steps:
                current = [parameter.detach().clone() for parameter in parameters]
                _set(parameters, average)
                errors = _held_out_error(layer, table, looked_at, counted)
                better = errors < least_error
                least_error = torch.where(better, errors, least_error)
                for kept, now in zip(best, average, strict=True):
                    kept[better] = now[better]
                _set(parameters, current)
    with torch.no_grad():
        _set(parameters, best)
    return least_error.cpu()


def _held_out_error(layer: Regulation, table: CellTable, rows: Tensor, counted: Tensor) -> Tensor:
    """Weighted squared error of each member on its own cells, [P]. rows [P, V], counted [P, V]: see `padded`."""
    total, count = torch.zeros(len(rows), device=rows.device), torch.zeros(len(rows), device=rows.device)
    for part, real in zip(rows.split(512, dim=1), counted.split(512, dim=1), strict=True):
        inputs, targets, weight = table(part)
        weight = weight * real[..., None]
        total += ((layer.predict(inputs) - targets).square() * weight).mean(2).sum(1)
        count += weight.sum((1, 2))
    return total / count


def _set(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
