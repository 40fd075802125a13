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
import os
import sys
import warnings
from pathlib import Path

import torch

from flashsign.autotune.search import Bags, device_ms
from flashsign.autotune.tune import bags_to_tune, tune_into
from flashsign.errors import UnusableTiles
from flashsign.tuning.tile_file import VARIABLE

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


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
