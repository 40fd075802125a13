"""Tuning from beginning to end: what there is to tune, the search, and the file to which its results are written."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from flashsign.autotune.search import AnyBlockSizes, Bags, Clock, Search
from flashsign.dispatch import Method, device_facts, plan, why_not_triton
from flashsign.errors import UnusableTiles
from flashsign.tuning.device import device_name
from flashsign.tuning.head_width import ROW_STEP
from flashsign.tuning.tile_file import VARIABLE, write


def described(blocks: AnyBlockSizes) -> str:
    """Block sizes in words, as in "own 128, other 64, warps 8, stages 4"."""
    return ", ".join(f"{name} {number}" for name, number in vars(blocks).items())


def tune_into(path: Path, bags: Bags, method: str, device: torch.device, clock: Clock) -> bool:
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
