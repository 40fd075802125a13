"""How far are the kernels of attention from their floors, and from this year's softmax kernels?

    PYTHONPATH=.:kernels python benchmarks/anchors.py                      # minutes on an H100
    PYTHONPATH=.:kernels python benchmarks/anchors.py --only values

values: attention with values narrower than keys, beside values as wide, and beside the time that
its products take at the rate of a large matrix product, or its bytes at the rate of a copy,
whichever is longer (floor_ms).
floors: moments at 41 472 genes x 128 beside such floors; the stream beside cuDNN's softmax,
FlexAttention's and, where it is installed, FlashAttention-4's.
Times, in milliseconds, are medians of 100 runs after 100 others (beyond 10 ms of as many as fit
into 3 s, 10 after 5 at least); runs but FlashAttention-4's are replays of a CUDA graph. A peer that
is not installed or fails has a row that says so. The table: `results/anchors.csv`. Cross entropies
beside this year's: `folds.py --parts recent`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pandas as pd
import torch
from arguments import RESULTS, all_of, read_options
from attention_parts.clock import Rates, device_rates, measure, recorded
from results_file import merged, write
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from flashsign import spherical_attention

Row = dict[str, Any]
Attend = Callable[..., Tensor]
SECONDS, HEADS, GENES = 3.0, 8, 41_472  # for the runs of one call; of the longest bag
DIRECTIONS = ("forward", "both")
DEVICE = torch.device("cuda")


@cache
def rates() -> Rates:
    """What this card reaches."""
    return device_rates({"fp16": torch.float16}, DEVICE, 8192, SECONDS)


def floor_ms(method: str, direction: str, genes: int, width: int, values: int) -> float:
    """The least time of attention of one bag in 16 bits: of its products or of its bytes, whichever
    takes longer.

    The stream: scores and sums of values, each again in the backward, and their two gradients (dq
    comes from moments).
    Moments: two products of rows with matrices in each pass but that over keys in the backward,
        which has three; each pass reads and writes rows once.
    """
    operations = rates().matmul["fp16"] * 1e9
    both, wide = direction == "both", HEADS * genes * (width + values)
    if method == "stream":
        return 2 * genes * wide * (3 if both else 1) / operations
    products = (
        2 * HEADS * genes * width * (2 * width + 2 * values + both * (3 * width + 4 * values))
    )
    return max(products / operations, wide * 2 * (7 if both else 2) / (rates().copy * 1e9))


def times(attend: Attend, genes: int, width: int, values: int, graph: bool = True) -> list[float]:
    """Milliseconds of a forward, and of a forward with its backward."""
    q, k, v, grad = (
        torch.randn(1, HEADS, genes, each, device=DEVICE).half()
        for each in (width, width, values, values)
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    calls = [
        torch.no_grad()(partial(attend, *leaves)),
        lambda: torch.autograd.grad(attend(*leaves), leaves, grad),
    ]
    calls = [recorded(call, DEVICE) for call in calls] if graph else calls
    return [measure([call], DEVICE, SECONDS).ms for call in calls]


def ours(method: str, genes: int, width: int, values: int) -> list[Row]:
    """A row for each direction."""
    found = times(partial(spherical_attention, method=method), genes, width, values)
    what = f"{method}, {genes} genes, E = {width}, V = {values}"
    rows = []
    for direction, ms in zip(DIRECTIONS, found, strict=True):
        floor = floor_ms(method, direction, genes, width, values)
        row = {"what": what, "direction": direction, "ms": ms, "floor_ms": floor}
        rows.append(row | {"of_floor": ms / floor})
    return rows


def values() -> Iterator[Row]:
    for method, genes in (("stream", 2000), ("stream", 8192), ("moments", GENES)):
        for width in (64, 128):
            whole = ours(method, genes, width, width)
            for narrow in sorted({width, 64, 16}, reverse=True):
                found = whole if narrow == width else ours(method, genes, width, narrow)
                for row, wide in zip(found, whole, strict=True):
                    yield row | {"beside": "V = E", "beside_ms": wide["ms"]}


def flash_4() -> Attend:
    attend = importlib.import_module("flash_attn.cute").flash_attn_func

    def call(*rows: Tensor) -> Tensor:
        found = attend(*(x.transpose(1, 2) for x in rows))
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return call


PEERS: dict[str, Callable[[], Attend]] = {
    "cuDNN's softmax": lambda: F.scaled_dot_product_attention,
    "FlexAttention's softmax": lambda: torch.compile(flex_attention, dynamic=False),
    "FlashAttention-4's softmax": flash_4,
}


def floors() -> Iterator[Row]:
    for width in (64, 128):
        yield from ours("moments", GENES, width, width)
    for genes in (2048, 8192, GENES):
        own = ours("stream", genes, 128, 128)
        for name, make in PEERS.items():
            try:
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    found = times(make(), genes, 128, 128, graph=make is not flash_4)
            except Exception as problem:  # a compiler's own errors are of any kind
                yield own[0] | {"beside": name, "problem": repr(problem)[:100]}
                continue
            for row, ms in zip(own, found, strict=True):
                yield row | {"beside": name, "beside_ms": ms, "times_as_fast": ms / row["ms"]}


TABLES = {"values": values, "floors": floors}


def main() -> None:
    chosen = read_options(__doc__, only=all_of(TABLES), output=RESULTS / "anchors.csv")
    for name in chosen.only:
        found: list[Row] = []
        for row in TABLES[name]():
            found.append({"device": torch.cuda.get_device_name(), "table": name} | row)
            print(pd.DataFrame(found[-1:]).to_string(index=False, header=False), flush=True)
            write(chosen.output, merged(chosen.output, pd.DataFrame(found), ["table"]))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
