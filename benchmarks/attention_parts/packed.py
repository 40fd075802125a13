"""Packed bags of uneven sizes against equal bags with as many pairs of genes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_parts.clock import measure, release
from attention_parts.methods import Attend, Inputs, attempt, call_of, public_call
from attention_parts.plan import OPERATIONS

HEADS, WIDTH, BAGS = 8, 128, 64
LARGEST = 5000
DIRECTIONS = ("forward", "both")


def bag_sizes(kind: str, bags: int = BAGS, seed: int = 0, largest: int = LARGEST) -> Tensor:
    """Genes of each bag, between `largest` / 25 and `largest`: lognormal around a quarter of it, or uniform."""
    random = torch.Generator().manual_seed(seed)
    smallest = largest // 25
    if kind == "lognormal":
        sizes = largest / 4 * torch.exp(0.6 * torch.randn(bags, generator=random))
    else:
        sizes = smallest + (largest - smallest) * torch.rand(bags, generator=random)
    return sizes.round().long().clamp(smallest, largest)


def equal_sizes(sizes: Tensor) -> Tensor:
    """As many bags of one size, with the same sum of N^2 as closely as whole genes allow."""
    return torch.full_like(sizes, int(sizes.double().square().mean().sqrt().round()))


def packed_rows(
    dtypes: tuple[str, ...], backend: str, device: torch.device, budget_s: float, smoke: bool
) -> Iterator[dict[str, Any]]:
    """A row for each kind of sizes, dtype, direction and layout; ratio: its rate over that of equal dense bags."""
    for kind in ("lognormal", "uniform"):
        sizes = bag_sizes(kind, 3, largest=50) if smoke else bag_sizes(kind)
        for dtype in dtypes:
            found: list[dict[str, Any]] = []
            for layout in ("equal, dense", "equal, packed", "uneven, packed"):
                chosen = sizes if layout.startswith("uneven") else equal_sizes(sizes)
                attend, inputs = _layout(layout, chosen, dtype, backend, device)
                for direction in DIRECTIONS:
                    calls = [call_of(attend, one, direction) for one in inputs]
                    timing, status = attempt(partial(measure, calls, device, budget_s), device)
                    pairs = int(chosen.square().sum())
                    row = {"sizes": kind, "layout": layout, "dtype": dtype, "direction": direction, "status": status}
                    row |= {"bags": len(chosen), "genes": int(chosen.sum()), "pairs": pairs}
                    if timing is not None:
                        row |= timing._asdict()
                        row["tflops"] = OPERATIONS[direction] * pairs * HEADS * WIDTH / timing.ms / 1e9
                    found.append(row)
                release(device)
            dense = {row["direction"]: row.get("tflops") for row in found if row["layout"] == "equal, dense"}
            for row in found:
                if row.get("tflops") and dense[row["direction"]]:
                    row["ratio"] = row["tflops"] / dense[row["direction"]]
                yield row


def _layout(layout: str, sizes: Tensor, dtype: str, backend: str, device: torch.device) -> tuple[Attend, list[Inputs]]:
    """flashsign's call and two sets of inputs.

    Packed: q, k, v [T, H, E], multiplicity [T], offsets [C + 1]; dense: [C, H, N, E], multiplicity [C, N].
    """
    options: dict[str, Any] = {"method": "stream", "backend": backend}
    if layout.endswith("dense"):
        size = int(sizes[0])
        shape, bags = (len(sizes), HEADS, size, WIDTH), (len(sizes), size)
    else:
        options["offsets"] = torch.cat((sizes.new_zeros(1), sizes.cumsum(0))).to(device)
        shape, bags = (int(sizes.sum()), HEADS, WIDTH), (int(sizes.sum()),)
    return public_call(**options), [Inputs.draw(shape, bags, dtype, device, seed) for seed in (0, 1)]
