"""Are the kernels right with all block sizes that they ship with, on the GPU that these are for?

    export PYTHONPATH=.:kernels
    python benchmarks/tiles.py            # 2 minutes on an H200
    python benchmarks/tiles.py --trial    # a few, in Triton's interpreter on a CPU: 20 seconds

Compilers have been wrong at single block sizes before, so each is checked. The table
(`results/tiles.csv`) has a row for each kernel, block sizes, head width and dtype: the largest
relative error of the output, dq, dk, dv and dm against float64 over bags of 1, 7, 113, 1000 and
1025 genes (small bags: 1 to 128 genes), the same in units of its bound (`..._of_bound`), and
whether all errors are within their bounds, which flashsign.tuning.accuracy derives. The exit status
is 1 where one is not.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from typing import Any

import pandas as pd
import torch
from arguments import RESULTS, Option, read_options
from results_file import merged, ordered, write
from torch import Tensor

from flashsign.tuning.accuracy import SIZES, TENSORS, Bag

SMALL_SIZES = (1, 7, 20, 33, 64, 113, 128)
TRIAL_SIZES = (1, 7, 40)
KERNELS = {
    "forward": ("o",),
    "hopper": ("o",),
    "hopper_split_keys": ("o",),
    "nan_repair": ("o",),
    "key_gradients": ("dk", "dv", "dm"),
    "stream_query_gradient": ("dq",),
    "moment_query_gradient": ("dq",),
    "small_forward": ("o",),
    "small_backward": ("dq", "dk", "dv", "dm"),
    "moment_keys": ("o",),
    "moment_queries": ("o",),
    "moment_query_sums": ("dk", "dv", "dm"),
    "moment_key_gradients": ("dk", "dv", "dm"),
    "moment_query_gradients": ("dq",),
}
PASSES = [
    name for name in KERNELS if name.startswith("moment_") and name != "moment_query_gradient"
]
NUMBERS = ("own", "other", "warps", "stages", "programs", "scores")
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """A kernel with block sizes of its table, widths of heads and of values, and a dtype."""

    kernel: str
    block_sizes: Any
    width: int
    values: int
    dtype: torch.dtype

    @property
    def columns(self) -> dict[str, object]:
        """What names the case; the rows of a program's own tile are "own", whatever the table calls
        them.
        """
        written = {
            {"rows": "own", "queries": "own"}.get(name, name): number
            for name, number in vars(self.block_sizes).items()
        }
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = {"width": self.width, "values": self.values, "dtype": dtype}
        return {"kernel": self.kernel, **sizes, **dict.fromkeys(NUMBERS), **written}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Genes of the bags that the kernel is checked on."""
        if not self.kernel.startswith("small"):
            return SIZES
        from flashsign.tuning import tables

        return tuple(
            x for x in SMALL_SIZES if x <= tables.SMALL_BAGS[self.dtype.itemsize, self.width].keys
        )


def cases() -> Iterator[Case]:
    """All block sizes of all tables; head widths and dtypes are those of the tables."""
    from flashsign.attention.dispatch import WIDEST
    from flashsign.tuning import tables

    stream_tables = {
        "forward": tables.TABLES["forward"],
        "hopper": tables.HOPPER,
        "hopper_split_keys": tables.HOPPER,
        "nan_repair": {key: [tables.NAN_REPAIR] for key in tables.HOPPER},
        "key_gradients": tables.TABLES["key_gradients"],
        "stream_query_gradient": tables.TABLES["query_gradient"],
        "moment_query_gradient": {
            key: row
            for key, row in tables.TABLES["query_gradient"].items()
            if key[1] <= WIDEST["moments"]
        },
    }
    for kernel, table in stream_tables.items():
        fallback = [] if kernel.startswith(("hopper", "nan_repair")) else [tables.FALLBACK]
        for (size, width), shipped in table.items():
            for block_sizes in [*shipped, *fallback]:
                yield from (
                    Case(kernel, block_sizes, width, width, dtype) for dtype in dtypes(size)
                )
    for kernel, some in {"hopper_split_keys": tables.NARROW["hopper"], **tables.NARROW}.items():
        for (size, width), shipped in some.items():
            for block_sizes in shipped:
                yield from (
                    Case(kernel, block_sizes, width, width // 4, dtype) for dtype in dtypes(size)
                )
    single = {
        "small_forward": {key: bags.forward for key, bags in tables.SMALL_BAGS.items()},
        "small_backward": {key: bags.backward for key, bags in tables.SMALL_BAGS.items()},
        "moment_keys": tables.PASSES["moment_keys"],
        "moment_queries": tables.PASSES["moment_queries"],
        "moment_query_sums": tables.PASSES["moment_query_sums"],
        "moment_key_gradients": tables.PASSES["moment_key_gradients"],
        "moment_query_gradients": tables.PASSES["moment_query_gradients"],
    }
    for kernel, table in single.items():
        for (size, width), block_sizes in table.items():
            yield from (Case(kernel, block_sizes, width, width, dtype) for dtype in dtypes(size))


def dtypes(size: int) -> tuple[torch.dtype, ...]:
    """The dtypes of so many bytes."""
    return HALVES if size == 2 else (torch.float32,)


def ours(case: Case, bag: Bag) -> list[Tensor]:
    """Output, dq, dk, dv and dm by the kernel with the case's block sizes; of forward kernels the
    output alone.

    Kernels of small bags and of moments take their block sizes from their tables, which have one
    row per width and dtype. Kernels of the stream are checked on small bags too.
    """
    from flashsign.attention.call import AttentionCall
    from flashsign.triton import small_bags
    from flashsign.triton.common.layout import cdiv
    from flashsign.triton.moments import moment_launches as moments
    from flashsign.triton.streaming import stream_launches as stream
    from flashsign.triton.streaming.nan_repair import repair_rows
    from flashsign.triton.streaming.scaled_keys import ScaledKeys
    from flashsign.tuning.split_keys import SplitKeys

    q, k, v, m, grad = bag.q, bag.k, bag.v, bag.m, bag.grad
    call = AttentionCall(q, k, v, m[:, None], None, None, 1e-6)
    if case.kernel in ("small_forward", "small_backward") or case.kernel in PASSES:
        kernels = moments if case.kernel in PASSES else small_bags
        o, *kept = kernels.forward(call)
        *gradients, dm = kernels.backward(call, grad, o, *kept)
        return [o, *gradients, dm.sum(1)]
    if case.kernel.startswith("hopper"):
        o, inverse = call.empty_output(), call.empty_rows()
        tiles = cdiv(q.shape[2], case.block_sizes.own) * q.shape[0] * q.shape[1]
        # Each split of the keys takes two tiles of keys or more.
        splits = (
            min(3, cdiv(k.shape[2], 2 * case.block_sizes.other))
            if case.kernel == "hopper_split_keys"
            else 1
        )
        plan = SplitKeys(tiles, 0, 1, 0.0) if splits == 1 else SplitKeys(0, tiles, splits, 0.0)
        stream.hopper.forward(call, ScaledKeys.of(call), case.block_sizes, plan, o, inverse)
        return [o]
    own = {
        "query_gradient"
        if case.kernel.endswith("query_gradient")
        else case.kernel: case.block_sizes
    }
    o, inverse = stream.forward(call, tiles=own)
    if case.kernel == "forward":
        return [o]
    if case.kernel == "nan_repair":
        o.fill_(math.nan)
        repair_rows(call, ScaledKeys.of(call), o, -inverse)
        return [o]
    by_moments = case.kernel == "moment_query_gradient"
    *gradients, dm = stream.backward(call, grad, o, inverse, own, by_moments)
    return [o, *gradients, dm.sum(1)]


def check(case: Case, sizes: tuple[int, ...], device: str) -> dict[str, object]:
    """The row of a case, from bags of these sizes; a case that fails is a row with the problem."""
    tensors, row = KERNELS[case.kernel], case.columns
    verdicts = []
    try:
        for genes in sizes:
            bag = Bag(genes, case.width, case.dtype, device, case.values)
            found = dict(zip(TENSORS, ours(case, bag), strict=False))
            verdicts.append(bag.judge({name: found[name] for name in tensors}))
    except Exception as problem:  # a case that does not compile must not stop the others
        return row | {"within": False, "problem": repr(problem)[:200]}
    for name in tensors:
        row[name] = max(each[name].error for each in verdicts)
        row[f"{name}_of_bound"] = max(each[name].of_bound for each in verdicts)
    return row | {"within": all(each.good for of in verdicts for each in of.values())}


def check_all(everything: list[Case], limit_s: float) -> pd.DataFrame:
    """A row for each case, in order; a case that is not done in time has that as its problem.

    Compiling takes most of the time, so many processes use the GPU together.
    """
    begun, rows = time.monotonic(), {}
    processes = min(28, (os.cpu_count() or 1) - 2)
    with ProcessPoolExecutor(
        max(1, processes), get_context("spawn"), torch.set_num_threads, (1,)
    ) as pool:
        # First the cases that take longest to compile.
        by_cost = sorted(everything, key=lambda case: (-case.width, -case.dtype.itemsize))
        waiting = {pool.submit(check, case, case.sizes, "cuda"): case for case in by_cost}
        try:
            for done in as_completed(waiting, limit_s):
                case = waiting[done]
                rows[case] = done.result()
                print(f"{time.monotonic() - begun:6.0f} s ", case, rows[case]["within"], flush=True)
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():  # they may still compile for minutes
                process.kill()
    late_row = {"within": False, "problem": f"not done in {limit_s:.0f} s"}
    return pd.DataFrame([rows.get(case, case.columns | late_row) for case in everything])


def main() -> int:
    chosen = read_options(
        __doc__,
        output=RESULTS / "tiles.csv",
        kernels=Option(
            help="check these kernels alone; the rows of others stay", choices=KERNELS, several=True
        ),
        trial=Option(False, "check a few float32 cases in the interpreter; writes nothing"),
        limit_s=Option(540.0, "stop after this time; cases that are not done fail"),
    )
    if chosen.trial:
        os.environ.setdefault("TRITON_INTERPRET", "1")
        some = [case for case in cases() if case.dtype == torch.float32 and case.width == 16]
        print(
            pd.DataFrame(check(case, TRIAL_SIZES, "cpu") for case in some).to_string(
                index=False, na_rep=""
            )
        )
        return 0
    if not torch.cuda.is_available():
        print(
            "Block sizes are checked on the GPU that they are for, and there is none; --trial "
            "checks a few without.",
            file=sys.stderr,
        )
        return 2
    wanted = chosen.kernels or list(KERNELS)
    table = check_all(
        [case for case in dict.fromkeys(cases()) if case.kernel in wanted], chosen.limit_s
    )
    table.insert(0, "device", torch.cuda.get_device_name())
    table = ordered(merged(chosen.output, table, ["kernel"]), kernel=list(KERNELS))
    table = table.astype(dict.fromkeys(NUMBERS, "Int64"))
    write(chosen.output, table)
    print(
        table.drop(columns="device").to_string(
            index=False, float_format=lambda x: "" if math.isnan(x) else f"{x:.1e}"
        )
    )
    print(
        f"{int(table.within.sum())} of {len(table)} cases are within the bounds; wrote "
        f"{chosen.output}."
    )
    return int(not table.within.all())


if __name__ == "__main__":
    sys.exit(main())
