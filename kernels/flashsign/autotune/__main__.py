"""Finds block sizes that are faster on this GPU than those of flashsign's tables, for bags of one size.

    python -m flashsign.autotune tiles.json --width 64 --dtype bfloat16 --genes 2000 --cells 32
    export FLASHSIGN_TILES=$PWD/tiles.json

The search begins at the block sizes that a launch takes without a file. From there it steps to the fastest neighbour
(one number halved or doubled, or one stage less or more) until no neighbour is faster by 3 %. Block sizes are taken
only if their results are within an error bound of float64 (tuning/accuracy.py), for dense and for packed bags, and in
both 16-bit dtypes, which have the same block sizes. Times are those of the GPU, in a CUDA graph.

A search takes a minute or two, mostly to compile. The file is written after each kernel; block sizes for other widths
and GPUs in it stay. A kernel has one choice of block sizes for a head width and a size of dtype, whatever the bags, so
tune for the bags that you have. Not tuned are the kernels for Hopper, for small bags (at most 128 genes) and for edge
sums.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from flashsign.autotune.search import AnyBlockSizes, Bags, Clock, Search, device_ms
from flashsign.dispatch import Method, device_facts, plan, why_not_triton
from flashsign.errors import UnusableTiles
from flashsign.tuning.block_sizes import ROW_STEP
from flashsign.tuning.device import device_name
from flashsign.tuning.tile_file import VARIABLE, write

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def described(blocks: AnyBlockSizes) -> str:
    """Block sizes in words, as in "own 128, other 64, warps 8, stages 4"."""
    return ", ".join(f"{name} {number}" for name, number in vars(blocks).items())


def tune_into(path: Path, bags: Bags, method: Literal["stream", "moments"], device: torch.device, clock: Clock) -> bool:
    """Tunes all kernels of a method; prints and writes to the file, kernel by kernel, what was found.

    Returns whether every kernel has block sizes that run and are right.
    """
    gpu, complete = device_name(device), True
    if write(path, gpu, {}):  # before the search, so that a path that cannot be written is an error at once
        print(
            f"{path} had block sizes for {gpu} that were checked with another Triton or other kernels: "
            "they were removed from it."
        )
    print(
        f"{gpu}, {method}: {bags.cells} x {bags.genes} queries in {bags.heads} heads, {bags.keys} keys in "
        f"{bags.key_heads} heads, {bags.width} wide, {bags.dtype}",
        flush=True,
    )
    for found in Search(bags, method, device, clock):
        name, ended = found.kernel.name, f"{found.tried} tried"
        if math.isinf(found.ms_after):
            complete = False
            why = found.problem or "results are not within their bounds of float64"
            print(f"{name}: no block sizes run and are right ({why}), {ended}", flush=True)
            continue
        changed = found.after != found.before
        write(path, gpu, {found.kernel: found.after if changed else None})
        if math.isinf(found.ms_before):
            result = f"does not run or is wrong with {described(found.before)}; {found.ms_after:.4f} ms"
        else:
            gain = f"{found.ms_before / found.ms_after:.2f} times as fast"
            result = f"{found.ms_before:.4f} ms with {described(found.before)}; {gain if changed else 'nothing faster'}"
        print(f"{name}: {result}{f' with {described(found.after)}' if changed else ''}, {ended}", flush=True)
    print(f"To use these block sizes, set {VARIABLE}={path.absolute()}.")
    return complete


def bags_to_tune(bags: Bags, method: Method, device: torch.device) -> tuple[Bags, Literal["stream", "moments"]]:
    """The bags with heads padded to a multiple of ROW_STEP, and the method that training takes for them.

    method: the one to tune, or "auto". Raises UnusableTiles for sizes that make no call, and where there is nothing to
    tune.
    """
    sizes = {name: size for name, size in vars(bags).items() if name != "dtype"}
    if min(sizes.values()) < 1 or bags.heads % bags.key_heads:
        raise UnusableTiles(f"Sizes must be at least 1, and heads a multiple of key heads; found {sizes}.")
    bags = replace(bags, width=bags.width + -bags.width % ROW_STEP)
    reason = why_not_triton(device_facts(device), bags.dtype, bags.width, bags.cells * bags.key_heads, method)
    if reason:
        raise UnusableTiles(f"{reason}: there are no block sizes to tune.")
    q = (bags.cells, bags.heads, bags.genes, bags.width)
    k = (bags.cells, bags.key_heads, bags.keys, bags.width)
    chosen = plan(q, k, dtype=bags.dtype, method=method, backend="triton", gradients=True, device=device)
    if chosen.kernel == "triton_small_bags":
        raise UnusableTiles(
            f"Bags of {bags.genes} queries and {bags.keys} keys take one program each, whose block sizes are not tuned."
        )
    return bags, chosen.method


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m flashsign.autotune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("file", type=Path, help="file to which block sizes are written, JSON")
    options.add_argument("--width", type=int, required=True, metavar="E", help="width of a head")
    options.add_argument("--genes", type=int, required=True, metavar="N", help="queries of a bag")
    options.add_argument("--keys", type=int, metavar="M", help="keys of a bag; default: as many as genes")
    options.add_argument("--cells", type=int, default=1, metavar="C", help="bags of a call; default: 1")
    options.add_argument("--heads", type=int, default=8, metavar="H", help="query heads; default: 8")
    options.add_argument("--key-heads", type=int, metavar="K", help="key heads; default: as many as heads")
    options.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="dtype of q, k and v; default: bfloat16")
    options.add_argument(
        "--method",
        choices=("auto", "stream", "moments"),
        default="auto",
        help="whose kernels are tuned; default: auto, those that training takes",
    )
    chosen = options.parse_args()
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")  # by torch, at the first product in a new thread
    os.environ.pop(VARIABLE, None)  # the search begins at the tables, also where a tile file is in use
    try:
        if not torch.cuda.is_available():
            raise UnusableTiles("Block sizes are tuned on the GPU that they are for, and this machine has none.")
        device = torch.device("cuda", torch.cuda.current_device())
        keys, key_heads = chosen.keys or chosen.genes, chosen.key_heads or chosen.heads
        sizes = (chosen.cells, chosen.heads, key_heads, chosen.genes, keys, chosen.width)
        bags, method = bags_to_tune(Bags(*sizes, dtype=DTYPES[chosen.dtype]), chosen.method, device)
        return 0 if tune_into(chosen.file, bags, method, device, device_ms) else 2
    except torch.OutOfMemoryError as problem:
        print(f"error: the GPU's memory ran out ({problem}); ask for fewer --cells or --genes.", file=sys.stderr)
    except (UnusableTiles, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
