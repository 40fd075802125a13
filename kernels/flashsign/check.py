"""Checks kernels of this GPU against float64 and remembers the result, so that no first use waits.

    python -m flashsign.check                               # all kernels of attention: minutes
    python -m flashsign.check triton_moments bfloat16 64    # one, with heads of 64

An installation calls check_kernels() for the dtypes and widths that it will use.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from flashsign.attention.dispatch import KERNELS, WIDEST, has_hopper
from flashsign.edges.edge_sums import kernel_problem as problem_of_edge_sums
from flashsign.operators.verify import (
    RIGHT,
    WRONG,
    Place,
    checked,
    describe_pair,
    kernels_run,
    problem_of,
    remember,
)
from flashsign.tables.shared_scores import KERNEL as TABLES_OF_SCORES
from flashsign.tables.shared_scores import kernel_problem as problem_of_tables
from flashsign.tables.slope_penalty import KERNEL as SLOPE_PENALTY
from flashsign.tables.slope_penalty import kernel_problem as problem_of_penalty
from flashsign.tuning import tables
from flashsign.tuning.device import device_facts

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDTHS = (16, 32, 64, 128, 256)
ROOMS, HEADS = (16, 32, 64), (1, 2)
"""The bags for which a tile of the kernels of tables has room, and the heads with a penalty."""


__all__ = ["Checked", "check_kernels", "kernels_run", "main"]


class Checked(NamedTuple):
    """A kernel with its dtype and width, the seconds that its check took, and what is wrong with
    it, "" for nothing.
    """

    name: str
    seconds: float
    problem: str


def check_kernels(
    dtypes: Sequence[torch.dtype] = DTYPES,
    widths: Sequence[int] = WIDTHS,
    values: int | None = None,
) -> Iterator[Checked]:
    """Check kernels on the current device, one after the other, whatever is known of them.

    Checked are every kernel of attention and of edge sums for these dtypes and widths of heads, and
    the kernels of tables of scores, which are float32 and have no width. values: width of values,
    by default that of heads.
    """
    device = (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    names = [name for name in KERNELS if name.startswith("triton_")]
    for name in (*names, "edge_sums"):
        for dtype in dtypes:
            for width in widths:
                key = dtype.itemsize, width
                fits = {
                    "triton_small_bags": key in tables.SMALL_BAGS,
                    "triton_stream_hopper": key in tables.HOPPER
                    and has_hopper(device_facts(device)),
                    "triton_moments": width <= WIDEST["moments"],
                }
                own = width if values is None or name == "edge_sums" else values
                if fits.get(name, True):
                    yield _checked(Place(name, dtype, width, own, device))
    for room in ROOMS:
        yield _checked(Place(TABLES_OF_SCORES, torch.float32, room, room, device))
        for heads in HEADS:
            yield _checked(Place(SLOPE_PENALTY, torch.float32, room, heads, device))


def _checked(place: Place) -> Checked:
    started = time.monotonic()
    kernel, dtype, width, values, device = place
    q = torch.empty(0, width, dtype=dtype, device=device)
    if kernel == "edge_sums":
        problem = checked(lambda: problem_of_edge_sums(dtype, width, device))
    elif kernel == TABLES_OF_SCORES:
        problem = checked(lambda: problem_of_tables(width, device))
    elif kernel == SLOPE_PENALTY:
        problem = checked(lambda: problem_of_penalty(width, values, device))
    else:
        problem = checked(lambda: problem_of(kernel, q, values))  # type: ignore[arg-type]
    remember(place, problem)
    return Checked(place.name, time.monotonic() - started, problem)


def main(arguments: Sequence[str]) -> int:
    if arguments:
        kernel, dtype, width, *rest = arguments
        values = int(rest[0]) if rest else int(width)
        device = torch.device("cuda", int(rest[1]) if len(rest) > 1 else 0)
        torch.cuda.set_device(device)
        found = _checked(Place(kernel, getattr(torch, dtype), int(width), values, device))
        print(found.problem)
        return WRONG if found.problem else RIGHT
    wrong = 0
    print(describe_pair(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    for each in check_kernels():
        wrong += bool(each.problem)
        print(f"{each.name:<36}{each.seconds:6.1f} s  {each.problem or 'right'}", flush=True)
    return WRONG if wrong else RIGHT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
