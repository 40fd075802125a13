"""Three training steps under torch's profiler: which CUDA kernels take the time, and which fraction is flashsign's."""

from __future__ import annotations

import itertools

import torch
from attention_parts.clock import synchronise, times
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from training_parts.cells import Point, batches
from training_parts.methods import attending
from training_parts.steps import BATCHES, WARMUPS, Training, flashsign_path

STEPS, SHOWN = 3, 15
LAUNCHED = {
    "stream": ("scaled_keys", "stream_forward", "scaled_queries", "key_gradients", "stream_query_gradient"),
    "moments": ("sum_keys", "attend_moments", "sum_queries", "query_gradients", "key_gradients"),
    "torch": (),
}
"""Path -> flashsign's kernels that every step on it launches."""
OURS = (
    *dict.fromkeys(name for names in LAUNCHED.values() for name in names), "moment_query_gradient", "key_moments",
    "add_parts", "attend_rows", "small_forward", "small_backward",
)  # fmt: skip


def fraction(kernels: dict[str, float], wanted: tuple[str, ...]) -> tuple[float, list[str]]:
    """flashsign's fraction of the kernels' time, and the wanted kernels that did not run. kernels: name -> time."""
    ours = sum(time for name, time in kernels.items() if any(each in name for each in OURS))
    missing = [each for each in wanted if not any(each in name for name in kernels)]
    return ours / max(sum(kernels.values()), 1e-12), missing


def trace(point: Point, device: torch.device, precision: str, compiled: bool = False) -> list[str]:
    """Prints the kernels; returns a complaint where one of flashsign's did not run on a GPU."""
    cuda = device.type == "cuda"
    with attending(None):
        training = Training(point, batches(point, BATCHES), device, precision, compiled=compiled)
        for _ in range(WARMUPS):
            training.step()
        synchronise(device)
        wall = min(times(itertools.repeat(training.step), 10, device))
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as found:
            for _ in range(STEPS):
                training.step()
            synchronise(device)
    where = DeviceType.CUDA if cuda else DeviceType.CPU
    # Annotations such as "Optimizer.step" span kernels that are listed themselves.
    events = [
        event
        for event in found.key_averages()
        if event.device_type == where and not getattr(event, "is_user_annotation", False)
    ]
    time = "self_device_time_total" if cuda else "self_cpu_time_total"
    kernels: dict[str, float] = {}
    calls: dict[str, int] = {}
    for event in events:
        kernels[event.key] = kernels.get(event.key, 0.0) + getattr(event, time)
        calls[event.key] = calls.get(event.key, 0) + event.count
    total = sum(kernels.values())
    ours, missing = fraction(kernels, LAUNCHED[flashsign_path(point, precision, device)])
    print(f"{STEPS} steps, {precision}: {point}\n{'ms/step':>10}{'of all':>8}{'calls':>8}  kernel")
    for name in sorted(kernels, key=lambda each: -kernels[each])[:SHOWN]:
        ms, calls_a_step = kernels[name] / 1000 / STEPS, calls[name] / STEPS
        print(f"{ms:>10.3f}{kernels[name] / total:>8.1%}{calls_a_step:>8.1f}  {name[:90]}")
    print(f"{total / 1000 / STEPS:>10.3f}{1:>8.1%}{sum(calls.values()) / STEPS:>8.1f}  all {len(kernels)}")
    print(f"A step without the profiler takes {wall:.3f} ms. flashsign's kernels take {ours:.1%} of the kernels' time:")
    for each in OURS:
        ms = sum(spent for name, spent in kernels.items() if each in name) / 1000 / STEPS
        print(f"{ms:>10.3f}{'':>16}  {each}")
    return [f"flashsign's kernels did not run: {point}, {', '.join(missing)}."] if cuda and missing else []
