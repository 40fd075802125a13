"""How far are the kernels from their floors, and from this year's other implementations? One table,
on one card.

    PYTHONPATH=.:kernels python benchmarks/anchors.py                      # minutes on an H100
    PYTHONPATH=.:kernels python benchmarks/anchors.py --only values floors

values: attention with values narrower than keys, beside values as wide, and beside the time that
its products take at the rate of a large matrix product, or its bytes at the rate of a copy,
whichever is longer (floor_ms).
floors: moments at 41 472 genes x 128 beside such floors; the stream beside cuDNN's softmax,
FlexAttention's and, where it is installed, FlashAttention-4's.
entropies: linear cross entropy beside torch's, in one piece and in pieces of rows, and beside
Liger's (its kernel for SM90 needs CuTe DSL) and cut-cross-entropy's where they are installed;
losses, gradients and memory.
weighted: the same with a weight for every row and with smoothed labels, beside those that offer
both.
Times, in milliseconds, are medians of 100 runs after 100 others (beyond 10 ms of as many as fit
into 3 s, 10 after 5 at least); runs of attention but FlashAttention-4's are replays of a CUDA
graph. A peer that is not installed or fails has a row that says so. The table:
`results/anchors.csv`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
import torch.utils.checkpoint
from arguments import RESULTS, all_of, read_options
from attention_parts.clock import measure
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from flashsign import linear_cross_entropy, spherical_attention

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]
SECONDS = 3.0  # for the runs of one call


def milliseconds(call: Callable[[], object], graph: bool = False) -> float:
    """The median time of a call on the GPU; graph: as a CUDA graph, where launches take the host
    longer.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    if graph:
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            call()
        call = recorded.replay
    return measure([call], torch.device("cuda"), SECONDS).ms


@cache
def rates() -> tuple[float, float]:
    """What this card reaches: operations of a large float16 product and bytes of a copy (read and
    written), per ms.
    """
    a, b = (normal(8192, 8192) for _ in range(2))
    product = torch.empty_like(a)
    operations = 2 * 8192**3 / milliseconds(lambda: torch.mm(a, b, out=product))
    source = normal(2**27)
    target = torch.empty_like(source)
    return operations, 4 * source.numel() / milliseconds(lambda: target.copy_(source))


def floor_ms(
    method: str, direction: str, genes: int, width: int, values: int, heads: int = 8
) -> float:
    """The least time of attention of one bag in 16 bits: of its products or of its bytes, whichever
    takes longer.

    The stream: scores and sums of values, each again in the backward, and their two gradients (dq
    comes from moments).
    Moments: two products of rows with matrices in each pass but that over keys in the backward,
        which has three; each pass reads and writes rows once.
    """
    operations, moved = rates()
    both, wide = direction == "both", heads * genes * (width + values)
    if method == "stream":
        return 2 * genes * wide * (3 if both else 1) / operations
    products = (
        2 * heads * genes * width * ((2 * width + 2 * values) + both * (3 * width + 4 * values))
    )
    return max(products / operations, wide * 2 * (7 if both else 2) / moved)


def both(
    attend: Callable[..., torch.Tensor], *tensors: torch.Tensor, values: int, graph: bool = True
) -> tuple[float, float]:
    """Times of a forward, and of a forward with its backward."""
    grad = torch.randn(*tensors[0].shape[:-1], values, device="cuda").to(tensors[0].dtype)

    def forward() -> object:
        with torch.no_grad():
            return attend(*tensors)

    leaves = [x.requires_grad_() for x in tensors]
    return milliseconds(forward, graph), milliseconds(
        lambda: torch.autograd.grad(attend(*leaves), leaves, grad), graph
    )


def normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def values() -> Iterator[Row]:
    for method, genes in (("stream", 2000), ("stream", 8192), ("moments", 41_472)):
        for width in (64, 128):
            found = {}
            for narrow in (width, 64, 16):
                if narrow in found:
                    continue
                rows = [normal(1, 8, genes, n) for n in (width, width, narrow)]
                found[narrow] = both(
                    lambda *x, m=method: spherical_attention(*x, method=m), *rows, values=narrow
                )
                for direction, ms, whole in zip(
                    ("forward", "both"), found[narrow], found[width], strict=True
                ):
                    floor = floor_ms(method, direction, genes, width, narrow)
                    yield {
                        "table": "values",
                        "what": f"{method}, {genes} genes, E = {width}, V = {narrow}",
                        "direction": direction,
                        "ms": ms,
                        "floor_ms": floor,
                        "of_floor": ms / floor,
                        "beside": "V = E",
                        "beside_ms": whole,
                    }


def flex() -> Callable[..., torch.Tensor]:
    return cast(Callable[..., torch.Tensor], torch.compile(flex_attention, dynamic=False))


def flash_4() -> Callable[..., torch.Tensor]:
    attend = importlib.import_module("flash_attn.cute").flash_attn_func

    def call(*rows: torch.Tensor) -> torch.Tensor:
        found = attend(*(x.transpose(1, 2) for x in rows))
        output: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return output.transpose(1, 2)

    return call


def floors() -> Iterator[Row]:
    genes = 41_472
    for width in (64, 128):
        rows = [normal(1, 8, genes, width) for _ in range(3)]
        times = both(lambda *x: spherical_attention(*x, method="moments"), *rows, values=width)
        for direction, ms in zip(("forward", "both"), times, strict=True):
            floor = floor_ms("moments", direction, genes, width, width)
            yield {
                "table": "floors",
                "what": f"moments, {genes} genes, E = {width}",
                "direction": direction,
                "ms": ms,
                "floor_ms": floor,
                "of_floor": ms / floor,
            }
    peers: dict[str, Callable[[], Callable[..., torch.Tensor]]] = {
        "cuDNN's softmax": lambda: F.scaled_dot_product_attention,
        "FlexAttention's softmax": flex,
        "FlashAttention-4's softmax": flash_4,
    }
    for genes in (2048, 8192, 41_472):
        rows = [normal(1, 8, genes, 128) for _ in range(3)]
        ours = both(lambda *x: spherical_attention(*x, method="stream"), *rows, values=128)
        for name, make in peers.items():
            for at, direction in enumerate(("forward", "both")):
                floor = floor_ms("stream", direction, genes, 128, 128)
                row = {
                    "table": "floors",
                    "what": f"stream, {genes} genes, E = 128",
                    "direction": direction,
                    "ms": ours[at],
                    "floor_ms": floor,
                    "of_floor": ours[at] / floor,
                    "beside": name,
                }
                try:
                    if not at:
                        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                            times = both(make(), *rows, values=128, graph=make is not flash_4)
                    yield row | {"beside_ms": times[at], "times_as_fast": times[at] / ours[at]}
                except Exception as problem:  # a compiler's own errors are of any kind
                    yield row | {"problem": f"{type(problem).__name__}: {problem}"[:100]}
                    break


def in_pieces(h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """torch's own loss, 1024 rows at a time, logits recomputed in the backward."""

    def some(rows: torch.Tensor, own: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((rows @ weight.T).float(), own, reduction="sum")

    pieces = zip(h.split(1024), target.split(1024), strict=True)
    parts = [
        torch.utils.checkpoint.checkpoint(some, *each, weight, use_reentrant=False)
        for each in pieces
    ]
    return torch.stack(parts).sum() / len(h)


Loss = Callable[..., torch.Tensor]
"""h [N, D], weight [V, D], target [N] -> the mean loss; with keywords weights [N] and smoothing
where it takes them.
"""


def ours(
    h: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    weights: torch.Tensor | None = None,
    smoothing: float = 0.0,
) -> torch.Tensor:
    return linear_cross_entropy(h, weight, target, row_weights=weights, label_smoothing=smoothing)


def torchs(
    h: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    weights: torch.Tensor | None = None,
    smoothing: float = 0.0,
) -> torch.Tensor:
    losses = F.cross_entropy(
        (h @ weight.T).float(), target, label_smoothing=smoothing, reduction="none"
    )
    return losses.mean() if weights is None else (weights * losses).sum() / weights.sum()


def liger(
    h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, smoothing: float = 0.0
) -> torch.Tensor:
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    apply = module.LigerFusedLinearCrossEntropyFunction.apply
    found: torch.Tensor = apply(h, weight, target, None, None, -100, 0.0, smoothing)[0]
    return found


def liger_scaled(
    h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    module = importlib.import_module("liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90")
    losses: torch.Tensor = module.LigerFusedScaledCrossEntropySM90Function.apply(h, weight, target)
    return losses.mean() if weights is None else (weights * losses).sum() / weights.sum()


def liger_stored(h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    module = importlib.import_module("liger_kernel.ops.cutedsl.ops.fused_linear_cross_entropy_sm90")
    found: torch.Tensor = module.LigerFusedLinearCrossEntropySM90Function.apply(h, weight, target)
    return found


def cut(
    h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    attend = importlib.import_module("cut_cross_entropy").linear_cross_entropy
    losses: torch.Tensor = attend(
        h, weight, target, reduction="mean" if weights is None else "none"
    )
    return losses if weights is None else (weights * losses).sum() / weights.sum()


METHODS: dict[str, Loss] = {
    "flashsign": ours,
    "torch": torchs,
    "torch.compile": torch.compile(torchs, dynamic=False),
    "torch, 1024 rows at a time": in_pieces,
    "Liger, SM90, logits again": liger_scaled,
    "Liger, SM90, logits stored": liger_stored,
    "Liger, Triton": liger,
    "cut-cross-entropy": cut,
}
ROWS = 8192


def judged(
    name: str,
    what: str,
    h: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    **options: Any,
) -> Row:
    """Errors of the first 256 rows' loss and gradients against float64, memory, and time of all
    rows.
    """
    row: Row = {"what": f"{what}: {name}", "direction": "both"}
    loss = METHODS[name]
    some = {key: x[:256] if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    few, own = h[:256].detach().clone().requires_grad_(), target[:256]
    try:
        found = loss(few, weight, own, **some)
        slopes = torch.autograd.grad(found, (few, weight))
        wide = few.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
        logits = wide[0] @ wide[1].T
        losses = F.cross_entropy(
            logits, own, label_smoothing=some.get("smoothing", 0.0), reduction="none"
        )
        m = some.get("weights", torch.ones_like(losses)).double()
        true = (m * losses).sum() / m.sum()
        exact = torch.autograd.grad(true, wide)
        row["loss_error"] = float(((found.detach().double() - true) / true).abs())
        row["loss_dtype"] = str(found.dtype).removeprefix("torch.")
        for key, slope, right in zip(("dh_error", "dw_error"), slopes, exact, strict=True):
            row[key] = float((slope.double() - right).norm() / right.norm())
        del found, slopes, wide, logits, losses, true, exact

        def call() -> object:
            return torch.autograd.grad(loss(h, weight, target, **options), (h, weight))

        call()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        row["extra_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20 - (
            h.numel() + weight.numel()
        ) / 2**19

        def forward() -> object:
            with torch.no_grad():
                return loss(h, weight, target, **options)

        row["forward_ms"], row["ms"] = milliseconds(forward), milliseconds(call)
        row["tflops"] = 6 * len(h) * weight.numel() / row["ms"] / 1e9
    except Exception as problem:  # a compiler's own errors are of any kind
        row["problem"] = f"{type(problem).__name__}: {problem}"[:100]
    return row


def layer(width: int, classes: int) -> tuple[torch.Tensor, ...]:
    h = normal(ROWS, width, dtype=torch.bfloat16).requires_grad_()
    weight = (normal(classes, width, dtype=torch.bfloat16) / width**0.5).requires_grad_()
    return h, weight, torch.randint(0, classes, (ROWS,), device="cuda")


def entropies() -> Iterator[Row]:
    for width, classes in ((512, 60_000), (512, 131_072), (4096, 60_000), (4096, 131_072)):
        tensors = layer(width, classes)
        for name in METHODS:
            yield {"table": "entropies"} | judged(name, f"D = {width}, {classes} classes", *tensors)
            torch.cuda.empty_cache()


def weighted() -> Iterator[Row]:
    tensors = layer(4096, 131_072)
    weights = torch.rand(ROWS, device="cuda")
    for what, options in (("weights", {"weights": weights}), ("smoothing .1", {"smoothing": 0.1})):
        for name in METHODS:
            if not options.keys() <= inspect.signature(METHODS[name]).parameters.keys():
                continue
            yield {"table": "weighted"} | judged(
                name, f"{what}, D = 4096, 131072 classes", *tensors, **options
            )
            torch.cuda.empty_cache()


TABLES = {"values": values, "floors": floors, "entropies": entropies, "weighted": weighted}


def main() -> None:
    chosen = read_options(__doc__, only=all_of(TABLES), output=RESULTS / "anchors.csv")
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    torch._dynamo.config.recompile_limit = (
        100  # with more shapes than 8, torch.compile would silently run eager code
    )
    found: list[Row] = []
    for name in chosen.only:
        for row in TABLES[name]():
            found.append({"device": torch.cuda.get_device_name()} | row)
            print(
                " ".join(
                    f"{key}={x:.4g}" if isinstance(x, float) else f"{x};" for key, x in row.items()
                ),
                flush=True,
            )
            pd.DataFrame(found).to_csv(chosen.output, index=False, float_format="%.4g")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
