"""Are calls of spherical_attention right whatever their sizes are?

    export PYTHONPATH=.:kernels
    python benchmarks/random_calls.py --calls 1000    # on a GPU: minutes, mostly to compile
    python benchmarks/random_calls.py --calls 30 --backend torch

Compares outputs and gradients of random calls with float64. Dtypes, dense and packed bags (some
empty), grouped heads, widths of heads and of values (odd ones too), multiplicities per head or not,
absent keys, single keys, long bags and both methods are drawn. Tensors are judged by the a-priori
bounds of flashsign.tuning.accuracy; packed bags one by one, bags of one key by their output alone.
To a bound is added what it leaves out: for 16-bit numbers, what rounding m k to the dtype changes,
which the stream does; for float32 by moments, the error of torch's, whose two sums over queries
cancel where a bag has few keys. The table (`results/random_calls.csv`) has a row a call: what was
drawn, the kernel, and the largest error in units of its bound. The exit status is 1 where one
exceeds it.
"""

from __future__ import annotations

import math
import random
import sys
import time
from typing import Any

import pandas as pd
import torch
from arguments import RESULTS, Option, read_options
from results_file import write
from torch import Tensor

from flashsign import spherical_attention
from flashsign.tuning.accuracy import TENSORS, Case, error

WIDTHS = (3, 16, 20, 48, 64, 64, 100, 128, 128, 160, 256)
COMPILED = ("dtype", "packed", "width", "values", "method")
VALUES = (1, 7, 16, 33, 64, 130)


def drawn(dice: random.Random, longest: int, dtypes: tuple[str, ...]) -> dict[str, Any]:
    """What a call looks like."""
    width, key_heads, group = dice.choice(WIDTHS), dice.choice((1, 2, 3)), dice.choice((1, 1, 2, 4))
    values = dice.choice((width, dice.choice(VALUES)))
    most = dice.choice((1, 8, 60, 128, 200, 600, longest))
    return {
        "dtype": dice.choice(dtypes),
        "packed": dice.random() < 0.4,
        "width": width,
        "values": values,
        "heads": key_heads * group,
        "key_heads": key_heads,
        "queries": dice.randint(1, most),
        "keys": dice.randint(1, most),
        "bags": dice.choice((1, 2, 5)),
        "per_head": dice.random() < 0.3,
        "absent": dice.choice((0.0, 0.1, 0.9)),
        "method": dice.choice(
            ("auto", "auto", "stream", "moments" if max(width, values) <= 128 else "stream")
        ),
        "seed": dice.randrange(2**31),
    }


def bags_of(of: dict[str, Any], device: torch.device) -> list[list[Tensor]]:
    """q, k, v, multiplicities and the output's gradient of every bag, [heads, rows, width] each;
    multiplicities [key heads or 1, keys].
    """
    numbers, dtype = torch.Generator().manual_seed(of["seed"]), getattr(torch, of["dtype"])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=numbers).to(device, dtype)

    shares = [
        torch.rand(2, generator=numbers) if of["packed"] else torch.ones(2)
        for _ in range(of["bags"])
    ]
    bags = []
    for share in shares:
        queries, keys = (int(n) for n in share * torch.tensor([of["queries"], of["keys"]]))
        m = torch.rand(of["key_heads"] if of["per_head"] else 1, keys, generator=numbers) * 3 + 0.05
        m = torch.where(torch.rand(m.shape, generator=numbers) < of["absent"], 0.0, m).to(device)
        q, k = normal(of["heads"], queries, of["width"]), normal(of["key_heads"], keys, of["width"])
        v = normal(of["key_heads"], keys, of["values"])
        bags.append([q, k, v, m, normal(of["heads"], queries, of["values"])])
    return bags


def together(parts: list[Tensor], packed: bool) -> Tensor:
    """The rows of all bags, [heads, rows, ...] each, in the form of a call."""
    return torch.cat(parts, 1).transpose(0, 1) if packed else torch.stack(parts)


def apart(rows: Tensor, sizes: list[int], packed: bool) -> list[Tensor]:
    """The inverse of together; sizes: rows of each bag."""
    return [part.transpose(0, 1) for part in rows.split(sizes)] if packed else list(rows)


def judged(of: dict[str, Any], device: torch.device, backend: str) -> dict[str, float]:
    """The largest errors of a call's results, in units of their bounds."""
    packed, per_head, bags = of["packed"], of["per_head"], bags_of(of, device)
    q, k, v, m, grad = (together(list(parts), packed) for parts in zip(*bags, strict=True))
    queries, keys = ([bag[place].shape[1] for bag in bags] for place in (0, 1))
    cut = {}
    if packed:
        ends = (torch.tensor([0, *sizes]).cumsum(0).to(device) for sizes in (queries, keys))
        cut = dict(zip(("query_offsets", "offsets"), ends, strict=True))
    m = m if per_head else m.squeeze(1)
    leaves = [x.detach().requires_grad_() for x in (q, k, v, m)]
    output = spherical_attention(*leaves, **cut, method=of["method"], backend=backend)
    *found, dm = output.detach(), *torch.autograd.grad(output, leaves, grad)
    found.append(dm if per_head else dm.unsqueeze(1))
    rows = (queries, queries, keys, keys, keys)
    results = [apart(x, sizes, packed) for x, sizes in zip(found, rows, strict=True)]
    worst = dict.fromkeys(TENSORS, 0.0)
    for bag, *parts in zip(bags, *results, strict=True):
        if not bag[0].shape[1] or not bag[1].shape[1]:
            assert all(not x.any() for x in parts), "a bag without queries or keys gives zeros"
            continue
        bag, parts = without_empty_heads(bag, parts, of["heads"] // of["key_heads"])
        if not len(bag[1]):
            continue
        bag_q, bag_k, bag_v, bag_m, bag_grad = (x[None] for x in bag)
        case = Case(bag_q, bag_k, bag_v, bag_m if per_head else bag_m[:, 0], bag_grad)
        each = dict(zip(TENSORS, (x[None] for x in parts), strict=True))
        each["dm"] = each["dm"] if per_head else each["dm"][:, 0]
        # whose gradients are differences of equal numbers
        single = bool(((bag_m != 0).sum(-1) <= 1).any())
        added = dict.fromkeys(TENSORS, 0.0)
        if q.dtype.itemsize == 2:
            added = rounding_of_keys(case)
        elif of["method"] != "stream":
            added = cancelling_sums(case)
        for name, verdict in case.judge({"o": each["o"]} if single else each).items():
            if case.true[name].any() or verdict.error != verdict.error:
                own = verdict.error / (verdict.bound + added[name])
                worst[name] = max(worst[name], math.inf if math.isnan(own) else own)
            else:
                assert not each[name].any(), f"{name} must be zero"
    return worst


def without_empty_heads(
    bag: list[Tensor], parts: list[Tensor], group: int
) -> tuple[list[Tensor], list[Tensor]]:
    """A bag and its results without the key heads of which no key is present, whose results must be
    zeros.
    """
    alive = (bag[3] != 0).any(-1).expand(len(bag[1]))
    of_queries = alive.repeat_interleave(group)
    own = [of_queries, of_queries, alive, alive]
    assert not any(part[~kept].any() for part, kept in zip(parts, own, strict=False)), (
        "a head without keys gives zeros"
    )
    per_head = len(bag[3]) > 1
    q, k, v, m, grad = bag
    bag = [q[of_queries], k[alive], v[alive], m[alive] if per_head else m, grad[of_queries]]
    o, dq, dk, dv, dm = parts
    return bag, [o[of_queries], dq[of_queries], dk[alive], dv[alive], dm[alive] if per_head else dm]


def rounding_of_keys(case: Case) -> dict[str, float]:
    """By how much results change, relative to themselves, if m k is rounded to the dtype of k."""
    m = (case.m if case.m.ndim == 3 else case.m[:, None])[..., None].double()
    unit = torch.exp2(-m.amax((-2, -1), keepdim=True).clamp_min(1e-30).log2().floor())
    rounded = (m * unit * case.k.double()).to(case.k.dtype).double() / torch.where(
        m == 0, 1.0, m * unit
    )
    changed = Case(
        case.q, torch.where(m == 0, case.k.double(), rounded), case.v, case.m, case.grad
    ).true
    return {name: error(changed[name], case.true[name]) for name in TENSORS}


def cancelling_sums(case: Case) -> dict[str, float]:
    """Errors of the same call by torch's moments in float32."""
    leaves = [x.clone().requires_grad_() for x in (case.q, case.k, case.v, case.m)]
    output = spherical_attention(*leaves, method="moments", backend="torch")
    found = output.detach(), *torch.autograd.grad(output, leaves, case.grad)
    return {name: error(x, case.true[name]) for name, x in zip(TENSORS, found, strict=True)}


def main() -> int:
    chosen = read_options(
        __doc__,
        calls=1000,
        longest=Option(3000, "genes of the longest bags"),
        seconds=Option(math.inf, "stop after this time"),
        seed=0,
        variants=Option(help="reuse dtypes, widths and methods of so many", kind=int),
        backend=Option("auto", choices=("auto", "triton", "torch")),
        output=RESULTS / "random_calls.csv",
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtypes = (
        ("float16", "float32") if device.type == "cpu" else ("float16", "bfloat16", "float32")
    )  # (log.md)
    dice, rows, begun = random.Random(chosen.seed), [], time.monotonic()
    for number in range(chosen.calls):
        if time.monotonic() - begun > chosen.seconds:
            break
        of = drawn(dice, chosen.longest, dtypes)
        if chosen.variants and number >= chosen.variants:  # compiling takes most of the time
            of |= {name: rows[number % chosen.variants][name] for name in COMPILED}
        row: dict[str, Any] = {"call": number, **of}
        try:
            row |= judged(of, device, chosen.backend)
        except (AssertionError, RuntimeError, ValueError) as problem:
            row["problem"] = repr(problem)[:200]
        row["within"] = all(row.get(name, math.inf) <= 1 for name in TENSORS)
        rows.append(row)
        if not row["within"]:
            print(row, flush=True)
    table = pd.DataFrame(rows)
    table.insert(0, "device", torch.cuda.get_device_name() if device.type == "cuda" else "cpu")
    write(chosen.output, table)
    print(
        table.groupby(["dtype", "packed"])[list(TENSORS)]
        .max()
        .to_string(float_format=lambda x: f"{x:.2f}")
    )
    print(
        f"{int(table.within.sum())} of {len(table)} calls are within their bounds; wrote "
        f"{chosen.output}."
    )
    return int(not table.within.all())


if __name__ == "__main__":
    sys.exit(main())
