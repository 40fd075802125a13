"""Are the folds' kernels right with all block sizes of their tables, on the GPU that these are for?

Each layer is compared with itself in torch and float64, output and gradients, at sizes that no tile
divides and at sizes that all do, because compilers make two kernels of these. Errors are relative
to the size of the true tensor; bars are several times the rounding of a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor

from flashsign import distribution_cross_entropy, linear_cross_entropy, mlp, normalised_attention
from flashsign.folds.kernels import fold_tables
from flashsign.tuning.accuracy import error
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
TABLES = MLPS | LOGITS | ATTENTION
Task = tuple[str, BlockSizes, str, int, str, bool]


def checked(smoke: bool, device: torch.device) -> pd.DataFrame:
    """A row for each kernel, block sizes, dtype and width: the largest error, and whether it is
    within its bar.
    """
    if smoke:
        few = (task for task in _tasks(smoke) if task[2] == "float32" and task[1].own <= 64)
        return pd.DataFrame(_check(task) for task in few if task[3] <= 16 or task[0] in LOGITS)
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        return pd.DataFrame(pool.map(_check, _tasks(smoke)))


def _tasks(smoke: bool) -> Iterator[Task]:
    """Kernel, block sizes, dtype, width, and the activation or the normaliser."""
    for name, table in TABLES.items():
        kinds: tuple[str, ...] = ("silu" if name.startswith("gated") else "gelu",)
        if name in ATTENTION:
            kinds = ("spherical", "l1", "squared_relu", "softmax")
        for (size, width), entries in table.items():
            for sizes in entries:
                for dtype in ("float32",) if size == 4 else ("float16", "bfloat16"):
                    yield from ((name, sizes, dtype, width or 200, kind, smoke) for kind in kinds)


def _check(task: Task) -> dict[str, Any]:
    name, sizes, dtype, width, kind, smoke = task
    torch.manual_seed(0)
    row = {"kernel": name, **vars(sizes), "dtype": dtype, "width": width, "kind": kind}
    # |s| has a jump in its slope, and a score that is nearly 0 may be rounded to its other side.
    bar = BARS[dtype] * (10 if kind == "l1" else 1)
    try:
        with patch.dict(TABLES[name], {key: [sizes] for key in TABLES[name]}):
            each = (_errors(name, dtype, width, kind, even, smoke) for even in (False, True))
            errors = list(chain.from_iterable(each))
    except Exception as failure:
        return row | {"error": math.nan, "good": False, "status": repr(failure)[:200]}
    good = all(each < bar for each in errors)
    return row | {"error": max(errors), "good": good, "status": "ok"}


def _errors(name: str, dtype: str, width: int, kind: str, even: bool, smoke: bool) -> list[float]:
    """Relative errors of the layer's output and of its gradients."""
    layer, tensors = _layer(name, getattr(torch, dtype), width, kind, even, smoke)
    results = []
    for backend, of in (("triton", Tensor.detach), ("torch", Tensor.double)):
        leaves = {key: of(x).requires_grad_() for key, x in tensors.items()}
        output = layer(**leaves, backend=backend)
        torch.manual_seed(1)
        grad = torch.randn(output.shape, device=output.device).to(getattr(torch, dtype))
        slopes = torch.autograd.grad(output, list(leaves.values()), grad.to(output))
        results.append((output.detach(), *slopes))
    return [error(x, y) for x, y in zip(*results, strict=True)]


def _layer(
    name: str, dtype: torch.dtype, width: int, kind: str, even: bool, smoke: bool
) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """A layer of which a kernel is a part, and its tensors by their names; where sizes are not
    even, with a bias or multiplicities.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, device=device) * scale).to(dtype)

    def sizes(uneven: tuple[int, int], full: tuple[int, int]) -> tuple[int, int]:
        small = (64, 64) if even else (39, 56)
        return small if smoke else full if even else uneven

    narrow = width**-0.5
    if name in MLPS:
        rows, hidden = sizes(
            (1000, 1016), (16_384, 1024) if name.endswith("forward") else (1024, 16_384)
        )
        tensors = {"x": draw(rows, width), "up": draw(hidden, width, scale=narrow)}
        tensors["down"] = draw(width, hidden, scale=hidden**-0.5)
        if name.startswith("gated"):
            tensors["gate"] = draw(hidden, width, scale=narrow)
        if not even:
            tensors |= {"bias": draw(hidden), "down_bias": draw(width)}
        return partial(mlp, activation=kind), tensors
    if name in LOGITS:
        rows, classes = sizes((1000, 5003), (2048, 8192))
        two = [draw(rows, width), draw(classes, width, scale=2 * narrow)]
        if name.startswith("class"):
            target = torch.randint(0, classes, (rows,), device=device)
            bias = {} if even else {"bias": draw(classes)}
            return partial(linear_cross_entropy, target=target), {
                "h": two[0],
                "weight": two[1],
            } | bias
        names = "student", "student_weight", "teacher", "teacher_weight"
        two += [draw(rows, width), draw(classes, width, scale=2 * narrow)]
        return distribution_cross_entropy, dict(zip(names, two, strict=True))
    queries, keys = sizes((1001, 999), (2048, 2048))
    key_heads, scale = 4 if even else 2, 1.0 if kind in ("spherical", "l1") else narrow
    tensors = {"q": draw(2, 4, queries, width, scale=scale)}
    tensors |= {name: draw(2, key_heads, keys, width) for name in ("k", "v")}
    if not even:
        tensors["multiplicity"] = torch.rand(2, key_heads, keys, device=device) + 0.1
    return partial(normalised_attention, normaliser=kind, eps=1e-3), tensors
