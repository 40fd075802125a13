"""What the model expects of its genes when regulators have other multiplicities than they were
measured with.

    x(0) = measured, the perturbed regulators at their new values
    effect(t) = y(x(t - 1)) - y(measured) + added            of every gene, in its sds
    x(t) = max(measured + sd effect(t), 0), the perturbed regulators at their new values

y: what the signed blocks say. Block 1 reads the regulators as they were measured, block 2 the
model's estimates of them, which move by as much as the regulators do. What genes read of the basal
gene stays as it is: it tells which cell it is. Only the difference of two predictions counts, so
that a cell in which nothing is perturbed does not change. One step reads direct effects; further
steps let regulators that changed change their own targets. Each ensemble member goes its own way.
added: what direct effects are larger by than the model has them, where their size is known without
its penalty (certain_slopes.py). It is the same in each step: regulators change by it, and what
these do to others is the model's, so that further steps settle where those of the model alone do.

Letters: P members, C cells, N genes, R regulators, S states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from grn.model.regulation import Model

NUMBERS = 2**25  # most numbers of one prediction (128 MiB)


@torch.no_grad()
def effects(
    model: Model,
    measured: Tensor,
    basal: Tensor,
    states: Tensor,
    fixed: Mapping[int, Tensor],
    steps: int,
    added: Tensor | None = None,
) -> Tensor:
    """Changes of the predictions in sds of each gene, [P, C, N], for few cells at a time.

    measured [C, R]: multiplicities of the regulators. basal [C]. states [C, S].
    fixed: column of a regulator -> its new multiplicities [C].
    steps: at least 1.
    added [P, C, N]: see above; None: nothing.
    """
    members, columns = model.config.members, list(fixed)
    added = measured.new_zeros(model.genes) if added is None else added
    of_regulators = added[..., model.regulators]
    values = torch.stack(list(fixed.values()), 1).to(measured)
    sd = model.sd[model.is_regulator]
    m = model.inputs(measured, basal)
    y = model.among(m, states)
    x = measured.expand(members, -1, -1).clone()
    x[..., columns] = values
    change = inputs_of_members(model, x, basal) - m
    among = model.among(m + change, states) - y + of_regulators
    for _ in range(steps - 1):
        x = (measured + sd * among).clamp(min=0)
        x[..., columns] = values
        change = inputs_of_members(model, x, basal) - m
        among = model.among(m + change, states) - y + of_regulators
    keys = model.corrected(m, y if model.layered else None, states)
    effect = measured.new_zeros(members, len(measured), model.genes)
    effect[..., model.regulators] = among
    for pick in torch.arange(len(model.targets), device=m.device).split(model.genes_at_once):
        before, after = (
            model.blocks[1](each, states, pick) for each in (keys, keys + change / model.unit)
        )
        effect[..., model.targets[pick]] = after - before + added[..., model.targets[pick]]
    return effect


def inputs_of_members(model: Model, x: Tensor, basal: Tensor) -> Tensor:
    """`Model.inputs` of other multiplicities for each member: [P, C, R] -> [P, C, R + 1]."""
    return model.inputs(x.flatten(0, 1), basal.repeat(len(x))).unflatten(0, x.shape[:2])


def slices(model: Model, cells: int) -> Iterator[slice]:
    """So many cells at a time that the predictions for them fit into NUMBERS."""
    step = max(1, NUMBERS // (model.config.members * model.genes))
    return (slice(first, min(first + step, cells)) for first in range(0, cells, step))
