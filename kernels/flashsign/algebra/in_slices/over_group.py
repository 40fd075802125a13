"""Totals over the processes of a group, each with other items: a total travels forward, its gradient backward."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, distributed

from flashsign.algebra.monoid import Monoid, Total

ONE_DERIVATIVE = (
    "A fold with group= can be differentiated once, in reverse, because any other derivative would need collectives of "
    "its own: for forward mode, torch.func, batched and second derivatives, fold without a group."
)


def check_member(group: distributed.ProcessGroup) -> None:
    """Raises ValueError in a process outside of the group."""
    if distributed.get_rank(group) < 0:
        raise ValueError("This process is not in the group: only ranks of the group may fold with it.")


def combined_over_group(monoid: Monoid, total: Total, group: distributed.ProcessGroup) -> Total:
    """The total of all ranks' items, equal to the last bit on each: every rank combines in the order of ranks."""
    parts = []
    for part in total:
        part = part.contiguous()
        gathered = [torch.empty_like(part) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(gathered, part, group=group)
        parts.append(gathered)
    return reduce(monoid.combine, zip(*parts, strict=True))


def summed_over_group(grads: Total, group: distributed.ProcessGroup) -> Total:
    """The gradient for the total of the sum of all ranks' losses."""
    sums = tuple(grad.contiguous().clone() for grad in grads)
    for part in sums:
        distributed.all_reduce(part, group=group)
    return sums


def items_before(items: int, like: Tensor, group: distributed.ProcessGroup) -> int:
    """How many items the ranks before this one have."""
    own = torch.tensor([items], device=like.device)
    counts = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(counts, own, group=group)
    return int(sum(int(count) for count in counts[: distributed.get_rank(group)]))
