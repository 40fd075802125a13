"""Compares the losses of the same training on the CPU and on the device: one seed, one order, no dropout."""

from __future__ import annotations

from functools import partial

import torch

from flashsign import spherical_attention
from training_parts.cells import Point, batches
from training_parts.methods import attending
from training_parts.steps import BATCHES, Training

STEPS = 30
TOLERANCES = {"32-true": 1e-3, "bf16-mixed": 2e-2}  # largest relative difference of a loss


def losses(point: Point, steps: int, device: torch.device, precision: str, options: dict[str, str]) -> torch.Tensor:
    """The loss of every step, float64 [steps]; the learning rate goes from warm-up to zero within them."""
    with attending(partial(spherical_attention, **options)):
        training = Training(point, batches(point, BATCHES), device, precision, total=steps, dropout=0.0)
        return torch.stack([training.step() for _ in range(steps)]).double().cpu()


def agree(points: list[Point], device: torch.device, steps: int = STEPS) -> list[str]:
    """Prints the largest relative difference for each point and precision; returns a complaint where one is too large.

    A GPU runs the Triton kernels. A CPU runs the stream in torch, to try this out.
    """
    options = {"backend": "triton"} if device.type == "cuda" else {"method": "stream", "backend": "torch"}
    chosen = ", ".join(f"{name} {value}" for name, value in options.items())
    print(
        f"{steps} steps on the CPU in float32 with torch, and on {device} with {chosen}: first and last loss on the "
        "CPU, largest relative difference"
    )
    bad: list[str] = []
    for point in points:
        reference = losses(point, steps, torch.device("cpu"), "32-true", {"backend": "torch"})
        for precision, tolerance in TOLERANCES.items():
            found = losses(point, steps, device, precision, options)
            difference = float(((found - reference) / reference).abs().max())
            good = difference <= tolerance  # False for nan
            print(
                f"{point!s:<52} {precision:<11} {float(reference[0]):.4f} - {float(reference[-1]):.4f}"
                f"  {difference:.1e}, {'within' if good else 'NOT WITHIN'} {tolerance:g}",
                flush=True,
            )
            bad += [] if good else [f"Losses differ too much: {point} in {precision}, {difference:.1e}."]
    return bad
