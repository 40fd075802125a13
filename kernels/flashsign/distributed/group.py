"""What every call with a process group needs: the checks of rank and derivative, and the sum over ranks."""

from __future__ import annotations

from torch import Tensor, distributed

from flashsign.eager.transforms import transformed

ONE_DERIVATIVE = (
    "Attention with group= can be differentiated once, in reverse, because any other derivative would need collectives "
    "of its own: for forward mode, torch.func, batched and second derivatives, call it without a group."
)


def check_member(group: distributed.ProcessGroup) -> None:
    """Raises ValueError in a process outside of the group."""
    if distributed.get_rank(group) < 0:
        raise ValueError("This process is not in the group: only ranks of the group may call attention with it.")


def refuse_transforms() -> None:
    """Raises NotImplementedError under forward mode and torch.func."""
    if transformed():
        raise NotImplementedError(ONE_DERIVATIVE)


def sum_over_ranks(sums: Tensor, group: distributed.ProcessGroup) -> None:
    """Adds up sums over all ranks, in place. Without bags there are none, on any rank, and no collective is made."""
    if sums.numel():
        distributed.all_reduce(sums, group=group)
