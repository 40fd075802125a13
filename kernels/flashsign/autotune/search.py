"""The search for faster block sizes: steps from neighbour to neighbour, each of which must give right results.

Letters: C cells, H query heads, K key heads, N queries, M keys, E head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from flashsign.call import AttentionCall
from flashsign.dispatch import WIDEST, Plan, plan_kernels
from flashsign.errors import UnusableTiles
from flashsign.operators import run_kernels
from flashsign.tuning.accuracy import LARGEST_DIFFERENCE, SIZES, TENSORS, Bag, Verdict, error
from flashsign.tuning.block_sizes import LEAST, MOST, BlockSizes, Kernel, RowBlockSizes, padded_width
from flashsign.tuning.choose import Tiles, choose_block_sizes, choose_row_block_sizes

GAIN = 0.97
"""Block sizes replace others if their time is below this times the others': a smaller gain is within the scatter."""
FORWARD = {"stream": ("forward",), "moments": ("moment_keys", "moment_queries")}
BACKWARD = {
    "stream": ("key_gradients", "query_gradient"),
    "moments": ("moment_query_sums", "moment_query_gradients", "moment_key_gradients"),
}
"""The kernels whose launches make a pass, by method."""

AnyBlockSizes = BlockSizes | RowBlockSizes
Method = Literal["stream", "moments"]
Clock = Callable[[Callable[[], object]], float]
"""A function from a call to its time in milliseconds."""
T = TypeVar("T")


@dataclass(frozen=True)
class Bags:
    """The bags to tune for: `cells` dense ones of `genes` queries and `keys` keys each."""

    cells: int
    heads: int
    key_heads: int
    genes: int
    keys: int
    width: int
    dtype: torch.dtype

    def draw(self, device: torch.device) -> tuple[AttentionCall, Tensor]:
        """A call and a gradient of its output: normal numbers, and all keys are present."""

        def normal(heads: int, rows: int) -> Tensor:
            return torch.randn(self.cells, heads, rows, self.width, device=device).to(self.dtype)

        q, grad = (normal(self.heads, self.genes) for _ in range(2))
        k, v = (normal(self.key_heads, self.keys) for _ in range(2))
        m = torch.rand(self.cells, 1, self.keys, device=device) + 0.1
        return AttentionCall(q, k, v, m, None, None, 1e-6), grad


@dataclass(frozen=True)
class Found:
    """What the search found for a kernel: its block sizes before and the fastest right ones after, milliseconds of both
    (infinite: they do not run or are wrong), how many were tried, and the error of the last ones that did not run."""

    kernel: Kernel
    before: AnyBlockSizes
    after: AnyBlockSizes
    ms_before: float
    ms_after: float
    tried: int
    problem: str


class Search:
    """The search for block sizes for some bags and one method.

    Block sizes are right if they give the results of the first ones for these bags, and results within the bounds of
    tuning.accuracy for other bags, of `sizes` genes, dense and packed. Bags of one gene are left out, because moments
    of a single key miss the bound with any block sizes (docs/log.md). clock: gives the milliseconds of a call. The
    stream is its plain kernel, never those for small bags or for Hopper.
    """

    def __init__(
        self, bags: Bags, method: Method, device: torch.device, clock: Clock, sizes: Sequence[int] = SIZES[1:]
    ) -> None:
        self.method, self.device, self.clock = method, device, clock
        self.problem = ""
        self.tiles: dict[str, AnyBlockSizes] = {}
        self.call, self.grad = bags.draw(device)
        self.size, self.width = bags.dtype.itemsize, padded_width(bags.width)
        dtypes = (torch.float16, torch.bfloat16) if self.size == 2 else (torch.float32,)
        self.checks = [Bag(genes, self.width, dtype, device) for dtype in dtypes for genes in sizes]

    def __iter__(self) -> Iterator[Found]:
        """Tunes one kernel after the other, each with what was found for those before it in use."""
        names = FORWARD[self.method] + BACKWARD[self.method]
        if plan_kernels(self.call, self.method).kernel == "triton_stream_hopper":  # whose block sizes are fixed
            names = tuple(name for name in names if name != "forward")
        return map(self.tune, names)

    def tune(self, name: str) -> Found:
        """Searches for block sizes of the kernel `name` and keeps the best for the kernels after it (self.tiles)."""
        rows = self.call.k if "key" in name else self.call.q
        choose = choose_row_block_sizes if self.method == "moments" else choose_block_sizes
        start = choose(name, rows, self.width, self.tiles)
        self.problem = ""
        call = self.attempt(partial(self.call_of, name), start, None)
        before = None if call is None else self.attempt(partial(call, self.tiles), start, None)

        def ms(blocks: AnyBlockSizes) -> float:
            own = {**self.tiles, name: blocks}
            return math.inf if call is None else self.attempt(lambda: self.clock(partial(call, own)), blocks, math.inf)

        def right(blocks: AnyBlockSizes) -> bool:
            own = {**self.tiles, name: blocks}
            return call is not None and self.attempt(
                lambda: alike(call(own), before) and self.is_right(name, own), blocks, False
            )

        best, times = climb(start, ms, right)
        if times[best] < math.inf:
            self.tiles[name] = best
        kernel = Kernel(name, self.size, self.width)
        return Found(kernel, start, best, times[start], times[best], len(times), self.problem)

    def call_of(self, name: str) -> Callable[[Tiles], tuple[Tensor, ...]]:
        """The pass that kernel `name` is a part of, on the bags to tune for: for some block sizes, the output or all
        gradients."""
        plan = plan_of(self.method)
        if name in FORWARD[self.method]:
            return lambda tiles: run_kernels.forward(plan, self.call, tiles)[:1]
        saved = run_kernels.forward(plan, self.call, self.tiles)
        return lambda tiles: run_kernels.backward(plan, self.call, self.grad, *saved, tiles=tiles)

    def attempt(self, call: Callable[[], T], blocks: AnyBlockSizes, otherwise: T) -> T:
        """What the call returns; `otherwise` if it fails, as it needs more than the device has or does not compile."""
        try:
            return call()
        except Exception as problem:
            try:
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
            except RuntimeError:  # after such a failure nothing runs on the GPU in this process
                raise UnusableTiles(
                    f"The GPU failed with {blocks} ({problem}); what was found before is in the file: run it again."
                ) from problem
            self.problem = f"{type(problem).__name__}: {problem}".splitlines()[0]
            return otherwise

    def is_right(self, name: str, tiles: Tiles) -> bool:
        trials = ((bag, packed) for bag in self.checks for packed in (False, True))
        return all(verdict.good for trial in trials for verdict in verdicts(self.method, name, *trial, tiles))


def plan_of(method: Method, dq_by_moments: bool = True) -> Plan:
    return Plan("triton_moments" if method == "moments" else "triton_stream", "", dq_by_moments)


def verdicts(method: Method, name: str, bag: Bag, packed: bool, tiles: Tiles) -> Iterator[Verdict]:
    """Verdicts on all results of the launches that kernel `name` is a part of; packed: the bag's two cells packed."""
    call, grad = bag.call(packed)
    saved = run_kernels.forward(plan_of(method), call, tiles)
    yield from bag.judge_call({"o": saved[0]}, packed).values()
    if name in BACKWARD[method]:
        # Both kernels of dq, by the stream and by moments, are launched with these block sizes.
        by_moments = call.width <= WIDEST["moments"]
        for choice in {False, by_moments} if name == "query_gradient" else {by_moments}:
            found = run_kernels.backward(plan_of(method, choice), call, grad, *saved, tiles=tiles)
            yield from bag.judge_call(dict(zip(TENSORS[1:], found, strict=True)), packed).values()


def alike(found: tuple[Tensor, ...], before: tuple[Tensor, ...] | None) -> bool:
    """Whether results are those of other block sizes up to rounding; True where these did not run (None)."""
    limit = LARGEST_DIFFERENCE * torch.finfo(found[0].dtype).eps
    return before is None or all(error(x, y.double()) <= limit for x, y in zip(found, before, strict=True))


def climb(
    start: AnyBlockSizes, ms: Callable[[Any], float], right: Callable[[Any], bool]
) -> tuple[Any, dict[Any, float]]:
    """The fastest right block sizes that steps from `start` reach, and the milliseconds of all that were tried.

    ms(blocks): infinite where they do not run. right(blocks): whether results are right; start counts as infinite if
    they are not.
    """
    best, times = start, {start: ms(start) if right(start) else math.inf}
    while True:
        for blocks in neighbours(best):
            if blocks not in times:
                times[blocks] = ms(blocks)
        limit = GAIN * times[best]
        faster = sorted((blocks for blocks in neighbours(best) if times[blocks] < limit), key=times.__getitem__)
        better = next(filter(right, faster), None)
        if better is None:
            return best, times
        best = better


def neighbours(blocks: AnyBlockSizes) -> Iterator[AnyBlockSizes]:
    """Block sizes that differ in one number: half of it or twice, for stages one less or more."""
    for name, now in vars(blocks).items():
        for other in (now - 1, now + 1) if name == "stages" else (now // 2, now * 2):
            if LEAST[name] <= other <= MOST[name]:
                yield replace(blocks, **{name: other})


def device_ms(call: Callable[[], object]) -> float:
    """Median milliseconds of a call on the GPU, in a CUDA graph."""
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(call, return_mode="median"))
