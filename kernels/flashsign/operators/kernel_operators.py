"""The Triton kernels of attention as operators of torch, with their derivatives.

    flashsign::stream              q, k, v, m -> o, 1 / n
    flashsign::moments             q, k, v, m -> o, 1 / n, sums and totals
    flashsign::stream_backward     do, q, k, v, m and the outputs of stream -> dq, dk, dv, dm
    flashsign::moments_backward    do, q, k, v, m and the outputs of moments -> dq, dk, dv, dm

torch.compile and torch.export see a call as one node of these, and tensors without values (fake or
meta) go through them. Eager mode calls the functions behind them, because torch's dispatcher takes
as long as everything else before a launch. First derivatives run the backward kernels. Second
derivatives, batched ones and transforms differentiate the same attention in torch operations, which
support every mode.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from flashsign.attention.call import AttentionCall
from flashsign.attention.dispatch import Plan, plan_kernels
from flashsign.attention.validation import has_values
from flashsign.eager.transforms import differentiable_gradients, in_batches, transformed
from flashsign.operators import in_torch, run_kernels
from flashsign.operators.run_kernels import Tensors, empty_totals
from flashsign.operators.verify import known, problem_of


def attend(plan: Plan, call: AttentionCall) -> Tensor:
    """Return attention by the kernels of a plan, or by torch where they are not known to be right
    here.

    o [C', H, N, V].

    Differentiable in q, k, v and m.
    """
    tracing = not has_values(call.q)
    if call.q.is_cuda and not tracing and call.q.get_device() != torch.cuda.current_device():
        with torch.cuda.device(call.q.device):  # kernels start on the current device
            return attend(plan, call)
    if not tracing and known_problem(plan, call) != "":
        return in_torch.attention(plan.method, call)
    tensors = call.q, call.k, call.v, call.m
    if not tracing and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return run_kernels.forward(plan, call)[0]
    cut = call.offsets, call.query_offsets, call.eps
    output: Tensor = _Attention.apply(plan, *tensors, *cut)  # type: ignore[no-untyped-call]
    return output


def known_problem(plan: Plan, call: AttentionCall) -> str | None:
    """Return what is wrong with a plan's kernel for calls like this one, "" for nothing.

    None where that is being found out: only where it is "" may the kernel run.
    """
    values = call.v.shape[-1]
    return known(plan.kernel, call.q, values, partial(problem_of, plan.kernel, call.q, values))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, *call: Any) -> Tensor:
        if not has_values(call[0]):
            results = getattr(torch.ops.flashsign, plan.method)(*call)
        else:
            results = run_kernels.forward(plan, AttentionCall(*call))
        *tensors, eps = call
        ctx.save_for_backward(*tensors, *results)
        ctx.plan, ctx.eps = plan, eps
        o: Tensor = results[0]
        return o

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, m, offsets, query_offsets, *saved = ctx.saved_tensors
        call = AttentionCall(q, k, v, m, offsets, query_offsets, ctx.eps)
        if not has_values(q):
            by_operator = getattr(torch.ops.flashsign, f"{ctx.plan.method}_backward")
            dq, dk, dv, dm = by_operator(grad, q, k, v, m, *saved, offsets, query_offsets, ctx.eps)
        elif torch.is_grad_enabled() or transformed() or in_batches(grad):

            def plain(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
                return in_torch.attention("stream", call.with_(q=q, k=k, v=v, m=m))

            return None, *differentiable_gradients(plain, (q, k, v, m), (grad,)), None, None, None
        else:
            dq, dk, dv, dm = run_kernels.backward(ctx.plan, call, grad, *saved)
        if not ctx.needs_input_grad[4]:
            return None, dq, dk, dv, None, None, None, None
        # Mostly multiplicities are data and get here None: the sum over key heads that share them
        # is one more launch.
        shared = m.shape[1] == 1 < dm.shape[1]
        return None, dq, dk, dv, dm.sum(1, keepdim=True) if shared else dm, None, None, None


TOTALS: dict[in_torch.Method, tuple[str, ...]] = {"stream": (), "moments": ("sums", "totals")}
"""The results of each operator behind o and 1 / n."""
# Defined by schema and not by torch's decorator: a decorated operator took 100 microseconds a call,
# this one takes 10.
LIBRARY = torch.library.Library("flashsign", "DEF")


_OF_TORCH: dict[int, Any] = {}
"""Weak references to storages of 1 / n, of compiled forwards for which torch computed: their
backwards are torch's too, also where a kernel was found to be right meanwhile.
"""


def _storage(x: Tensor) -> Any:
    return StorageWeakRef(x.untyped_storage())


def _note_of_torch(inverse: Tensor) -> None:
    for address in [address for address, storage in _OF_TORCH.items() if storage.expired()]:
        del _OF_TORCH[address]
    storage = _storage(inverse)
    _OF_TORCH[storage.cdata] = storage


def _is_of_torch(inverse: Tensor) -> bool:
    storage = _OF_TORCH.get(_storage(inverse).cdata)
    return storage is not None and not storage.expired()


def _empty_outputs(method: in_torch.Method, *arguments: Any) -> Tensors:
    call = AttentionCall(*arguments)
    return call.empty_output(), call.empty_rows(), *(empty_totals(call) if TOTALS[method] else ())


def _forward(method: in_torch.Method, *arguments: Any) -> Tensors:
    """Run a forward.

    Sizes of bags are known here, so the plan is made here, as _backward makes it.
    """
    call = AttentionCall(*arguments)
    plan = plan_kernels(call, method)
    if known_problem(plan, call) == "":
        return run_kernels.forward(plan, call)
    # NaN: whoever takes them for a kernel's, as from a copy, gets no gradient that looks like one.
    _, inverse, *rest = (x.fill_(torch.nan) for x in _empty_outputs(method, *arguments))
    _note_of_torch(inverse)
    return in_torch.attention(method, call), inverse, *rest


def _backward(method: in_torch.Method, grad: Tensor, *arguments: Any) -> Tensors:
    call = AttentionCall(*arguments[:4], *arguments[-3:])
    plan = plan_kernels(call, method)
    _, inverse, *_ = saved = arguments[4:-3]
    if _is_of_torch(inverse) or known_problem(plan, call) != "":
        return in_torch.gradients(method, call, grad)
    return run_kernels.backward(plan, call, grad, *saved)


def _empty_gradients(_: Tensor, *arguments: Any) -> Tensors:
    return AttentionCall(*arguments[:4], *arguments[-3:]).empty_gradients()


def _register(method: in_torch.Method) -> None:
    rows = "Tensor q, Tensor k, Tensor v, Tensor m"
    cut = "Tensor? offsets, Tensor? query_offsets, float eps"
    saved = ("o", "inverse", *TOTALS[method])
    outputs = ", ".join(["Tensor"] * len(saved))
    inputs = ", ".join(f"Tensor {tensor}" for tensor in saved)
    gradients = "(Tensor, Tensor, Tensor, Tensor)"
    LIBRARY.define(f"{method}({rows}, {cut}) -> ({outputs})")
    LIBRARY.define(f"{method}_backward(Tensor grad, {rows}, {inputs}, {cut}) -> {gradients}")
    torch.library.impl(LIBRARY, method, "CompositeExplicitAutograd")(partial(_forward, method))
    torch.library.impl(LIBRARY, f"{method}_backward", "CompositeExplicitAutograd")(
        partial(_backward, method)
    )
    torch.library.register_fake(
        f"flashsign::{method}", partial(_empty_outputs, method), lib=LIBRARY
    )
    torch.library.register_fake(f"flashsign::{method}_backward", _empty_gradients, lib=LIBRARY)


for _method in TOTALS:
    _register(_method)
