"""How fast does the paper's transformer train, and what would cuDNN's softmax attention cost?

    # a minute of an H200
    python benchmarks/transformer.py
    # the kernels of the steps of `grn train`, and their shares
    python benchmarks/transformer.py --run pbmc.yaml

A step is that of `grn train` with identity as the only objective: tokens are made, and losses,
gradients and AdamW's update are CUDA graphs. Four layers of width 128 with eight heads of 64; a
cell expresses every gene, so that all bags have one size, as cuDNN's kernel wants it. With softmax
the same recorded model takes the same queries, keys and values in bfloat16.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from arguments import Option, read_options
from torch import Tensor
from torch.nn import functional as F

from benchmarks.training import busy, measured, softmax, step_of, watched
from grn.bags import Bags, Batch, Tokens
from grn.config.files import load_config
from grn.config.schema import Config
from grn.model.objectives import with_tokens
from grn.model.reader import ReaderShape
from grn.model.regulation import Model
from grn.model.transformer import Layer, Layers, linear
from grn.training.run import train
from grn.training.task import Task

CLASSES, LAYERS, WIDTH, HEADS, HEAD, HIDDEN = 8, 4, 128, 8, 64, 256
POINTS = [(2000, 64), (5000, 32), (20_000, 8)]  # genes, cells of a step
SHOWN = 40  # kernels of a trace


def by_softmax(
    layer: Layer, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens, asking: Tensor
) -> Tensor:
    """Layer.attend with softmax, of one member and bags of one size; an identity token would be one
    more key.
    """
    cells = len(tokens.identity)
    size = sizes[cells]

    def bags(rows: Tensor, size: int) -> Tensor:
        """[1, T, heads E] -> [C, heads, N, E], without what fills tokens up."""
        return rows[0, : cells * size].view(cells, size, -1, layer.head).transpose(1, 2)

    keys = k * (tokens.multiplicity * tokens.sign).view(1, -1, 1).to(k)
    own = bags(q, 1 if asking is tokens.asking else size)
    grouped = q.shape[-1] != k.shape[-1]
    read = F.scaled_dot_product_attention(own, bags(keys, size), bags(v, size), enable_gqa=grouped)
    rows = read.transpose(1, 2).reshape(1, -1, q.shape[-1])
    return linear(F.pad(rows, (0, 0, 0, q.shape[1] - rows.shape[1])), layer.output)


sizes: dict[int, int] = {}
"""Tokens of a cell, by the number of cells of a step: the host knows it."""


def stepping(genes: int, cells: int, key_heads: int, device: str = "cuda") -> Callable[[], None]:
    """A function that trains one step."""
    torch.manual_seed(0)
    given = {"data": {"path": "simulated:"}, "objectives": {"masked_multiplicity": {"weight": 0}}}
    config = Config.model_validate(given | {"model": {"reader": "transformer"}})
    shape = ReaderShape(
        members=1, classes=CLASSES, summary=WIDTH, hidden=HIDDEN, query_heads=HEADS, layers=LAYERS
    )
    model = Model(
        config.model, genes, regulators=torch.arange(1), states=1, identity=shape, genes_train=False
    )
    layers = (
        Layer(1, WIDTH, HEADS, key_heads, HIDDEN, shape.iterations, HEAD) for _ in range(LAYERS)
    )
    model.identity.layers = Layers(layers)
    task = Task(model, config.objectives, config.trainer, 10**6).to(device).train()
    sizes[cells] = genes + 2
    bags = Bags(torch.rand(cells, genes, device=device) + 0.1)
    number = torch.arange(cells, device=device)
    batch = Batch(bags, number, number % CLASSES, number % 5, kept=bags.multiplicity > 0)
    return step_of(task, lambda: with_tokens(batch, model))


def trace(name: str, first: int = 40, last: int = 60) -> None:
    """Prints which kernels run in the steps first to last of a run, how often a step, and their
    share of the time.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, watched(first, last) as found:
        train(load_config(name), Path(folder) / "run", say=print)
    print(
        f"{name}: {time.perf_counter() - started:.0f} s whole; in steps {first} to {last} the GPU "
        "computes",
        end=" ",
    )
    events = [each for each in found.key_averages() if each.self_device_time_total > 0]
    total = sum(each.self_device_time_total for each in events)
    print(f"{busy(found):.0%} of the time, {total / 1e3 / (last - first):.2f} ms a step")
    for each in sorted(events, key=lambda each: -each.self_device_time_total)[:SHOWN]:
        share, count = each.self_device_time_total / total, each.count / (last - first)
        print(f"{share:>7.1%} {count:>6.1f} a step  {each.key[:100]}")


def main() -> None:
    if configs := read_options(__doc__, run=Option(several=True)).run:
        for name in configs:
            trace(name)
        return
    print(
        torch.cuda.get_device_name(),
        "- ms of a step, share of the time that the GPU computes, memory",
    )
    for genes, cells in POINTS:
        for key_heads in (HEADS, HEADS // 4):
            print(f"{genes:>6} genes {cells:>3} cells {key_heads} key heads", end="", flush=True)
            found = []
            for way in (nullcontext(), softmax(Layer, "attend", by_softmax)):
                torch.cuda.reset_peak_memory_stats()
                with way:
                    seconds, share = measured(stepping(genes, cells, key_heads))
                gibibytes = torch.cuda.max_memory_allocated() / 2**30
                found.append(seconds)
                print(
                    f"{1e3 * seconds:>9.2f} ms {share:>5.0%} {gibibytes:>5.1f} GiB",
                    end="",
                    flush=True,
                )
                torch.cuda.empty_cache()
            print(f"   softmax takes {found[1] / found[0]:.1f} times as long", flush=True)


if __name__ == "__main__":
    main()
