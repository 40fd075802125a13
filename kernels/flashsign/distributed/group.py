"""What every call with a group of processes needs: who may call, which derivatives there are, the one collective."""

from __future__ import annotations

from torch import Tensor, distributed

from flashsign.eager.transforms import transformed

ONE_DERIVATIVE = (
    "Attention over genes split by a group can be differentiated once, in reverse, as every further derivative would "
    "need collectives of its own: leave forward mode, torch.func, batched and second derivatives to calls without one."
)


def check_member(group: distributed.ProcessGroup) -> None:
    """Raises ValueError in a process outside of the group."""
    if distributed.get_rank(group) < 0:
        raise ValueError("This process is not in the group: only a group's own ranks may call attention with it.")


def refuse_transforms() -> None:
    """Raises NotImplementedError under forward mode and torch.func."""
    if transformed():
        raise NotImplementedError(ONE_DERIVATIVE)


def sum_over_ranks(sums: Tensor, group: distributed.ProcessGroup) -> None:
    """Every rank's sums become the total of all. Calls without bags are so on all ranks, and need no collective."""
    if sums.numel():
        distributed.all_reduce(sums, group=group)
