"""Cross entropies behind a linear layer: with classes, between two distributions, with weights of listed classes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign import distribution_cross_entropy, linear_cross_entropy, weighted_cross_entropy
from folds_parts.cases import Case, Method, Scale, chunked, drawn

ROW_CHUNK = 1024
"""Rows of the slices of torch's chunked losses: 246 MB of float32 logits."""


def cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    rows, classes, width = scale.rows, scale.classes, scale.width
    make = partial(drawn, device, torch.bfloat16)
    h, c = make(rows, width), make(classes, width, scale=width**-0.5)
    target = torch.randint(0, classes, (rows,), device=device)
    sizes = {"rows": rows, "items": classes, "width": width}
    product, logits = 2.0 * rows * classes * width, 4.0 * rows * classes

    def plain(h: Tensor, c: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, c).to(torch.promote_types(h.dtype, torch.float32)), target)

    def of_rows(h: Tensor, target: Tensor, c: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, c).float(), target, reduction="sum")

    methods = {
        "flashsign": Method(lambda h, c: linear_cross_entropy(h, c, target, backend=backend), 4),
        "torch, eager": Method(plain, 3),
        "torch.compile": Method(torch.compile(plain), 3),
        "torch, chunks of rows": Method(lambda h, c: chunked(of_rows, ROW_CHUNK)(h, target, c, count=2), 4),
        **_torchs_own(target),
        **_liger_classes(target),
        **_cut_cross_entropy(target),
    }
    yield Case("linear cross entropy", sizes, (h, c), methods, plain, product, logits)

    t, d = make(rows, width), make(classes, width, scale=width**-0.5)

    def between(s: Tensor, c: Tensor, t: Tensor, d: Tensor) -> Tensor:
        wide = torch.promote_types(s.dtype, torch.float32)
        return F.cross_entropy(F.linear(s, c).to(wide), F.linear(t, d).to(wide).softmax(-1))

    def between_rows(s: Tensor, t: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(s, c).float(), F.linear(t, d).float().softmax(-1), reduction="sum")

    methods = {
        "flashsign": Method(partial(distribution_cross_entropy, backend=backend), 8),
        "torch, eager": Method(between, 6),
        "torch.compile": Method(torch.compile(between), 6),
        "torch, chunks of rows": Method(lambda s, c, t, d: chunked(between_rows, ROW_CHUNK)(s, t, c, d, count=2), 8),
    }
    yield Case("two distributions", sizes, (h, c, t, d), methods, between, product, logits)
    frozen = t.detach(), d.detach()
    methods = {
        "flashsign": Method(partial(distribution_cross_entropy, backend=backend), 6),
        "torch, eager": methods["torch, eager"],
        **_liger_divergence(rows),
    }
    yield Case("two distributions, frozen teacher", sizes, (h, c, *frozen), methods, between, product, logits)
    del t, d, frozen

    listed = torch.randint(0, classes, (rows, scale.listed), device=device)
    weights = torch.rand(rows, scale.listed, device=device) * 5

    def weighted(h: Tensor, c: Tensor) -> Tensor:
        x = F.linear(h, c)
        log_softmax = x.to(torch.promote_types(x.dtype, torch.float32)).log_softmax(-1)
        return -(weights * log_softmax.gather(1, listed)).sum(-1).mean()

    def weighted_rows(h: Tensor, listed: Tensor, weights: Tensor, c: Tensor) -> Tensor:
        return -(weights * F.linear(h, c).float().log_softmax(-1).gather(1, listed)).sum()

    methods = {
        "flashsign": Method(lambda h, c: weighted_cross_entropy(h, c, listed, weights, backend=backend), 4),
        "torch, eager": Method(weighted, 3),
        "torch, chunks of rows": Method(
            lambda h, c: chunked(weighted_rows, ROW_CHUNK)(h, listed, weights, c, count=3), 4
        ),
    }
    sizes = {**sizes, "listed": scale.listed}
    yield Case("listed weights", sizes, (h, c), methods, weighted, product, logits)


def _torchs_own(target: Tensor) -> dict[str, Method]:
    """torch's chunked linear cross entropy, in the releases that have it."""
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        return {}
    options = torch.nn.LinearCrossEntropyOptions()
    return {"torch's linear_cross_entropy": Method(lambda h, c: F.linear_cross_entropy(h, c, target, options=options))}


def _liger_classes(target: Tensor) -> dict[str, Method]:
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return {}
    narrow, wide = LigerFusedLinearCrossEntropyLoss(), LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)
    return {
        "Liger": Method(lambda h, c: narrow(c, h, target), 3),
        "Liger, float32 sums": Method(lambda h, c: wide(c, h, target), 3),
    }


def _liger_divergence(rows: int) -> dict[str, Method]:
    """The forward divergence: its gradients for the student are those of the cross entropy; a teacher gets none."""
    try:
        from liger_kernel.transformers import LigerFusedLinearJSD
    except ImportError:
        return {}
    divergence = LigerFusedLinearJSD(jsd_beta=0.0)
    return {"Liger, divergence": Method(lambda s, c, t, d: divergence(s, c, t, d, None), 4, shifted=True)}


def _cut_cross_entropy(target: Tensor) -> dict[str, Method]:
    try:
        from cut_cross_entropy import linear_cross_entropy as cut
    except ImportError:
        return {}
    return {
        "cut-cross-entropy, filter off": Method(lambda h, c: cut(h, c, target, filter_eps=None), 4),
        "cut-cross-entropy": Method(lambda h, c: cut(h, c, target), 4),
    }
