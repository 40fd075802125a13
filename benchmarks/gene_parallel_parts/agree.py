"""Compares gene parallelism with one device that has all genes: attention with its gradients, and training.

Letters: C cells, N genes of a bag (queries and keys), H query heads, K key heads, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from training_parts.cells import Point, batches
from training_parts.steps import BATCHES, Training

from flashsign import spherical_attention
from gene_parallel_parts.steps import GeneParallelTraining, mean_over_processes
from grn.bags import Bags

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
