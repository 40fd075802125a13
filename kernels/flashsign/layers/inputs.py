"""What every layer does with its inputs first: autocast as torch's own layers do, and the checks of a linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch


def as_autocast(*tensors: Tensor | None) -> Any:
    """The tensors in autocast's dtype where it is enabled, as torch's linear layers take them; else as they are."""
    kind = next(x.device.type for x in tensors if x is not None)
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    narrow = (x is not None and x.is_floating_point() and x.dtype != torch.float64 for x in tensors)
    return tuple(x.to(dtype) if x is not None and cast else x for x, cast in zip(tensors, narrow, strict=True))


def check_layer(h: Tensor, weight: Tensor, bias: Tensor | None, name: str = "h", of_weight: str = "weight") -> None:
    """Raises ShapeMismatch unless h [..., D], weight [V, D] and bias [V] fit together in shape, dtype and device."""
    found = f"{name} {list(h.shape)}, {of_weight} {list(weight.shape)}"
    if h.ndim < 2 or weight.ndim != 2 or h.shape[-1] != weight.shape[1]:
        raise ShapeMismatch(f"{name} must be [..., D] and {of_weight} [V, D] of the same width; found {found}.")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeMismatch(f"bias must be [{len(weight)}]; found {list(bias.shape)}.")
    kinds = {(x.dtype, x.device) for x in (h, weight)}
    if bias is not None:
        # A bias may have the float32 of the sums that it is added to, beside rows and a layer of 16 bits.
        sums = torch.promote_types(h.dtype, torch.float32)
        kinds |= {(h.dtype if bias.dtype == sums else bias.dtype, bias.device)}
    if len(kinds) > 1 or not h.is_floating_point():
        kind = " and ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ShapeMismatch(f"{name} and its layer must have one floating dtype and device; found {kind}.")
