"""Layers at their sizes, the methods that compute each, and rows: times, extra memory, errors
against float64.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from attention_parts.clock import measure, peak_mib, release
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from flashsign import (
    distribution_cross_entropy,
    linear_cross_entropy,
    mlp,
    normalised_attention,
    rms_norm,
    spherical_attention,
    weighted_cross_entropy,
)
from flashsign.tuning.accuracy import error

Layer = Callable[..., Tensor]


@dataclass(frozen=True)
class Method:
    """A way to compute a layer. products: matrix products of full size, forward and backward;
    shifted: its output is another number with the same gradients.
    """

    run: Layer
    products: float = 0.0
    shifted: bool = False


@dataclass(frozen=True)
class Case:
    """layer: what is computed; sizes: by name; inputs: tensors of the methods, of which those that
    require a gradient get one; truth: the layer in float64, from wide inputs; product: operations
    of one matrix product; stored: bytes that the plain layer keeps and a fold does not.
    """

    layer: str
    sizes: dict[str, int]
    inputs: tuple[Tensor, ...]
    methods: dict[str, Method]
    truth: Layer | None
    product: float
    stored: float

    @property
    def leaves(self) -> list[Tensor]:
        return [x for x in self.inputs if x.requires_grad]


@dataclass(frozen=True)
class Scale:
    """How large the cases are: a tenth of everything where only the benchmark itself is tried."""

    rows: int = 16_384
    classes: int = 60_000
    more_classes: int = 131_072
    width: int = 512
    narrow: int = 128
    hidden: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
    genes: int = 16_384
    heads: int = 8
    listed: int = 100

    @classmethod
    def tiny(cls) -> Scale:
        return cls(64, 96, 160, 32, 16, (32, 64), 64, 2, 5)


def drawn(
    device: torch.device, dtype: torch.dtype, *shape: int, scale: float = 1.0, learns: bool = True
) -> Tensor:
    """Normal numbers, drawn on the device."""
    return (torch.randn(shape, device=device) * scale).to(dtype).requires_grad_(learns)


def compiled(layer: Layer, **options: Any) -> Layer:
    """torch.compile of a layer, made at its first call: the import of the compiler takes longer
    than a tiny case.
    """

    @cache
    def made() -> Layer:
        torch._dynamo.config.recompile_limit = 100  # beyond it eager code would run in silence
        return torch.compile(layer, **options)

    return lambda *tensors: made()(*tensors)


Row = dict[str, Any]


def rows_of(
    case: Case, device: torch.device, budget_s: float, backward_budget_s: float
) -> Iterator[Row]:
    """One row for each method; a method that fails has a row that says how."""
    truth = _truth(case)
    output_grad = None
    for name, method in case.methods.items():
        row: Row = {"layer": case.layer, **case.sizes, "method": name}
        try:
            output = method.run(*case.inputs)
            if output_grad is None or output_grad.shape != output.shape:
                torch.manual_seed(1)
                output_grad = (
                    torch.ones_like(output) if output.ndim == 0 else torch.randn_like(output)
                )
            row |= _measured(
                case, method, output_grad.to(output.dtype), device, (budget_s, backward_budget_s)
            )
            if truth is not None:
                row |= _errors(case, method, output_grad, truth)
            row["status"] = "ok"
        except Exception as failure:
            traceback.print_exc(limit=3)
            row["status"] = f"{type(failure).__name__}: {failure}".split("\n")[0][:200]
        yield row
        release(device, collect=device.type == "cuda")


def _measured(
    case: Case, method: Method, grad: Tensor, device: torch.device, budget: tuple[float, float]
) -> Row:
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
        **{
            "ms": time.ms,
            "ms_20": time.ms_20,
            "ms_80": time.ms_80,
            "warmups": time.warmups,
            "runs": time.runs,
        },
        **{"extra_mib": extra, "extra_share": extra * 2**20 / case.stored},
        "tflop": method.products * case.product / 1e12 or math.nan,
    }


def _truth(case: Case) -> tuple[Tensor, ...] | None:
    """Output and gradients in float64, for a gradient of ones (numbers) or drawn ones (rows)."""
    if case.truth is None:
        return None
    inputs = [
        x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for x in case.inputs
    ]
    output = case.truth(*inputs)
    torch.manual_seed(1)
    like = output.to(case.inputs[0].dtype)
    grad = torch.ones_like(output) if output.ndim == 0 else torch.randn_like(like).double()
    gradients = torch.autograd.grad(output, [x for x in inputs if x.requires_grad], grad)
    return output.detach(), *gradients


def _errors(case: Case, method: Method, grad: Tensor, truth: tuple[Tensor, ...]) -> Row:
    output = method.run(*case.inputs)
    gradients = torch.autograd.grad(output, case.leaves, grad.to(output.dtype), allow_unused=True)
    errors = [
        math.nan if x is None else error(x, true)
        for x, true in zip(gradients, truth[1:], strict=True)
    ]
    of_output = math.nan if method.shifted else error(output, truth[0])
    return {
        "error": of_output,
        "gradient_error": max(errors, key=lambda x: -1 if math.isnan(x) else x),
    }


ROW_CHUNK = 1024
"""Rows of the slices of torch's chunked losses: 246 MB of float32 logits."""


def by_torch(
    losses: Layer, count: int, products: float, mean: Layer = torch.mean
) -> tuple[dict[str, Method], Layer]:
    """torch's ways to a loss, and the first of them, which is the plain one.

    losses(*tensors): the loss of every row, float32; the first `count` tensors have a row each.
    """

    def plain(*tensors: Tensor) -> Tensor:
        return mean(losses(*tensors))

    def chunked(*tensors: Tensor) -> Tensor:
        """Slices of rows, computed again in the backward."""
        slices = zip(*(x.split(ROW_CHUNK) for x in tensors[:count]), strict=True)
        rest = tensors[count:]
        parts = [checkpoint(losses, *own, *rest, use_reentrant=False) for own in slices]
        return mean(torch.cat(parts))

    return {
        "torch, eager": Method(plain, products),
        "torch.compile": Method(compiled(plain, dynamic=False), products),
        "torch, chunks of rows": Method(chunked, products * 4 / 3),
    }, plain


def logits(h: Tensor, c: Tensor) -> Tensor:
    return F.linear(h, c).to(torch.promote_types(h.dtype, torch.float32))


def loss_cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    rows, classes, width = scale.rows, scale.classes, scale.width
    make = partial(drawn, device, torch.bfloat16)
    h, c = make(rows, width), make(classes, width, scale=width**-0.5)
    target = torch.randint(0, classes, (rows,), device=device)
    sizes = {"rows": rows, "items": classes, "width": width}
    costs = 2.0 * rows * classes * width, 4.0 * rows * classes
    methods, plain = class_methods(backend)
    yield Case("linear cross entropy", sizes, (h, target, c), methods, plain, *costs)

    def between(s: Tensor, t: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return F.cross_entropy(logits(s, c), logits(t, d).softmax(-1), reduction="none")

    t, d = make(rows, width), make(classes, width, scale=width**-0.5)
    of_torch, plain = by_torch(between, 2, 6)
    ours = lambda s, t, c, d: distribution_cross_entropy(s, c, t, d, backend=backend)  # noqa: E731
    methods = {"flashsign": Method(ours, 8), **of_torch}
    yield Case("two distributions", sizes, (h, t, c, d), methods, plain, *costs)
    methods = {
        "flashsign": Method(ours, 6),
        "torch, eager": of_torch["torch, eager"],
        **_liger_divergence(),
    }
    frozen = h, t.detach(), c, d.detach()
    yield Case("two distributions, frozen teacher", sizes, frozen, methods, plain, *costs)
    del t, d, frozen

    def weighted(h: Tensor, listed: Tensor, weights: Tensor, c: Tensor) -> Tensor:
        return -(weights * logits(h, c).log_softmax(-1).gather(1, listed)).sum(-1)

    listed = torch.randint(0, classes, (rows, scale.listed), device=device)
    weights = torch.rand(rows, scale.listed, device=device) * 5
    of_torch, plain = by_torch(weighted, 3, 3)
    del of_torch["torch.compile"]
    ours = lambda h, listed, weights, c: weighted_cross_entropy(  # noqa: E731
        h, c, listed, weights, backend=backend
    )
    methods = {"flashsign": Method(ours, 4), **of_torch}
    sizes = {**sizes, "listed": scale.listed}
    yield Case("listed weights", sizes, (h, listed, weights, c), methods, plain, *costs)


def class_methods(
    backend: Any, weights: Tensor | None = None, smoothing: float = 0.0
) -> tuple[dict[str, Method], Layer]:
    """Every method of the cross entropy of classes that offers weights of rows or smoothed labels,
    where they are asked for, from (rows, target, layer); and the plain one.
    """

    def mean(losses: Tensor) -> Tensor:
        return losses.mean() if weights is None else (weights * losses).sum() / weights.sum()

    def losses(h: Tensor, target: Tensor, c: Tensor) -> Tensor:
        return F.cross_entropy(logits(h, c), target, reduction="none", label_smoothing=smoothing)

    options = {"row_weights": weights, "label_smoothing": smoothing, "backend": backend}
    of_torch, plain = by_torch(losses, 2, 3, mean)
    ours = Method(lambda h, target, c: linear_cross_entropy(h, c, target, **options), 4)
    methods = {"flashsign": ours, **of_torch}
    if weights is None:
        methods |= _liger_classes(smoothing)
    if not smoothing:
        methods |= _for_sm90(mean, weights is None) | _cut_cross_entropy(mean, weights is None)
    if weights is None and not smoothing:
        methods |= _torchs_own()
    return methods, plain


def recent_cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    """Cross entropies of fewer rows and wider layers, also with weights of rows and with smoothed
    labels, beside this year's peers.
    """
    torch.manual_seed(0)
    rows, widest = scale.rows // 2, 8 * scale.width
    make = partial(drawn, device, torch.bfloat16)
    target = torch.randint(0, scale.classes, (rows,), device=device)
    sizes = product((scale.width, widest), (scale.classes, scale.more_classes))
    cases: list[tuple[int, int, dict[str, Any]]] = [(*size, {}) for size in sizes]
    cases.append((widest, scale.more_classes, {"weights": torch.rand(rows, device=device)}))
    cases.append((widest, scale.more_classes, {"smoothing": 0.1}))
    for width, classes, options in cases:
        methods, plain = class_methods(backend, **options)
        yield Case(
            " ".join(["linear cross entropy, fewer rows", *options]),
            {"rows": rows, "items": classes, "width": width},
            (make(rows, width), target, make(classes, width, scale=width**-0.5)),
            methods,
            plain,
            2.0 * rows * classes * width,
            4.0 * rows * classes,
        )


def _torchs_own() -> dict[str, Method]:
    """torch's chunked linear cross entropy, in the releases that have it."""
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        return {}
    own = partial(F.linear_cross_entropy, options=torch.nn.LinearCrossEntropyOptions())
    return {"torch's linear_cross_entropy": Method(lambda h, target, c: own(h, c, target))}


def _liger_classes(smoothing: float) -> dict[str, Method]:
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return {}
    narrow = LigerFusedLinearCrossEntropyLoss(label_smoothing=smoothing)
    wide = LigerFusedLinearCrossEntropyLoss(label_smoothing=smoothing, accum_dtype=torch.float32)
    return {
        "Liger": Method(lambda h, target, c: narrow(c, h, target), 3),
        "Liger, float32 sums": Method(lambda h, target, c: wide(c, h, target), 3),
    }


def _for_sm90(mean: Layer, unweighted: bool) -> dict[str, Method]:
    """Liger's kernels for SM90, which need CuTe DSL."""
    try:
        from liger_kernel.ops.cutedsl.ops import (
            fused_linear_cross_entropy_sm90,
            fused_scaled_cross_entropy_sm90,
        )
    except ImportError:
        return {}
    again = fused_scaled_cross_entropy_sm90.LigerFusedScaledCrossEntropySM90Function.apply
    kept = fused_linear_cross_entropy_sm90.LigerFusedLinearCrossEntropySM90Function.apply
    stored = Method(lambda h, target, c: kept(h, c, target), 3)
    return {
        "Liger, SM90, logits again": Method(lambda h, target, c: mean(again(h, c, target)), 4),
        **({"Liger, SM90, logits stored": stored} if unweighted else {}),
    }


def _liger_divergence() -> dict[str, Method]:
    """The forward divergence: its gradients for the student are those of the cross entropy; a
    teacher gets none.
    """
    try:
        from liger_kernel.transformers import LigerFusedLinearJSD
    except ImportError:
        return {}
    divergence = LigerFusedLinearJSD(jsd_beta=0.0)
    own = Method(lambda s, t, c, d: divergence(s, c, t, d, None), 4, shifted=True)
    return {"Liger, divergence": own}


def _cut_cross_entropy(mean: Layer, unweighted: bool) -> dict[str, Method]:
    try:
        from cut_cross_entropy import linear_cross_entropy as cut
    except ImportError:
        return {}

    def filtered(h: Tensor, target: Tensor, c: Tensor, **options: Any) -> Tensor:
        return mean(cut(h, c, target, reduction="none", **options))

    off = Method(partial(filtered, filter_eps=None), 4)
    return {
        "cut-cross-entropy": Method(filtered, 4),
        **({"cut-cross-entropy, filter off": off} if unweighted else {}),
    }


def mlp_cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    """By numbers of hidden units; gated; twice as wide; and wider than the kernel's tiles, where
    torch's slices are taken.
    """
    torch.manual_seed(0)
    rows, narrow, last = scale.rows, scale.narrow, scale.hidden[-1]
    make = partial(drawn, device, torch.bfloat16)
    cases = [("MLP", narrow, hidden) for hidden in scale.hidden] + [("SwiGLU MLP", narrow, last)]
    cases += [("wider MLP", wider * narrow, 64 * narrow) for wider in (2, 4)]
    for name, width, hidden in cases:
        gated = name.startswith("SwiGLU")
        inputs = make(rows, width), make(hidden, width, scale=width**-0.5)
        inputs += (make(width, hidden, scale=hidden**-0.5),)
        inputs += (make(hidden, width, scale=width**-0.5),) if gated else ()
        plain, products = (_gated, 9) if gated else (_plain, 6)
        methods = {
            "flashsign": Method(partial(_ours, backend=backend), 11 if gated else 7),
            "torch, eager": Method(plain, products),
        }
        if name != "wider MLP" and hidden in (last, *scale.hidden[3::2]):
            methods["torch.compile"] = Method(compiled(plain, dynamic=False), products)
        methods |= _liger_tiled() if gated else {}
        sizes = {"rows": rows, "items": hidden, "width": width}
        stored = (2 + gated) * 2.0 * rows * hidden
        yield Case(name, sizes, inputs, methods, plain, 2.0 * rows * hidden * width, stored)


def _ours(
    x: Tensor, up: Tensor, down: Tensor, gate: Tensor | None = None, backend: Any = "auto"
) -> Tensor:
    return mlp(
        x, up, down, gate=gate, activation="gelu" if gate is None else "silu", backend=backend
    )


def _plain(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, up)), down)


def _gated(x: Tensor, up: Tensor, down: Tensor, gate: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _liger_tiled() -> dict[str, Method]:
    try:
        from liger_kernel.ops import LigerSiLUMulFunction, apply_tiled_mlp
    except ImportError:
        return {}

    def run(x: Tensor, up: Tensor, down: Tensor, gate: Tensor, shards: int | None = None) -> Tensor:
        def of_rows(_: object, x: Tensor) -> Tensor:
            return F.linear(LigerSiLUMulFunction.apply(F.linear(x, gate), F.linear(x, up)), down)

        # It gives the weights' gradients by their .grad, which autograd.grad then does not see.
        return apply_tiled_mlp(of_rows, None, x, shards, [up, down, gate])

    return {"Liger, tiled": Method(run, 12), "Liger, 32 tiles": Method(partial(run, shards=32), 12)}


def norm_cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    for width in (scale.narrow, 8 * scale.narrow, 32 * scale.narrow):
        x = drawn(device, torch.bfloat16, scale.rows, width)
        weight = drawn(device, torch.bfloat16, width)

        def plain(x: Tensor, weight: Tensor) -> Tensor:
            return F.rms_norm(x, x.shape[-1:], weight, 1e-6)

        methods = {
            "flashsign": Method(partial(rms_norm, backend=backend)),
            "torch, eager": Method(plain),
            "torch.compile": Method(compiled(plain, dynamic=False)),
            **_liger_norm(),
        }
        sizes = {"rows": scale.rows, "items": 0, "width": width}
        yield Case("RMSNorm", sizes, (x, weight), methods, plain, 0.0, 2.0 * scale.rows * width)


def _liger_norm() -> dict[str, Method]:
    try:
        from liger_kernel.ops import LigerRMSNormFunction
    except ImportError:
        return {}
    return {
        "Liger": Method(
            lambda x, weight: LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)
        )
    }


def attention_cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    shape = 1, scale.heads, scale.genes
    for width in (scale.narrow // 2, scale.narrow):
        q, k, v = (drawn(device, torch.float16, *shape, width) for _ in range(3))
        q = (q.detach() * width**-0.5).requires_grad_()
        methods = {
            f"template, {name}": Method(
                partial(normalised_attention, normaliser=name, backend=backend)
            )
            for name in ("spherical", "l1", "squared_relu", "softmax")
        }
        if device.type == "cuda":
            methods["tuned stream, spherical"] = Method(
                partial(spherical_attention, method="stream")
            )
        methods |= _sdpa(device)
        sizes = {"rows": scale.genes, "items": scale.genes, "width": width}
        product = 2.0 * scale.heads * scale.genes**2 * width
        yield Case(
            "attention",
            sizes,
            (q, k, v),
            methods,
            None,
            product,
            2.0 * scale.heads * scale.genes**2,
        )


def _sdpa(device: torch.device) -> dict[str, Method]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {
        "SDPA cuDNN, softmax": SDPBackend.CUDNN_ATTENTION,
        "SDPA flash, softmax": SDPBackend.FLASH_ATTENTION,
    }
    if device.type != "cuda":
        kinds = {"SDPA math, softmax": SDPBackend.MATH}

    def run(q: Tensor, k: Tensor, v: Tensor, kind: Any) -> Tensor:
        with sdpa_kernel(kind):
            return F.scaled_dot_product_attention(q, k, v, scale=1.0)

    return {name: Method(partial(run, kind=kind)) for name, kind in kinds.items()}
