"""The search for faster tiles: steps from neighbour to neighbour, each of which has to be right.

Letters: C cells, H query heads, K key heads, N queries, M keys, E head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from flashsign.accuracy import SIZES, TENSORS, Bag, Verdict
from flashsign.errors import UnusableTiles
from flashsign.kernel_attention import WIDEST
from flashsign.tile import Kernel, Pass, Tile
from flashsign.tuning import choose_pass, choose_tile, own_tiles, padded_width

GAIN = 0.97
"""What a tile's time must be of another's to take its place: more is scatter."""
LEAST = {"own": 16, "other": 16, "rows": 16, "warps": 2, "stages": 1, "programs": 1}
MOST = {"own": 256, "other": 256, "rows": 256, "warps": 8, "stages": 6, "programs": 8}
FORWARD = {"stream": ("forward",), "moments": ("moment_keys", "moment_queries")}
BACKWARD = {
    "stream": ("key_gradients", "query_gradient"),
    "moments": ("moment_query_sums", "moment_query_gradients", "moment_key_gradients"),
}
EPS = 1e-6

Clock = Callable[[Callable[[], object]], float]
T = TypeVar("T")


@dataclass(frozen=True)
class Bags:
    """The bags to be fast on: `cells` dense ones of `genes` queries and `keys` keys each."""

    cells: int
    heads: int
    key_heads: int
    genes: int
    keys: int
    width: int
    dtype: torch.dtype

    def draw(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, m and a gradient in the kernels' one form: normal numbers, all keys present."""

        def normal(heads: int, rows: int) -> Tensor:
            return torch.randn(self.cells, heads, rows, self.width, device=device).to(self.dtype)

        q, grad = (normal(self.heads, self.genes) for _ in range(2))
        k, v = (normal(self.key_heads, self.keys) for _ in range(2))
        return q, k, v, torch.rand(self.cells, 1, self.keys, device=device) + 0.1, grad


@dataclass(frozen=True)
class Found:
    """Of one kernel: the tile that it had and the fastest right one, their milliseconds (infinite: neither runs and is
    right), how many were tried, and what was wrong with the last that did not run."""

    kernel: Kernel
    before: Tile | Pass
    after: Tile | Pass
    ms_before: float
    ms_after: float
    tried: int
    problem: str


class Search:
    """The search for tiles for some bags and one method, "stream" or "moments".

    clock: milliseconds of a call. sizes: genes of the bags that a tile is checked on; one gene is not among them, as
    moments of a single key miss the bound with any tile (docs/log.md).
    """

    def __init__(
        self, bags: Bags, method: str, device: torch.device, clock: Clock, sizes: Sequence[int] = SIZES[1:]
    ) -> None:
        self.method, self.device, self.clock = method, device, clock
        self.problem = ""
        self.rows = bags.draw(device)
        self.size, self.width = bags.dtype.itemsize, padded_width(bags.width)
        dtypes = (torch.float16, torch.bfloat16) if self.size == 2 else (torch.float32,)
        self.checks = [Bag(genes, bags.width, dtype, device) for dtype in dtypes for genes in sizes]

    def __iter__(self) -> Iterator[Found]:
        """One kernel after the other, each with the tiles that were found before in place."""
        from flashsign.triton.stream import hopper_tile

        names = FORWARD[self.method] + BACKWARD[self.method]
        if hopper_tile(*self.rows[:2], None) is not None:  # a kernel of its own, whose tiles are fixed
            names = tuple(name for name in names if name != "forward")
        return map(self.tune, names)

    def tune(self, name: str) -> Found:
        q, k, v, m, grad = self.rows
        call = partial(forward, self.method, q, k, v, m)
        if name in BACKWARD[self.method]:
            call = partial(backward, self.method, grad, q, k, v, m, *call())
        rows, kernel = k if "key" in name else q, Kernel(name, self.size, self.width)
        choose = choose_pass if self.method == "moments" else choose_tile
        start, own = choose(name, rows, self.width), own_tiles(self.device)
        self.problem = ""

        def ms(tile: Tile | Pass) -> float:
            own[kernel] = tile
            return self.attempt(partial(self.clock, call), tile, math.inf)

        def right(tile: Tile | Pass) -> bool:
            own[kernel] = tile
            return self.attempt(partial(self.is_right, name), tile, False)

        best, times = climb(start, ms, right)
        own[kernel] = best
        if times[best] == math.inf:
            own.pop(kernel)
        return Found(kernel, start, best, times[start], times[best], len(times), self.problem)

    def attempt(self, call: Callable[[], T], tile: Tile | Pass, otherwise: T) -> T:
        """What the call returns; `otherwise` where the tile is more than the device has or the compiler takes."""
        try:
            return call()
        except Exception as problem:
            try:
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
            except RuntimeError:  # nothing works any more
                raise UnusableTiles(f"The GPU failed at {tile} ({problem}); start again.") from problem
            self.problem = f"{type(problem).__name__}: {problem}".splitlines()[0]
            return otherwise

    def is_right(self, name: str) -> bool:
        return all(verdict.good for bag in self.checks for verdict in self.verdicts(name, bag))

    def verdicts(self, name: str, bag: Bag) -> Iterator[Verdict]:
        call = bag.q, bag.k, bag.v, bag.m[:, None]
        o, *saved = forward(self.method, *call)
        yield from bag.judge({"o": o}).values()
        if name in BACKWARD[self.method]:
            # The tile of dq is that of two kernels.
            both = name == "query_gradient" and self.width <= WIDEST["moments"]
            for dq_by_moments in (False, True) if both else (None,):
                *gradients, dm = backward(self.method, bag.grad, *call, o, *saved, dq_by_moments=dq_by_moments)
                yield from bag.judge(dict(zip(TENSORS[1:], (*gradients, dm.sum(1)), strict=True))).values()


def climb(start: Tile | Pass, ms: Callable[[Any], float], right: Callable[[Any], bool]) -> tuple[Any, dict[Any, float]]:
    """The fastest right tile that steps from `start` lead to, and the milliseconds of every tile that was tried.

    ms: infinite for what does not run; a start that is not right counts as such.
    """
    best, times = start, {start: ms(start) if right(start) else math.inf}
    while True:
        for tile in neighbours(best):
            if tile not in times:
                times[tile] = ms(tile)
        limit = GAIN * times[best]
        faster = sorted((tile for tile in neighbours(best) if times[tile] < limit), key=times.__getitem__)
        better = next(filter(right, faster), None)
        if better is None:
            return best, times
        best = better


def neighbours(tile: Tile | Pass) -> Iterator[Tile | Pass]:
    """Tiles that differ in one number: half of it or twice, of stages one less or more."""
    for name, now in vars(tile).items():
        for other in (now - 1, now + 1) if name == "stages" else (now // 2, now * 2):
            if LEAST[name] <= other <= MOST[name]:
                yield replace(tile, **{name: other})


def forward(method: str, q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    """Output and what the backward wants of it; by the stream with a tile of the tables, of few genes too."""
    from flashsign.triton import moments, stream

    if method == "moments":
        return moments.forward(q, k, v, m, None, None, EPS)
    return stream.forward(q, k, v, m, None, None, EPS, choose_tile("forward", q, padded_width(q.shape[-1])))


def backward(
    method: str, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, *saved: Tensor,
    dq_by_moments: bool | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """dq, dk, dv, dm."""
    from flashsign.triton import moments, stream

    if method == "moments":
        o, inverse, sums, totals = saved
        return moments.backward(grad, q, k, v, m, o, inverse, sums, totals, None, None, EPS)
    o, inverse = saved
    width = padded_width(q.shape[-1])
    tiles = choose_tile("key_gradients", k, width), choose_tile("query_gradient", q, width)
    return stream.backward(grad, q, k, v, m, o, inverse, None, None, EPS, *tiles, dq_by_moments)


def device_ms(call: Callable[[], object]) -> float:
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(call, return_mode="median"))
