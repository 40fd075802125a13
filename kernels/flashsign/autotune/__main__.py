"""Finds faster block sizes than the measured ones, for a GPU and a size of bags, and keeps those that are also right.

    python -m flashsign.autotune tiles.json --width 64 --dtype bfloat16 --genes 2000 --cells 32
    export FLASHSIGN_TILES=$PWD/tiles.json

From the block sizes that would be launched it steps to the fastest neighbour (one number halved or doubled, one stage
less or more) until none is faster by 3 %. None are taken before their results are near enough to float64's
(autotune/accuracy.py), in both 16-bit dtypes, as these have the same, dense and packed. Times are the device's, in a
CUDA graph. It takes a minute or two, most of it compiling; what was found is in the file after each kernel, beside
block sizes for other widths and GPUs. A kernel has the same for a width and dtypes of a size, whatever the bags: tune
for those that you have. Kernels for Hopper, for bags of at most 128 genes and for edges keep what they come with.
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
    options.add_argument("file", type=Path, help="where block sizes go; what it holds for other widths and GPUs stays")
    options.add_argument("--width", type=int, required=True, metavar="E", help="of a head")
    options.add_argument("--genes", type=int, required=True, metavar="N", help="queries of a bag")
    options.add_argument("--keys", type=int, metavar="M", help="of a bag; default: as many as genes")
    options.add_argument("--cells", type=int, default=1, metavar="C", help="bags of a call; default: 1")
    options.add_argument("--heads", type=int, default=8, metavar="H", help="default: 8")
    options.add_argument("--key-heads", type=int, metavar="K", help="default: as many as heads")
    options.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    options.add_argument(
        "--method", choices=("auto", "stream", "moments"), default="auto", help="auto: as training would take it"
    )
    chosen = options.parse_args()
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")  # torch's, of the first product in a new thread
    os.environ.pop(VARIABLE, None)  # the search begins at the tables, whatever is in use
    try:
        if not torch.cuda.is_available():
            raise UnusableTiles("Block sizes are tuned on the GPU that they are for, and there is none.")
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
