"""Training the ensemble members of a regulation layer: all together, each with its own cells held out.

Each member starts from the linear fit of its own cells (linear.py) and keeps the weights with which it predicts its own
held-out cells best, which may be those of the start. Training ends when no member gets better any more.

Letters: P members, C cells, N genes, R regulators, B cells of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grn.config.schema import RegulationConfig
from grn.messages import Say, at_most_every, silent
from grn.model.schedule import average_into, warmup_cosine
from grn.model.signed.regulation_layer import RegulationLayer, of_genes
from grn.process_memory import give_back
from grn.regulation.cell_table import CellTable, centred, sampled
from grn.regulation.folds import padded
from grn.regulation.linear import Penalties, fit_linear

VALIDATIONS = 64  # times that the held-out error is measured, evenly over the steps
PATIENCE = 12  # validations after which training ends where no member got better
MESSAGE_EVERY_S = 15
# Scores of one member, in all states, that gradients are computed for at the same time, and predictions of all heads
# that are computed at the same time where errors are measured. Larger ones do not fit into a processor's caches; a GPU
# would wait for its next operation with smaller ones.
SCORES, SCORES_ON_GPU = 2**22, 2**27
TOGETHER, TOGETHER_ON_GPU = 2**20, 2**28


class RegulationSettings(RegulationConfig):
    """Sizes of the regulation layer and of its fit, which a configuration does not set; tests and benchmarks may.

    heads: with a second one, weak edges of a target are found, too.   width: of a head.   batch_size: per member.
    """

    heads: int = 2
    width: int = 64
    batch_size: int = 64
    learning_rate: float = 5e-2


def start(layer: RegulationLayer, member: int, table: CellTable, rows: Tensor, found: Penalties) -> None:
    """Sets a member to the linear fit of the rows of the table."""
    rows = sampled(layer, table, rows, member)
    x, depth, states = centred(layer, table, rows)
    targets = table.ranks if layer.predicts_ranks[member] else table.values
    y = targets.columns(rows, like=x)
    fit = fit_linear(x, y, states, depth if layer.reads_depth[member] else None, layer.regulators, found)
    layer.start_from(member, fit.slopes, fit.deviations, fit.bias)


def train_members(
    layer: RegulationLayer,
    table: CellTable,
    config: RegulationSettings,
    *,
    training: Sequence[Tensor],
    held_out: Sequence[Tensor],
    seed: int,
    factor: Tensor | None = None,
    say: Say = silent,
) -> Tensor:
    """Trains the members in place; returns the lowest held-out error of each, [P], with which its weights are kept.

    training, held_out: rows of the table for each member.   factor [N, R]: see Penalties.
    """
    device = layer.unit.device
    # Random numbers come from the CPU: the same cells in the same order on every device.
    generator = torch.Generator().manual_seed(seed)
    rows, counted = (each.to(device) for each in padded(held_out))
    strength = layer.penalty / torch.tensor([[len(part)] for part in training], device=device)

    parameters: list[Tensor] = list(layer.parameters())
    # One member after the other, which has no part in the others' loss: what one of them computes is a fraction of all.
    members = [layer.part(number) for number in range(layer.members)]
    # Fused: other ways to step take two more tables of the member's size for a moment. A GPU has room for them.
    fused = True if device.type == "cpu" else None
    optimisers = [torch.optim.Adam(one.parameters(), lr=config.learning_rate, fused=fused) for one in members]
    slices = genes_at_once(layer)
    parts = [[(genes, layer.part(number, genes)) for genes in slices] for number in range(layer.members)]
    for one in members:  # they take turns, so that one memory does for the gradients of all
        for trained, first in zip(one.parameters(), members[0].parameters(), strict=True):
            trained.grad = torch.zeros_like(trained) if one is members[0] else first.grad
    average = [parameter.detach().clone() for parameter in parameters]
    best = [parameter.detach().clone() for parameter in parameters]
    least_error = held_out_errors(layer, table, rows, counted)
    validate_every = max(1, config.steps // VALIDATIONS)
    progress = at_most_every(MESSAGE_EVERY_S, say)
    within = f" within {layer.states} states" if layer.states > 1 else ""
    since_better = 0
    for step in range(config.steps):
        rate = warmup_cosine(step, config.steps, 0.05 * config.steps, from_start=True)
        drawn = [part[torch.randint(len(part), (config.batch_size,), generator=generator)] for part in training]
        progress(f"Fitting the regulation layer{within}: {100 * step // config.steps} % of the steps are done.")
        for one, optimiser, own, weight, pieces in zip(members, optimisers, drawn, strength, parts, strict=True):
            inputs, states, targets = table.batch(own[None].to(device), one.predicts_ranks)
            for genes, part in pieces:
                error = (part.predict(inputs, states) - targets[..., genes]).square().mean(1)  # [1, n]
                size = part.squared_slopes(None if factor is None else factor[genes])
                add_gradients((error + weight[genes] * size).sum(), part, genes, one)
            optimiser.param_groups[0]["lr"] = config.learning_rate * rate
            optimiser.step()
        with torch.no_grad():
            average_into(average, parameters, step)
            if (step + 1) % validate_every and step + 1 < config.steps:
                continue
            give_back()  # what the gradients used makes room for the predictions
            _exchange(parameters, average)
            errors = held_out_errors(layer, table, rows, counted)
            _exchange(parameters, average)
            better = errors < least_error
            least_error = torch.where(better, errors, least_error)
            for kept, now in zip(best, average, strict=True):
                kept[better] = now[better]
            since_better = 0 if better.any() else since_better + 1
            if since_better == PATIENCE:
                break
    with torch.no_grad():
        for parameter, value in zip(parameters, best, strict=True):
            parameter.copy_(value)
    return least_error.cpu()


@torch.no_grad()
def held_out_errors(layer: RegulationLayer, table: CellTable, rows: Tensor, counted: Tensor) -> Tensor:
    """Squared error of each member on its own held-out cells, [P]. rows, counted [P, V]: see `padded`."""
    total = torch.zeros(len(rows), device=rows.device)
    cells = max(1, (TOGETHER_ON_GPU if layer.unit.is_cuda else TOGETHER) // (layer.heads * layer.genes))
    # One member after the other: the scores of all of them would be large, and are computed anew for each part.
    for member in range(layer.members):
        one = slice(member, member + 1)
        for part, counts in zip(rows[one].split(cells, dim=1), counted[one].split(cells, dim=1), strict=True):
            inputs, states, targets = table.batch(part, layer.predicts_ranks[one])
            error = (layer.predict(inputs, states, one) - targets).square().mean(2)
            total[one] += (error * counts).sum(1)
    return total / counted.sum(1)


def genes_at_once(layer: RegulationLayer) -> list[slice]:
    """Slices of the genes with at most SCORES scores of one member each, as many in each as possible."""
    a_gene = layer.heads * layer.centre.numel() if layer.deviates else layer.heads * layer.centre.shape[1]
    count = -(-layer.genes // max(1, (SCORES_ON_GPU if layer.unit.is_cuda else SCORES) // a_gene))
    size = -(-layer.genes // count)
    return [slice(first, min(first + size, layer.genes)) for first in range(0, layer.genes, size)]


def add_gradients(loss: Tensor, part: RegulationLayer, genes: slice, member: RegulationLayer) -> None:
    """Writes the gradients of the genes of a member's part into the member's; those that all genes share are summed."""
    names, parameters = zip(*part.named_parameters(), strict=True)
    for name, found in zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        parameter = member.get_parameter(name)
        if found is None or parameter.grad is None:  # states that do not deviate
            continue
        if found.shape != parameter.shape:
            of_genes(name, parameter.grad, genes).copy_(found)
        elif genes.start:
            parameter.grad.add_(found)
        else:
            parameter.grad = found


def _exchange(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """A member at a time, so that no copy of all is needed."""
    for parameter, value in zip(parameters, values, strict=True):
        for one, other in zip(parameter, value, strict=True):
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)
