"""Choice of the backend of a layer that is a fold: its kernels, or torch in slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from flashsign.attention.dispatch import Backend, choose_backend
from flashsign.eager.transforms import transformed
from flashsign.tuning.device import facts_of

FoldKernel = Literal["logits", "mlp", "rms_norm", "attention"]
WIDEST = {"mlp": 256, "rms_norm": 8192, "attention": 128}
"""The widest rows of which a kernel holds whole tiles; logits are sums over tiles of any number of
features.
"""


def choose_fold(
    backend: Backend,
    kernel: FoldKernel,
    rows: Tensor,
    widths: Sequence[int] = (),
    narrow: Sequence[int] = (),
) -> Literal["triton", "torch"]:
    """Return the backend of a layer that is a fold: its kernels, or torch in slices.

    rows: the layer's input; widths: sizes of the last axes of all matrices; narrow: those of rows
        that a tile holds whole, limited by WIDEST. Raises as choose_backend.
    """
    if torch.compiler.is_compiling():
        traced = "torch.compile does not see the folds' kernels"
        return choose_backend(backend, facts_of(rows), rows.dtype, reason=traced)[0]
    unordered = kernel == "mlp" and torch.are_deterministic_algorithms_enabled()
    return choose_backend(
        backend,
        facts_of(rows),
        rows.dtype,
        in_transform=transformed(),
        reason=why_no_kernel(kernel, rows, widths, narrow),
        preference="The kernel adds the gradients of rows in any order" if unordered else "",
    )[0]


def why_no_kernel(
    kernel: FoldKernel, rows: Tensor, widths: Sequence[int], narrow: Sequence[int]
) -> str:
    """Return the reason why the shapes of a fold fit no kernel, "" where they do; arguments as of
    choose_fold.
    """
    if not rows.numel() or 0 in widths:
        return "There is nothing to compute"
    step = 16 // rows.element_size()
    if any(width % step for width in widths):
        return (
            "Rows of the kernels' matrices are multiples of 16 bytes, and these have widths of "
            f"{list(widths)}"
        )
    most = WIDEST.get(kernel)
    if most is not None and max(narrow, default=0) > most:
        return f"The kernel's tiles are at most {most} wide, and these would be {max(narrow)}"
    return ""
