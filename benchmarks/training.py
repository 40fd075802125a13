"""How fast is a training step, how busy is the GPU, and what would softmax attention cost?

    # steps alone: a minute on an H200
    python benchmarks/training.py
    # also how busy the GPU is in `grn train` of a file
    python benchmarks/training.py --run atlas.h5ad

A step is that of `grn train` without the average of the weights: losses and gradients as one CUDA
graph, AdamW as another; its cells are on the GPU already. With softmax, the same recorded model
reads the regulators by cuDNN's attention in bfloat16: the same queries, the keys and values of a
cell multiplied by its multiplicities. cuDNN then has to read every cell anew, where
attention_by_scores makes two matrix products of all cells, as their scores are the same; that is
what the ratio shows.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from arguments import Option, read_options
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from flashsign import slope_penalty
from grn.bags import Bags, Batch
from grn.config.schema import Config
from grn.model.reader import ReaderShape
from grn.model.regulation import Model
from grn.model.signed_block import SignedBlock
from grn.training.recorded import EAGER, Recorder
from grn.training.task import Task
from grn.training.update import Update

STATES, EXPRESSED, STEPS = 4, 0.3, 20
# Genes, regulators, cells of a step. In the first rows every gene is a key.
POINTS = [(2000, 2000, 1024), (2000, 2000, 64), (20_000, 20_000, 64), (20_000, 20_000, 4)]
POINTS += [(2000, 100, 1024), (2000, 100, 64), (20_000, 1500, 64), (20_000, 1500, 4)]
VALUE = 8  # cuDNN's least width of a value


def by_softmax(
    block: SignedBlock, m: Tensor, states: Tensor, pick: Tensor, penalty: Tensor, *_
) -> tuple[Tensor, ...]:
    """SignedBlock.learned with softmax: every cell in its one state. The penalty is of the same
    slopes.
    """
    query, key = block.embedding(pick)
    shrink = slope_penalty(
        block.scores(pick), block.amounts(), *block.gains(pick), block.square, penalty
    )
    if not len(pick):
        return states @ block.level[..., pick], shrink
    state = states.argmax(1)
    # [P, 1, C, R + 1, 1]
    m = (m if m.ndim == 3 else m.expand(len(query), -1, -1))[:, None, :, :, None]
    value = F.pad(block.amounts()[:, :, None, :, None] * m, (0, VALUE - 1))
    parts = (query[:, :, state], key[:, :, None] * m, value)
    read = F.scaled_dot_product_attention(*(part.flatten(0, 1).bfloat16() for part in parts))
    gain, _ = block.gains(pick)
    change = (read[..., 0].unflatten(0, query.shape[:2]).float() * gain[:, :, None]).sum(1)
    return change + states @ block.level[..., pick] + block.bias[:, None, pick], shrink


@contextmanager
def softmax(owner: type, name: str, replacement: Callable[..., object]) -> Iterator[None]:
    """Within it a method of the model reads by cuDNN's softmax."""
    with patch.object(owner, name, replacement), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        yield


def step_of(task: Task, batches: Callable[[], Batch]) -> Callable[[], None]:
    """A function that trains one step, on the next of the batches."""
    optimizer = task.configure_optimizers()["optimizer"]
    recorder = Recorder(task.losses, list(task.parameters()), Update(optimizer))

    def step() -> None:
        loss, _ = recorder(batches(), {}, False)
        recorder.backward(loss)
        if recorder.latest is not None:
            recorder.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


def stepping(genes: int, regulators: int, cells: int, device: str) -> Callable[[], None]:
    """A function that trains one step; the identity token learns in every second one."""
    torch.manual_seed(0)
    config = Config.model_validate({"data": {"path": "simulated:"}})
    identity = ReaderShape(classes=STATES, summary=64, hidden=128, embedding=64)
    model = Model(
        config.model, genes, regulators=torch.arange(regulators), states=STATES, identity=identity
    )
    model.penalty.fill_(0.1)
    task = Task(model, config.objectives, config.trainer, 10**6).to(device).train()
    present = torch.rand(cells, genes, device=device) < EXPRESSED
    labels = torch.randint(STATES, (cells,), device=device)
    room = tuple(labels.bincount(minlength=STATES).tolist())
    states = F.one_hot(labels, STATES).float()
    bags = Bags(torch.rand(cells, genes, device=device) * present, states=states, room=room)
    number = torch.arange(cells, device=device)
    kinds = [Batch(bags, number, labels, number % 5, kept=kept) for kept in (present | True, None)]
    return step_of(task, partial(next, itertools.cycle(kinds)))


def measured(step: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a step, and the share of them in which the GPU computes."""
    for _ in range(2 * EAGER + 4):
        step()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / STEPS
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    return seconds, busy(found)


def busy(found: profile) -> float:
    """The share of the time between the first and the last kernel in which one runs."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in found.events()
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    )
    total, until = 0.0, spans[0][0]
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total / (until - spans[0][0])


@contextmanager
def watched(first: int, last: int) -> Iterator[profile]:
    """A profile of the steps first to last of a `grn train` that is called meanwhile."""
    found = profile(activities=[ProfilerActivity.CUDA])
    own = Task.on_train_batch_start

    def start(task: Task, batch: Batch, index: int) -> None:
        if task.global_step in (first, last):
            torch.cuda.synchronize()
            found.start() if task.global_step == first else found.stop()
        own(task, batch, index)

    with patch.object(Task, "on_train_batch_start", start):
        yield found


def busy_in_run(path: Path, first: int, last: int) -> float:
    """The same of steps of `grn train` of a file, whose batches a thread reads meanwhile."""
    from anndata import read_h5ad

    from grn import train

    names = list(read_h5ad(path, backed="r").var_names[:100])
    steps = {"trainer.max_steps": last + 10}
    with tempfile.TemporaryDirectory() as folder, watched(first, last) as found:
        train(path, label="cell_type", regulators=names, output=f"{folder}/run", set=steps)
    return busy(found)


def main() -> None:
    chosen = read_options(__doc__, run=Option(kind=Path))
    print(
        torch.cuda.get_device_name(),
        "- ms of a step, cells a second, share of the time that the GPU computes",
    )
    for genes, regulators, cells in POINTS:
        print(f"{genes:>6} genes {regulators:>6} regulators {cells:>5} cells", end="", flush=True)
        seconds, share = measured(stepping(genes, regulators, cells, "cuda"))
        torch.cuda.empty_cache()
        print(
            f"{1e3 * seconds:>8.2f} ms {cells / seconds:>8.0f}/s {share:>5.0%}   softmax",
            end="",
            flush=True,
        )
        try:
            with softmax(SignedBlock, "learned", by_softmax):
                slow, _ = measured(stepping(genes, regulators, cells, "cuda"))
            print(f"{1e3 * slow:>9.2f} ms, {slow / seconds:.1f} times as long", flush=True)
        except torch.OutOfMemoryError:
            print(": more memory than the GPU has", flush=True)
        torch.cuda.empty_cache()
    if chosen.run:
        print(
            f"in grn train of {chosen.run}: the GPU computes "
            f"{busy_in_run(chosen.run, 310, 390):.0%} of the time"
        )


if __name__ == "__main__":
    main()
