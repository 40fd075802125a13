"""The error of an output against float64, on a sample of its rows."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_parts.methods import Inputs
from flashsign.reference import reference_spherical_attention

ROWS = 256
NEAR = 0.01


def accuracy(output: Tensor, inputs: Inputs, eps: float, *, head: int = -1, seed: int = 0) -> dict[str, float]:
    """Fraction of elements within 0.01, and ||o - ref|| / ||ref||, over 256 queries of one head of the first cell.

    The reference reads the same rounded inputs, so this is the error of the computation alone.
    """
    random = torch.Generator().manual_seed(seed)
    rows = torch.randperm(output.shape[2], generator=random)[:ROWS].to(output.device)
    q, k, v = (x.detach()[:1, head, None].double() for x in inputs[:3])
    reference = reference_spherical_attention(q[:, :, rows], k, v, inputs.m[:1].double(), eps)[0, 0]
    return distance(output.detach()[0, head, rows], reference)


def distance(output: Tensor, reference: Tensor) -> dict[str, float]:
    error = output.double() - reference
    return {
        "within_001": float((error.abs() <= NEAR).double().mean()),
        "relative_error": float(error.norm() / reference.norm()),
    }
