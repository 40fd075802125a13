"""Is gene parallelism (`trainer.gene_parallel`) right, and how much faster are two GPUs than one?

    PYTHONPATH=.:kernels torchrun --standalone --nproc-per-node 2 benchmarks/gene_parallel.py    # 1 minute on two H200
    PYTHONPATH=.:kernels torchrun --standalone --nproc-per-node 2 benchmarks/gene_parallel.py --device cpu --smoke

The genes of every cell are split over the GPUs. First part: attention with all its gradients, and 30 training steps,
against one device that has all genes. Second part: seconds per training step at 60 000 genes per cell, on one device
and on all. Prints tables and writes `gene_parallel.csv` (columns: COLUMNS below). The exit status is 1 where results
differ, or where two GPUs are less than BAR times as fast as one.
The cells are simulated and already on the device. Steps are those of benchmarks/training.py, with
DistributedDataParallel around the loss, as under Lightning.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from attention_parts.clock import release, synchronise
from results_file import merged, write
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training_steps import BATCHES, PRECISIONS, Measured, Point, Training, batches, measure

from flashsign import spherical_attention
from grn.bags import Bags, Batch
from grn.model.objectives import mean_losses, total_loss
from grn.training.task import Task


class Loss(nn.Module):
    """What DistributedDataParallel wraps: the loss of this process's genes of a batch."""

    def __init__(self, task: Task):
        super().__init__()
        self.task = task

    def forward(self, batch: Batch) -> Tensor:
        _, losses = self.task.losses(batch)
        return total_loss(mean_losses(losses, mean_over_processes), self.task.weights)


class GeneParallelTraining(Training):
    """A model in training on this process's genes of some batches; `batches` have all genes, in every process."""

    def __init__(
        self,
        point: Point,
        batches: list[Batch],
        device: torch.device,
        precision: str,
        group: distributed.ProcessGroup,
        **more,
    ):
        super().__init__(point, batches, device, precision, **more)
        parts = [batch.part_of_genes(group.rank(), group.size()).to(device) for batch in batches]
        self.batches = itertools.cycle(parts)
        self.task.model.group = group
        # DDP's own collectives use the default group, as under Lightning (grn/training/loop/gene_parallel.py).
        self.whole = DistributedDataParallel(Loss(self.task), device_ids=[device] if device.type == "cuda" else None)

    def loss(self, batch: Batch) -> Tensor:
        return self.whole(batch)


def mean_over_processes(count: Tensor) -> Tensor:
    count = count.clone()
    distributed.all_reduce(count)
    return count / distributed.get_world_size()


NAMES = ("output", "dq", "dk", "dv", "dm")
# Largest |found - true| / |true| over all genes. For bf16: the error of rounding outputs and gradients to 8 bits.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}
STEPS, LOSS, GRADIENT = (
    30,
    1e-3,
    1e-3,
)  # training in float32: steps, and bounds for the loss and for the gradients of the first step


@dataclass(frozen=True)
class Case:
    packed: bool
    dtype: torch.dtype
    genes: int
    cells: int = 3
    heads: int = 4
    key_heads: int = 2
    width: int = 32

    def __str__(self) -> str:
        form = "packed" if self.packed else "dense"
        return f"{form}, {self.cells} x {self.genes} genes, {str(self.dtype).removeprefix('torch.')}"

    def tensors(self) -> tuple[Bags, dict[str, Tensor]]:
        """Bags, and q and the output's gradient [T, H, E], k and v [T, K, E] in the dtype of the case.

        Packed, on the CPU, and the same in every process. A third of the genes is absent.
        """
        random = torch.Generator().manual_seed(0)
        sizes = torch.full((self.cells,), self.genes)
        if self.packed:
            sizes = sizes - torch.randint(self.genes // 2, (self.cells,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
        rows = int(offsets[-1])
        m = torch.rand(rows, generator=random) * (torch.rand(rows, generator=random) > 1 / 3)
        shapes = {"q": self.heads, "k": self.key_heads, "v": self.key_heads, "grad": self.heads}
        found = {name: torch.randn(rows, heads, self.width, generator=random) for name, heads in shapes.items()}
        found = {name: tensor.to(self.dtype) for name, tensor in found.items()}
        return Bags(torch.arange(rows), m.to(self.dtype), offsets), found

    def call(self, tensors: dict[str, Tensor], m: Tensor, offsets: Tensor, **more) -> list[Tensor]:
        """Output and gradients of packed tensors, by a call in the form of the case (packed or dense)."""
        leaves = [x.detach().requires_grad_() for x in (tensors["q"], tensors["k"], tensors["v"], m)]
        if self.packed:
            output = spherical_attention(*leaves, offsets=offsets, **more)
        else:
            dense = (x.unflatten(0, (self.cells, -1)) for x in leaves)
            q, k, v, dense_m = (x.transpose(1, 2) if x.ndim == 4 else x for x in dense)
            output = spherical_attention(q, k, v, dense_m, **more).transpose(1, 2).flatten(0, 1)
        return [output.detach(), *torch.autograd.grad(output, leaves, tensors["grad"])]


def errors(case: Case, group: distributed.ProcessGroup, device: torch.device) -> dict[str, float]:
    """|found - true| / |true| over the genes of all processes; true: float64, streamed over all keys on one device."""
    bags, tensors = case.tensors()
    bags, tensors = bags.to(device), {name: tensor.to(device) for name, tensor in tensors.items()}
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    true = case.call(wide, bags.multiplicity.double(), bags.offsets, method="stream", backend="torch")

    part = group.rank(), group.size()
    positions, own_bags = bags.part_positions(*part), bags.part_of_genes(*part)
    own = {name: tensor[positions] for name, tensor in tensors.items()}
    found = case.call(own, own_bags.multiplicity, own_bags.offsets, group=group)
    squares = [
        torch.stack([(f.double() - t[positions]).square().sum(), t[positions].square().sum()])
        for f, t in zip(found, true, strict=True)
    ]
    sums = torch.stack(squares)
    distributed.all_reduce(sums)
    return dict(zip(NAMES, (sums[:, 0] / sums[:, 1]).sqrt().tolist(), strict=True))


def attention_agrees(genes: int, group: distributed.ProcessGroup, device: torch.device, report) -> list[str]:
    """Reports the errors of every case; returns complaints."""
    bad: list[str] = []
    report(f"attention, genes over {group.size()} processes against one in float64: |found - true| / |true|")
    for case in [Case(packed, dtype, genes) for dtype in TOLERANCES for packed in (False, True)]:
        found, tolerance = errors(case, group, device), TOLERANCES[case.dtype]
        good = max(found.values()) <= tolerance  # not true of nan
        shown = "  ".join(f"{name} {error:.1e}" for name, error in found.items())
        report(f"  {case!s:<42}{shown}  {'within' if good else 'NOT WITHIN'} {tolerance:g}")
        bad += [] if good else [f"Attention differs too much: {case}."]
    return bad


def training_agrees(points: list[Point], group: distributed.ProcessGroup, device: torch.device, report) -> list[str]:
    """Compares the losses of STEPS steps and the first step's gradients, float32, no dropout; returns complaints."""
    bad: list[str] = []
    report(f"training, {STEPS} steps in float32: largest relative difference of a loss, and of a parameter's gradient")
    for point in points:
        made, options = batches(point, BATCHES), {"total": STEPS, "dropout": 0.0}
        alone = Training(point, made, device, "32-true", **options)
        parallel = GeneParallelTraining(point, made, device, "32-true", group, **options)
        loss = gradient = 0.0
        for step in range(STEPS):
            true, found = alone.step(), mean_over_processes(parallel.step())
            loss = max(loss, float((found - true).abs() / true))
            if step == 0:
                gradient, name = largest_difference(parallel, alone)
        good = loss <= LOSS and gradient <= GRADIENT
        verdict = f"{'within' if good else 'NOT WITHIN'} {LOSS:g} and {GRADIENT:g}"
        report(f"  {point!s:<68}{loss:.1e}  {gradient:.1e} ({name})  {verdict}")
        bad += [] if good else [f"Training differs too much: {point}."]
    return bad


def largest_difference(found: Training, true: Training) -> tuple[float, str]:
    """Largest |found - true| / |true| of a parameter's gradient, and its name. Both are clipped, by whole norms."""
    pairs = zip(found.task.named_parameters(), true.task.parameters(), strict=True)
    differences = [
        (float((one.grad - other.grad).norm() / other.grad.norm().clamp_min(1e-12)), name)
        for (name, one), other in pairs
        if other.grad is not None
    ]
    return max(differences)


HERE = Path(__file__).resolve().parent
BAR = 1.7  # the least speed-up on two GPUs
GENES = 60_000
CELLS = 64  # the default of trainer.batch_size
POINTS = (
    ("dense", "all", CELLS), ("dense", "5 %", CELLS), ("packed", "5 %", CELLS), ("packed", "all", CELLS),
    ("dense", "5 %", 16), ("dense", "5 %", 4),
)  # fmt: skip
COLUMNS = {
    "bags": "dense: all cells have the same genes; packed: each has its own, of a vocabulary 1.25 times as large",
    "genes": "of a cell; packed: the mean",
    "keys": "the genes that gene queries read: all, or the 5 % that data.regulators lists",
    "cells": "of a batch, the same on one device and on several",
    "precision": "bf16-mixed (the default of grn train on a GPU) or 32-true",
    "devices": "over which the genes of each cell are split",
    "s_per_step": "median seconds of a training step",
    "s_20": "quantile at 20 %",
    "s_80": "quantile at 80 %",
    "steps": "timed steps",
    "cells_per_s": "cells / s_per_step",
    "memory_gib": "torch.cuda.max_memory_allocated of the first device over the timed steps, in GiB",
    "speedup": "s_per_step on one device over that on these devices",
    "device": "",
    "torch": "",
    "collectives": "nccl or gloo",
}
KEYS = list(COLUMNS)[:6]

Report = Callable[[str], None]


def point_of(bags: str, genes: int, keys: str, cells: int) -> Point:
    """A point without a regulation layer, whose scores of 60 000 genes are too large for grn train."""
    return Point(bags, genes, keys, cells, genes if bags == "dense" else genes * 5 // 4, 0)


def speeds(
    point: Point, precision: str, steps: int, group: distributed.ProcessGroup, device: torch.device
) -> dict[int, Measured]:
    """Number of devices -> times of a step. While the first device works alone, the others wait."""
    made, found = batches(point, BATCHES), {}
    if group.rank() == 0:
        found[1] = measure(Training(point, made, device, precision), 0, steps)
        release(device, collect=True)
    distributed.barrier()
    # No time budget, since all processes must take the same number of steps.
    found[group.size()] = measure(GeneParallelTraining(point, made, device, precision, group), 0, steps)
    release(device, collect=True)
    return found


def rows_of(point: Point, precision: str, found: dict[int, Measured]) -> list[dict[str, Any]]:
    setting = {name: getattr(point, name) for name in KEYS[:4]} | {"precision": precision}
    return [
        setting
        | {"devices": devices, **each._asdict()}
        | {"cells_per_s": point.cells / each.s_per_step, "speedup": found[1].s_per_step / each.s_per_step}
        for devices, each in found.items()
    ]


HEADER = (
    f"{'bags':<7}{'genes':>6}{'keys':>5}{'cells':>6}{'devices':>9}{'ms/step':>9}{'20 %':>8}{'80 %':>8}{'cells/s':>9}"
    f"{'GiB':>7}{'speed-up':>10}"
)


def line(row: dict[str, Any]) -> str:
    ms = "{:>9.2f}{:>8.2f}{:>8.2f}".format(*(1000 * row[name] for name in ("s_per_step", "s_20", "s_80")))
    start = f"{row['bags']:<7}{row['genes']:>6}{row['keys']:>5}{row['cells']:>6}{row['devices']:>9}"
    return f"{start}{ms}{row['cells_per_s']:>9.1f}{row['memory_gib']:>7.2f}{row['speedup']:>10.2f}"


def faster(
    arguments: argparse.Namespace, group: distributed.ProcessGroup, device: torch.device, begun: float, report: Report
) -> list[str]:
    """Measures all points: reports a row when it is measured, and writes the CSV; returns complaints."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    known = {"device": name, "torch": torch.__version__, "collectives": distributed.get_backend()}
    report(f"training steps, {arguments.precision}, {', '.join(known.values())}\n{HEADER}")
    table, bad = [], []
    most = arguments.cells or CELLS
    for point in dict.fromkeys(point_of(bags, arguments.genes, keys, min(cells, most)) for bags, keys, cells in POINTS):
        late = torch.tensor(float(time.monotonic() - begun > arguments.limit_s), device=device)
        distributed.all_reduce(late)  # all processes stop, or none
        if late:
            report(f"from {point} on: not measured, because --limit-s {arguments.limit_s:.0f} had passed")
            break
        found = speeds(point, arguments.precision, arguments.steps, group, device)
        if group.rank() > 0:
            continue
        rows = rows_of(point, arguments.precision, found)
        for row in rows:
            report(line(row))
        table += [row | known for row in rows]
        path = arguments.output / "gene_parallel.csv"
        write(path, merged(path, pd.DataFrame(table, columns=list(COLUMNS)), KEYS))
        judged = device.type == "cuda" and group.size() == 2 and point.cells * point.genes >= 16 * GENES
        if judged and rows[-1]["speedup"] < BAR:
            bad.append(
                f"Two GPUs are {rows[-1]['speedup']:.2f} times as fast as one; it should be {BAR} at least: {point}."
            )
    return bad


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("agree", "speed"), help="run one of the two parts (default: both)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--genes", type=int, metavar="N", help=f"genes of a cell (default: {GENES})")
    parser.add_argument("--cells", type=int, metavar="C", help="at most so many cells per batch")
    parser.add_argument("--steps", type=int, metavar="S", help="timed steps (default: 20)")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: bf16-mixed on a GPU, 32-true on a CPU")
    parser.add_argument("--limit-s", type=float, default=80, metavar="S", help="start no new point after this time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: benchmarks/results; --smoke: a new folder")
    arguments = parser.parse_args(argv)
    arguments.precision = arguments.precision or PRECISIONS[arguments.device != "cuda"]
    arguments.genes = arguments.genes or (80 if arguments.smoke else GENES)
    arguments.steps = arguments.steps or (3 if arguments.smoke else 20)
    arguments.cells = arguments.cells or (3 if arguments.smoke else None)
    if arguments.output is None:
        arguments.output = Path(tempfile.mkdtemp(prefix="gene-parallel-")) if arguments.smoke else HERE / "results"
    return arguments


def main(argv: list[str] | None = None) -> None:
    begun, arguments = time.monotonic(), parsed(argv)
    if "RANK" not in os.environ:
        raise SystemExit("This benchmark needs several processes: start it with torchrun --nproc-per-node 2.")
    if not arguments.smoke and arguments.device == "cpu":
        raise SystemExit("Full sizes need GPUs, and --device is cpu; --smoke runs tiny ones anywhere.")
    cuda = arguments.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=120))
    group = distributed.new_group()
    report = print_at_once if group.rank() == 0 else ignore
    complaints: list[str] = []
    if arguments.only != "speed":
        complaints += attention_agrees(50 if arguments.smoke else 3000, group, device, report)
        # With a handful of regulators a weight may change its sign by rounding, and the losses drift apart.
        genes = 400 if arguments.smoke else 3000
        points = [point_of(bags, genes, keys, 4) for bags in ("dense", "packed") for keys in ("5 %", "all")]
        complaints += training_agrees(points, group, device, report)
        report(f"{time.monotonic() - begun:.0f} s")
    if arguments.only != "agree":
        complaints += faster(arguments, group, device, begun, report)
    synchronise(device)
    report(f"{time.monotonic() - begun:.0f} s; tables go to {arguments.output}")
    distributed.destroy_process_group()
    if complaints and int(os.environ["RANK"]) == 0:
        raise SystemExit("\n".join(complaints))


def print_at_once(text: str) -> None:
    print(text, flush=True)


def ignore(text: str) -> None:
    pass


if __name__ == "__main__":
    main()
