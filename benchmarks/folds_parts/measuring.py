"""The rows of the table: times forward and with backward, extra memory, and errors against float64."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from attention_parts.clock import measure, peak_mib, release
from torch import Tensor

from folds_parts.cases import Case, Method

Row = dict[str, Any]


def rows_of(case: Case, device: torch.device, budget_s: float, backward_budget_s: float) -> Iterator[Row]:
    """One row for each method; a method that fails has a row that says how."""
    truth = _truth(case)
    output_grad = None
    for name, method in case.methods.items():
        row: Row = {"layer": case.layer, **case.sizes, "method": name}
        try:
            output = method.run(*case.inputs)
            if output_grad is None or output_grad.shape != output.shape:
                torch.manual_seed(1)
                output_grad = torch.ones_like(output) if output.ndim == 0 else torch.randn_like(output)
            row |= _measured(case, method, output_grad.to(output.dtype), device, (budget_s, backward_budget_s))
            if truth is not None:
                row |= _errors(case, method, output_grad, truth)
            row["status"] = "ok"
        except Exception as failure:
            traceback.print_exc(limit=3)
            row["status"] = f"{type(failure).__name__}: {failure}".split("\n")[0][:200]
        yield row
        release(device, collect=True)


def _measured(case: Case, method: Method, grad: Tensor, device: torch.device, budget: tuple[float, float]) -> Row:
    leaves = case.leaves

    def forward() -> Any:
        with torch.no_grad():
            return method.run(*case.inputs)

    def both() -> Any:
        return torch.autograd.grad(method.run(*case.inputs), leaves, grad, allow_unused=True)

    forward_time = measure([forward], device, budget[0])
    time = measure([both], device, budget[1])
    made = grad.numel() * grad.element_size() + sum(x.numel() * x.element_size() for x in leaves)
    extra = peak_mib(both, device) - made / 2**20
    return {
        "forward_ms": forward_time.ms,
        **{"ms": time.ms, "ms_20": time.ms_20, "ms_80": time.ms_80, "warmups": time.warmups, "runs": time.runs},
        **{"extra_mib": extra, "extra_share": extra * 2**20 / case.stored},
        "tflop": method.products * case.product / 1e12 or math.nan,
    }


def _truth(case: Case) -> tuple[Tensor, ...] | None:
    """Output and gradients in float64, for a gradient of ones (numbers) or drawn ones (rows)."""
    if case.truth is None:
        return None
    inputs = [x.detach().double().requires_grad_(x.requires_grad) for x in case.inputs]
    output = case.truth(*inputs)
    torch.manual_seed(1)
    like = output.to(case.inputs[0].dtype)
    grad = torch.ones_like(output) if output.ndim == 0 else torch.randn_like(like).double()
    gradients = torch.autograd.grad(output, [x for x in inputs if x.requires_grad], grad)
    return output.detach(), *gradients


def _errors(case: Case, method: Method, grad: Tensor, truth: tuple[Tensor, ...]) -> Row:
    output = method.run(*case.inputs)
    gradients = torch.autograd.grad(output, case.leaves, grad.to(output.dtype), allow_unused=True)
    errors = [math.nan if x is None else _error(x, true) for x, true in zip(gradients, truth[1:], strict=True)]
    of_output = math.nan if method.shifted else _error(output, truth[0])
    return {"error": of_output, "gradient_error": max(errors, key=lambda x: -1 if math.isnan(x) else x)}


def _error(found: Tensor, true: Tensor) -> float:
    """Relative size of an error; NaN where anything is NaN."""
    return float((found.detach().double() - true).norm() / true.norm())
