"""How far are the kernels from their floors, and from this year's other implementations? One table, on one card.

    PYTHONPATH=.:kernels python benchmarks/anchors.py                      # two minutes on an H100
    PYTHONPATH=.:kernels python benchmarks/anchors.py --only values floors

values: attention with values narrower than keys, beside values as wide (arithmetic: (E + V) / 2 E of it).
floors: moments at 41 472 genes x 128 beside the time in which their bytes are copied, the stream beside cuDNN's
softmax.
entropies: linear cross entropy beside torch's, in one piece and in pieces of rows, and beside Liger's and
cut-cross-entropy's where they are installed.
Times are medians of 100 replays of a CUDA graph after 100 others (of the slowest 20 after 5), in milliseconds. A peer
that is not installed or fails has a row that says so. The table: `results/anchors.csv`.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.utils.checkpoint
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashsign import linear_cross_entropy, spherical_attention

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]


def milliseconds(call: Callable[[], object]) -> float:
    """The median time of a call on the GPU, as a CUDA graph where it can be recorded: launches take the host longer."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        call = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
    warm_ups, runs = (100, 100) if timed(call) < 20 else (5, 20)
    for _ in range(warm_ups):
        call()
    return float(torch.tensor([timed(call) for _ in range(runs)]).median())


def timed(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def both(attend: Callable[..., torch.Tensor], *tensors: torch.Tensor, values: int) -> tuple[float, float]:
    """Times of a forward, and of a forward with its backward."""
    grad = torch.randn(*tensors[0].shape[:-1], values, device="cuda").to(tensors[0].dtype)

    def forward() -> object:
        with torch.no_grad():
            return attend(*tensors)

    leaves = [x.requires_grad_() for x in tensors]
    return milliseconds(forward), milliseconds(lambda: torch.autograd.grad(attend(*leaves), leaves, grad))


def normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def values() -> Iterator[Row]:
    for method, genes in (("stream", 2000), ("stream", 8192), ("moments", 41_472)):
        for width in (64, 128):
            times = {}
            for narrow in (width, 16):
                rows = [normal(1, 8, genes, n) for n in (width, width, narrow)]
                times[narrow] = both(lambda *x, m=method: spherical_attention(*x, method=m), *rows, values=narrow)
            for at, direction in enumerate(("forward", "both")):
                whole, found = times[width][at], times[16][at]
                yield {
                    "table": "values", "what": f"{method}, {genes} genes, E = {width}, V = 16", "direction": direction,
                    "ms": found, "beside": "V = E", "beside_ms": whole, "arithmetic": (width + 16) / 2 / width,
                }  # fmt: skip


def floors() -> Iterator[Row]:
    source = torch.empty(2**28, device="cuda", dtype=torch.float16)
    target = torch.empty_like(source)
    per_byte = milliseconds(lambda: target.copy_(source)) / (2 * source.numel() * 2)
    genes, heads, width = 41_472, 8, 128
    rows = [normal(1, heads, genes, width) for _ in range(3)]
    found = both(lambda *x: spherical_attention(*x, method="moments"), *rows, values=width)
    size = heads * genes * width * 2
    # Forward reads k, v, q and writes o; backward reads q, o, do twice and k, v once, and writes dq, dk, dv.
    for at, (direction, tensors) in enumerate((("forward", 4), ("both", 4 + 3 + 3 + 2 + 3 - 1))):
        yield {
            "table": "floors", "what": "moments, 41 472 genes, E = 128", "direction": direction, "ms": found[at],
            "beside": f"copying its bytes ({1e-9 / per_byte:.2f} TB/s)", "beside_ms": tensors * size * per_byte,
        }  # fmt: skip
    for genes in (2048, 8192):
        rows = [normal(1, 8, genes, 128) for _ in range(3)]
        ours = both(lambda *x: spherical_attention(*x, method="stream"), *rows, values=128)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            peer = both(F.scaled_dot_product_attention, *rows, values=128)
        for at, direction in enumerate(("forward", "both")):
            yield {
                "table": "floors", "what": f"stream, {genes} genes, E = 128", "direction": direction,
                "ms": ours[at], "beside": "cuDNN's softmax", "beside_ms": peer[at],
            }  # fmt: skip


def in_pieces(h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """torch's own loss, 1024 rows at a time, logits recomputed in the backward."""

    def some(rows: torch.Tensor, own: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((rows @ weight.T).float(), own, reduction="sum")

    pieces = zip(h.split(1024), target.split(1024), strict=True)
    parts = [torch.utils.checkpoint.checkpoint(some, *each, weight, use_reentrant=False) for each in pieces]
    return torch.stack(parts).sum() / len(h)


def liger(h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    found: torch.Tensor = module.LigerFusedLinearCrossEntropyFunction.apply(h, weight, target)[0]
    return found


def cut(h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = importlib.import_module("cut_cross_entropy").linear_cross_entropy(h, weight, target)
    return found


def entropies() -> Iterator[Row]:
    methods = {
        "flashsign": linear_cross_entropy,
        "torch": lambda h, w, t: F.cross_entropy((h @ w.T).float(), t),
        "torch, 1024 rows at a time": in_pieces,
        "Liger": liger,
        "cut-cross-entropy": cut,
    }
    rows = 8192
    for width, classes in ((512, 60_000), (512, 131_072), (4096, 60_000), (4096, 131_072)):
        h = normal(rows, width, dtype=torch.bfloat16).requires_grad_()
        weight = (normal(classes, width, dtype=torch.bfloat16) / width**0.5).requires_grad_()
        target = torch.randint(0, classes, (rows,), device="cuda")
        some = slice(0, 256)  # float64 is slow: the first rows' gradients, and those rows' loss alone
        wide = h[some].detach().double().requires_grad_()
        F.cross_entropy(wide @ weight.detach().double().T, target[some]).backward()
        for name, loss in methods.items():
            row = {"table": "entropies", "what": f"D = {width}, {classes} classes: {name}", "direction": "both"}
            try:
                (slope,) = torch.autograd.grad(loss(h[some].contiguous(), weight, target[some]), h)
                error = (slope[some].double() - wide.grad).norm() / wide.grad.norm()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                slopes(loss, h, weight, target)
                extra = torch.cuda.max_memory_allocated() - before - 2 * (h.numel() + weight.numel())
                ms = milliseconds(partial(slopes, loss, h, weight, target))
                rate = 6 * rows * width * classes / ms / 1e9
                yield row | {"ms": ms, "tflops": rate, "extra_mib": extra / 2**20, "error": float(error)}
            except (ImportError, RuntimeError) as problem:
                yield row | {"problem": f"{type(problem).__name__}: {problem}"[:100]}


def slopes(loss: Callable[..., torch.Tensor], h: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> object:
    return torch.autograd.grad(loss(h, weight, target), (h, weight))


TABLES = {"values": values, "floors": floors, "entropies": entropies}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    options.add_argument("--output", type=Path, default=HERE / "results" / "anchors.csv")
    chosen = options.parse_args()
    found = []
    for name in chosen.only:
        for row in TABLES[name]():
            found.append(row)
            print(" ".join(f"{key}={x:.4g}" if isinstance(x, float) else f"{x};" for key, x in row.items()), flush=True)
            torch.cuda.empty_cache()
    table = pd.DataFrame(found)
    table.insert(0, "device", torch.cuda.get_device_name())
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(chosen.output, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
