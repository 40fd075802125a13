"""Tuning as a whole: what there is to tune, the search for it, and the file that keeps what was found."""

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
    return ", ".join(f"{name} {number}" for name, number in vars(blocks).items())


def tune_into(path: Path, bags: Bags, method: str, device: torch.device, clock: Clock) -> bool:
    """Tunes, prints what was found, and writes to the file, kernel by kernel, what goes before the tables.

    Returns whether every kernel has block sizes that run and are right.
    """
    gpu, complete = device_name(device), True
    if write(path, gpu, {}):  # and a path that cannot be written is found before the search
        print(
            f"{path} had block sizes for {gpu} that were checked with another Triton or other kernels: they are gone."
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
            why = found.problem or "results are not near enough to float64's"
            print(f"{name}: no block sizes run and are right ({why}), {ended}", flush=True)
            continue
        changed = found.after != found.before
        write(path, gpu, {found.kernel: found.after if changed else None})
        if math.isinf(found.ms_before):
            result = f"it does not run or is wrong with {described(found.before)}; {found.ms_after:.4f} ms"
        else:
            gain = f"{found.ms_before / found.ms_after:.2f} times as fast"
            result = f"{found.ms_before:.4f} ms with {described(found.before)}; {gain if changed else 'nothing faster'}"
        print(f"{name}: {result}{f' with {described(found.after)}' if changed else ''}, {ended}", flush=True)
    print(f"Kernels take the block sizes of the file where {VARIABLE}={path.absolute()} is set.")
    return complete


def bags_to_tune(bags: Bags, method: Method, device: torch.device) -> tuple[Bags, Literal["stream", "moments"]]:
    """The bags with heads as wide as the kernels take them, and the method that training takes for them.

    Raises UnusableTiles where they are no bags, or where there is nothing to tune.
    """
    sizes = {name: size for name, size in vars(bags).items() if name != "dtype"}
    if min(sizes.values()) < 1 or bags.heads % bags.key_heads:
        raise UnusableTiles(f"Sizes are 1 at least, and heads a multiple of key heads; found {sizes}.")
    bags = replace(bags, width=bags.width + -bags.width % ROW_STEP)
    reason = why_not_triton(device_facts(device), bags.dtype, bags.width, bags.cells * bags.key_heads, method)
    if reason:
        raise UnusableTiles(f"{reason}: there are no block sizes to tune.")
    q = (bags.cells, bags.heads, bags.genes, bags.width)
    k = (bags.cells, bags.key_heads, bags.keys, bags.width)
    chosen = plan(q, k, dtype=bags.dtype, method=method, backend="triton", gradients=True, device=device)
    if chosen.kernel == "triton_small_bags":
        raise UnusableTiles(
            f"Bags of {bags.genes} queries and {bags.keys} keys are done by one program each: there is nothing to tune."
        )
    return bags, chosen.method
