"""Finds faster tiles than the measured ones, for a GPU and a size of bags, and keeps those that are also right.

    python -m flashsign.autotune tiles.json --width 64 --dtype bfloat16 --genes 2000 --cells 32
    export FLASHSIGN_TILES=$PWD/tiles.json

From the tile that would be launched it steps to the fastest neighbour (one number halved or doubled, one stage less or
more) until none is faster by 3 %. No tile is taken before its results are as near to float64's as materialised torch's
(accuracy.py), in both 16-bit dtypes, as these share it, dense and packed. Times are the device's, in a CUDA graph. A
minute or two, most of it compiling; what was found is in the file after each kernel, beside tiles for other widths and
GPUs. A kernel has one tile for a width and dtypes of a size, whatever the bags: tune for those that you have. Kernels
for Hopper, for bags of at most 128 genes and for edges keep the tiles that they come with.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from flashsign.autotune.search import Bags, Clock, Search, device_ms
from flashsign.dispatch import choose_method, no_kernel
from flashsign.errors import UnusableTiles
from flashsign.tuning.tables import ROW_STEP, device_name
from flashsign.tuning.tile import Pass, Tile
from flashsign.tuning.tile_file import VARIABLE, write

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def described(tile: Tile | Pass) -> str:
    return ", ".join(f"{name} {number}" for name, number in vars(tile).items())


def tune_into(path: Path, bags: Bags, method: str, device: torch.device, clock: Clock) -> bool:
    """Tunes, prints what was found, and writes to the file, kernel by kernel, what goes before the tables.

    Returns whether every kernel has a tile that runs and is right.
    """
    gpu, complete = device_name(device), True
    if write(path, gpu, {}):  # and a place where nothing can be written is found before the search
        print(f"{path} had tiles for {gpu} that were checked with another Triton or other kernels: they are gone.")
    print(
        f"{gpu}, {method}: {bags.cells} x {bags.genes} queries in {bags.heads} heads, {bags.keys} keys in "
        f"{bags.key_heads} heads, {bags.width} wide, {bags.dtype}",
        flush=True,
    )
    for found in Search(bags, method, device, clock):
        name, ended = found.kernel.name, f"{found.tried} tried"
        if math.isinf(found.ms_after):
            complete = False
            why = found.problem or "results are not near enough to float64's"
            print(f"{name}: no tile that runs and is right ({why}), {ended}", flush=True)
            continue
        changed = found.after != found.before
        write(path, gpu, {found.kernel: found.after if changed else None})
        if math.isinf(found.ms_before):
            said = f"does not run or is wrong with {described(found.before)}; {found.ms_after:.4f} ms"
        else:
            gain = f"{found.ms_before / found.ms_after:.2f} times as fast"
            said = f"{found.ms_before:.4f} ms with {described(found.before)}; {gain if changed else 'nothing faster'}"
        print(f"{name}: {said}{f' with {described(found.after)}' if changed else ''}, {ended}", flush=True)
    print(f"Kernels take the tiles of the file where {VARIABLE}={path.absolute()} is set.")
    return complete


def bags_of(chosen: argparse.Namespace, device: torch.device) -> tuple[Bags, str]:
    """The bags that are asked for, and their method; raises UnusableTiles where there is nothing to tune."""
    sizes = {"cells": chosen.cells, "heads": chosen.heads, "key_heads": chosen.key_heads or chosen.heads}
    sizes |= {"genes": chosen.genes, "keys": chosen.keys or chosen.genes, "width": chosen.width}
    if min(sizes.values()) < 1 or sizes["heads"] % sizes["key_heads"]:
        raise UnusableTiles(f"Sizes are 1 at least, and heads a multiple of key heads; found {sizes}.")
    sizes["width"] += -sizes["width"] % ROW_STEP  # as the door pads heads
    bags = Bags(**sizes, dtype=DTYPES[chosen.dtype])
    q, k, *_ = replace(bags, cells=1).draw(device)
    if reason := no_kernel(q, chosen.method, bags.cells * bags.key_heads):
        raise UnusableTiles(f"{reason}: there are no tiles to tune.")
    method = choose_method(q.requires_grad_(), k, bags.cells, chosen.method)
    from flashsign.triton import small_bags

    if method == "stream" and small_bags.fits(q, k, None, None):
        raise UnusableTiles(
            f"Bags of {bags.genes} queries and {bags.keys} keys take kernels of one tile: none to tune."
        )
    return bags, method


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m flashsign.autotune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("file", type=Path, help="where the tiles go; what it holds for other widths and GPUs stays")
    options.add_argument("--width", type=int, required=True, metavar="E", help="of a head")
    options.add_argument("--genes", type=int, required=True, metavar="N", help="queries of a bag")
    options.add_argument("--keys", type=int, metavar="M", help="of a bag; default: as many as genes")
    options.add_argument("--cells", type=int, default=1, metavar="C", help="bags of a call; default: 1")
    options.add_argument("--heads", type=int, default=8, metavar="H", help="default: 8")
    options.add_argument("--key-heads", type=int, metavar="K", help="default: as many as heads")
    options.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    options.add_argument(
        "--method", choices=("auto", "stream", "moments"), default="auto", help="auto: as the door while training"
    )
    chosen = options.parse_args()
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")  # torch's, of the first product in a new thread
    os.environ.pop(VARIABLE, None)  # the search begins at the tables, whatever is in use
    try:
        if not torch.cuda.is_available():
            raise UnusableTiles("Tiles are tuned on the GPU that they are for, and there is none.")
        device = torch.device("cuda", torch.cuda.current_device())
        bags, method = bags_of(chosen, device)
        return 0 if tune_into(chosen.file, bags, method, device, device_ms) else 2
    except torch.OutOfMemoryError as problem:
        print(f"error: the GPU's memory ran out ({problem}); ask for fewer --cells or --genes.", file=sys.stderr)
    except (UnusableTiles, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
