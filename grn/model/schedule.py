"""The learning rate and the moving average of the weights over the steps of a fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def warmup_cosine(step: int, steps: int, warmup: float, *, from_start: bool = False) -> float:
    """What the learning rate is multiplied by in a step, 0 to 1: a linear warm-up of `warmup` steps, then a cosine that
    ends at 0 after `steps` steps. from_start: the cosine begins with the first step and multiplies the warm-up."""
    after = min(max(0, step - warmup) / max(1, steps - warmup), 1.0)
    angle = math.pi * step / steps if from_start else math.pi * after
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(angle))


@torch.no_grad()
def average_into(averages: Sequence[Tensor], weights: Sequence[Tensor], step: int, decay: float = 0.98) -> None:
    """Moves the averages towards the weights in place; over the first steps, where few weights have been seen, faster
    than by 1 - decay."""
    torch._foreach_lerp_(list(averages), list(weights), 1 - min(decay, (step + 1) / (step + 10)))
