"""Are the folds' kernels right with all block sizes of their tables, on the GPU that these are for?

Each kernel is compared with float64 at sizes that no tile divides and at sizes that all do, because
compilers make two kernels of these. Errors are relative to the size of the true tensor; bars are
several times the rounding of a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign.folds.kernels import fold_tables
from flashsign.tuning.block_sizes import BlockSizes

BARS = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}
MLPS = {
    "mlp_forward": fold_tables.MLP_FORWARD,
    "mlp_backward": fold_tables.MLP_BACKWARD,
    "gated_forward": fold_tables.GATED_FORWARD,
    "gated_backward": fold_tables.GATED_BACKWARD,
}
LOGITS = {
    "class_totals": fold_tables.CLASS_TOTALS,
    "class_gradients": fold_tables.CLASS_GRADIENTS,
    "distribution_totals": fold_tables.DISTRIBUTION_TOTALS,
    "distribution_gradients": fold_tables.DISTRIBUTION_GRADIENTS,
}
ATTENTION = {
    "attention": fold_tables.ATTENTION,
    "attention_queries": fold_tables.ATTENTION_QUERIES,
    "attention_keys": fold_tables.ATTENTION_KEYS,
}
NORMALISERS = ("spherical", "l1", "squared_relu", "softmax")
Task = tuple[str, BlockSizes, str, int, str, bool]


def checked(smoke: bool, device: torch.device) -> pd.DataFrame:
    """A row for each kernel, block sizes, dtype, width and size: the error, and whether it is
    within its bar.
    """
    tasks = list(_tasks())
    if smoke:
        small = [
            task
            for task in tasks
            if task[2] == "float32" and (task[3] <= 16 or task[0] in LOGITS) and task[1].own <= 64
        ]
        return pd.DataFrame([_check((*task, True)) for task in small])
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        return pd.DataFrame(list(pool.map(_check, [(*task, False) for task in tasks])))


def _tasks() -> Iterator[tuple[str, BlockSizes, str, int, str]]:
    """Kernel, block sizes, dtype, width, and the activation or the row of attention."""
    for name, table in (MLPS | LOGITS | ATTENTION).items():
        for (size, width), entries in table.items():
            for sizes in entries:
                for dtype in ("float32",) if size == 4 else ("float16", "bfloat16"):
                    if name in MLPS:
                        kinds: tuple[str, ...] = (
                            ("silu",) if name.startswith("gated") else ("gelu",)
                        )
                    else:
                        kinds = NORMALISERS if name in ATTENTION else ("",)
                    for kind in kinds:
                        yield name, sizes, dtype, width or 200, kind


def _check(task: Task) -> dict[str, Any]:
    name, sizes, dtype, width, kind, smoke = task
    torch.manual_seed(0)
    of = _mlp if name in MLPS else _logits if name in LOGITS else _attention
    row = {"kernel": name, **vars(sizes), "dtype": dtype, "width": width, "kind": kind}
    try:
        errors = [
            of(name, sizes, getattr(torch, dtype), width, kind, even, smoke)
            for even in (False, True)
        ]
    except Exception as failure:
        return {
            **row,
            "error": math.nan,
            "good": False,
            "status": f"{type(failure).__name__}: {failure}"[:200],
        }
    # |s| has a jump in its slope, and a score that is nearly 0 may be rounded to its other side.
    bar = BARS[dtype] * (10 if kind == "l1" else 1)
    return {
        **row,
        "error": max(errors),
        "good": all(error < bar for error in errors),
        "status": "ok",
    }


def _draw(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (torch.randn(shape, device=device) * scale).to(dtype)


def _wide(*tensors: Tensor) -> list[Tensor]:
    return [x.double().requires_grad_() for x in tensors]


def _worst(found: Any, true: Any) -> float:
    errors = [
        float((x.detach().double() - y.detach()).norm() / y.detach().norm().clamp(min=1e-300))
        for x, y in zip(found, true, strict=True)
    ]
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def _mlp(
    name: str, sizes: BlockSizes, dtype: torch.dtype, width: int, kind: str, even: bool, smoke: bool
) -> float:
    from flashsign.folds.kernels import hidden_layer

    forward, gated = name.endswith("forward"), name.startswith("gated")
    rows, hidden = ((16_384, 1024) if forward else (1024, 16_384)) if even else (1000, 1016)
    if smoke:
        rows, hidden = (64, 64) if even else (39, 56)
    x, up = _draw(rows, width, dtype=dtype), _draw(hidden, width, dtype=dtype, scale=width**-0.5)
    down = _draw(width, hidden, dtype=dtype, scale=hidden**-0.5)
    gate = _draw(hidden, width, dtype=dtype, scale=width**-0.5) if gated else None
    bias, down_bias = (
        (None, None) if even else (_draw(hidden, dtype=dtype), _draw(width, dtype=dtype))
    )
    inputs = x, up, down, bias, gate
    true = [None if tensor is None else _wide(tensor)[0] for tensor in inputs]
    act = {"gelu": F.gelu, "silu": F.silu}[kind]
    units = F.linear(true[0], true[1], true[3])
    output = (act(F.linear(true[0], true[4])) * units if gated else act(units)) @ true[2].mT
    if forward:
        found = hidden_layer.forward(x, up, down, bias, down_bias, gate, kind, sizes)
        return _worst([found], [output if down_bias is None else output + down_bias])
    grad = _draw(rows, width, dtype=dtype)
    slopes = torch.autograd.grad(output, [x for x in true if x is not None], grad.double())
    found = hidden_layer.backward(grad, x, up, down, bias, gate, kind, sizes)
    return _worst([x for x in found if x is not None], slopes)


def _logits(
    name: str, sizes: BlockSizes, dtype: torch.dtype, width: int, kind: str, even: bool, smoke: bool
) -> float:
    from flashsign.folds.kernels import entropies

    rows, classes = (
        ((64, 128) if even else (39, 77)) if smoke else (2048, 8192) if even else (1000, 5003)
    )
    h = _draw(rows, width, dtype=dtype)
    c = _draw(classes, width, dtype=dtype, scale=2 * width**-0.5)
    g = torch.full((rows,), 1 / rows, device=h.device)
    if name.startswith("class"):
        bias = None if even else _draw(classes, dtype=dtype)
        target = torch.randint(0, classes, (rows,), device=h.device)
        inputs = (h, c) if bias is None else (h, c, bias)
        true = _wide(*inputs)
        x = F.linear(*true)
        if name == "class_totals":
            found = entropies.class_totals(h, c, bias, target, sizes=sizes)
            return _worst(found, (x.logsumexp(-1), x.gather(1, target[:, None])[:, 0]))
        p = x.logsumexp(-1).float().detach()
        slopes = torch.autograd.grad(F.cross_entropy(x, target), true)
        wanted = (True,) * 3
        gradients = entropies.class_gradients(
            h, c, bias, target, p, (g, g, None), wanted, sizes=sizes
        )
        return _worst([x for x in gradients if x is not None], slopes)
    t = _draw(rows, width, dtype=dtype)
    d = _draw(classes, width, dtype=dtype, scale=2 * width**-0.5)
    true = _wide(h, c, t, d)
    x, y = true[0] @ true[1].mT, true[2] @ true[3].mT
    totals = x.logsumexp(-1), y.logsumexp(-1), (y.softmax(-1) * x).sum(-1)
    if name == "distribution_totals":
        return _worst(entropies.distribution_totals(h, c, t, d, sizes), totals)
    slopes = torch.autograd.grad(F.cross_entropy(x, y.softmax(-1)), true)
    known = tuple(total.float().detach() for total in totals)
    return _worst(
        entropies.distribution_gradients(h, c, t, d, known, g, (True,) * 4, sizes), slopes
    )


def _attention(
    name: str, sizes: BlockSizes, dtype: torch.dtype, width: int, kind: str, even: bool, smoke: bool
) -> float:
    from flashsign.folds.kernels import attention_template as attention
    from flashsign.folds.kernels.attention_rows import ROWS

    queries, keys = (
        ((64, 64) if even else (37, 41)) if smoke else (2048, 2048) if even else (1001, 999)
    )
    heads, key_heads, eps = 4, 4 if even else 2, 1e-3
    q = _draw(
        2,
        heads,
        queries,
        width,
        dtype=dtype,
        scale=1.0 if kind in ("spherical", "l1") else width**-0.5,
    )
    k, v = (_draw(2, key_heads, keys, width, dtype=dtype) for _ in range(2))
    grad = _draw(2, heads, queries, width, dtype=dtype)
    m = None if even else torch.rand(2, key_heads, keys, device=q.device) + 0.1
    true = _wide(*((q, k, v) if m is None else (q, k, v, m)))
    all_m = true[3] if m is not None else true[1].new_ones(2, key_heads, keys)
    all_k, all_v, all_m = (
        x.repeat_interleave(heads // key_heads, 1) for x in (true[1], true[2], all_m)
    )
    raw = true[0] @ all_k.mT
    s = raw * all_m[:, :, None]
    if kind == "softmax":
        output = torch.softmax(raw + all_m[:, :, None].log(), -1) @ all_v
    elif kind == "spherical":
        t = (all_m.square() * all_k.square().sum(-1)).sum(-1)[..., None, None]
        floor = eps * true[0].square().sum(-1, keepdim=True) * t
        output = s @ all_v / (s.square().sum(-1, keepdim=True) + floor).sqrt()
    else:
        a1, a2 = (s, s.abs()) if kind == "l1" else (s.relu().square(),) * 2
        output = a1 @ all_v / a2.sum(-1, keepdim=True)
    row = ROWS[kind]
    o, totals = attention.forward(row, q, k, v, m, eps, sizes if name == "attention" else None)
    if name == "attention":
        return _worst([o], [output])
    slopes = torch.autograd.grad(output, true, grad.double())
    of_queries = name == "attention_queries"
    own = (sizes, None) if of_queries else (None, sizes)
    found = [
        x for x in attention.backward(row, grad, q, k, v, m, o, totals, eps, *own) if x is not None
    ]
    return _worst(found[:1] if of_queries else found[1:], slopes[:1] if of_queries else slopes[1:])
