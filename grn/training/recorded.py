"""A training step on a GPU as two CUDA graphs: losses with their gradients, and what the optimiser
makes of these.

A step is a thousand small kernels: the GPU computes them in 4 ms, and Python takes 50 ms to start
them. A graph starts them all at once. Random numbers come from the GPU's generator, which is seeded
before each step, recorded or not. Between the two, processes add up their gradients. Within a graph
they tell each other nothing: two GPUs would hang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor, distributed

from flashsign.check import kernels_run
from grn.bags import Bags, Batch, Tokens
from grn.training.update import Update

EAGER = 3  # steps of a kind before it is recorded: libraries load and kernels compile in them
# a graph has room for n + SPARE sqrt(n) cells of a state: a number that varies by chance has the sd
# sqrt(n)
SPARE = 4

Losses = Callable[[Batch, dict[str, Tensor], bool], tuple[Tensor, dict[str, Tensor]]]


class Recorder:
    """`losses(batch, by, opened)`, recorded with what follows where batches are on a GPU; elsewhere
    called as it is.

    parameters: that have gradients.
    update: of the parameters; None: nothing is recorded.
    by: see Task.losses.
    room: for the cells of each state, see Bags.
    latest: the graphs of the latest step, if it was a recorded one.
    """

    def __init__(self, losses: Losses, parameters: list[Tensor], update: Update | None):
        self.losses, self.parameters, self.update = losses, parameters, update
        self.room: tuple[int, ...] = ()
        self.graphs: dict[Any, Graph] = {}
        self.seen: dict[Any, int] = {}
        self.latest: Graph | None = None

    def __call__(
        self, batch: Batch, by: dict[str, Tensor], opened: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.latest = None
        if self.update is None:
            return self.losses(batch, by, opened)
        if not batch.cells.is_cuda or torch.is_autocast_enabled("cuda"):
            return self.losses(batch, by, opened)
        kind = opened, *(each.shape for each in tensors_of(batch))
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if self.seen[kind] <= EAGER:
            return self.losses(batch, by, opened)
        if not self.may_record(kind):
            return self.losses(batch, by, opened)
        batch = self.with_room(batch)
        if not self.graphs:
            self.compile(batch, by, opened)
        if not self.may_record(kind):  # other room has asked for other kernels
            return self.losses(batch, by, opened)
        if kind not in self.graphs:
            self.graphs[kind] = Graph(self.losses, batch, by, opened, self.parameters, self.update)
        self.latest = self.graphs[kind]
        return self.latest(batch, by)

    def nothing(self, like: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a step in which nothing learns, on the device of `like`."""
        self.latest = None
        return like.new_zeros((), requires_grad=True), {}

    def may_record(self, kind: Any) -> bool:
        """Return whether a step of this kind is recorded, or can be.

        On GPUs that kernels were never seen on, these are checked first, and torch's operations in
        their place read offsets, which a graph cannot.
        """
        return kind in self.graphs or kernels_run()

    def backward(self, loss: Tensor) -> None:
        """Give the parameters the gradients of the latest loss.

        A recorded step has them already and keeps them: the optimiser finds none, and does nothing.
        """
        if self.latest is None:
            loss.backward()
        elif self.update is not None and self.update.processes > 1:
            distributed.all_reduce(self.latest.gradient)

    def step(self) -> Tensor:
        """Update the parameters as a recorded step does; return whether loss and gradient were
        finite (see Update).
        """
        assert self.latest is not None and self.update is not None
        return self.latest.step(self.update.rates())

    def compile(self, batch: Batch, by: dict[str, Tensor], opened: bool) -> None:
        """A step for nothing: other room for cells may need other kernels, and none is compiled
        within a graph.
        """
        with torch.random.fork_rng(devices=[batch.cells.device]):
            loss, _ = self.losses(batch, by, opened)
            torch.autograd.grad(loss, self.parameters, allow_unused=True)
        del loss
        torch.cuda.empty_cache()  # for the graphs

    def with_room(self, batch: Batch) -> Batch:
        """Return the batch with room for the cells of any so far. With more room than before, steps
        are recorded anew.
        """
        needed = batch.bags.room
        if needed is None:
            return batch
        room = self.room or (0,) * len(needed)
        if any(size > most for size, most in zip(needed, room, strict=True)):
            more = (min(size + SPARE * (isqrt(size) + 1), len(batch.cells)) for size in needed)
            self.room = tuple(map(max, room, more))
            self.graphs.clear()
            # frees their memory, which is impossible while a graph is recorded
            torch.cuda.empty_cache()
        return replace(batch, bags=replace(batch.bags, room=self.room))


class Graph:
    """One recorded kind of step.

    parts: of the loss, by name; new values take their place in every step.
    gradient: of all parameters, one after another.
    """

    def __init__(
        self,
        losses: Losses,
        batch: Batch,
        by: dict[str, Tensor],
        opened: bool,
        parameters: list[Tensor],
        update: Update,
    ):
        self.inputs = [*tensors_of(batch), *by.values()]
        self.learning, self.moving = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile: one of them makes the next batch.
        with torch.cuda.graph(self.learning, capture_error_mode="thread_local"):
            self.loss, parts = losses(batch, by, opened)
            found = torch.autograd.grad(self.loss, parameters, allow_unused=True)
            self.gradient = torch.cat([each.flatten() for each in found if each is not None])
        self.loss, self.parts = (
            self.loss.detach(),
            {name: part.detach() for name, part in parts.items()},
        )
        # The optimiser leaves those alone that this kind of step does not use.
        used = [
            each for each, gradient in zip(parameters, found, strict=True) if gradient is not None
        ]
        self.rates = torch.tensor(update.rates(), device=self.loss.device)
        with torch.cuda.graph(self.moving, capture_error_mode="thread_local"):
            self.finite = update(self.loss, used, self.gradient, self.rates)

    def __call__(self, batch: Batch, by: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        torch._foreach_copy_(self.inputs, [*tensors_of(batch), *by.values()])
        self.learning.replay()
        return self.loss.clone(), self.parts

    def step(self, rates: list[float]) -> Tensor:
        self.rates.copy_(torch.tensor(rates, pin_memory=True), non_blocking=True)
        self.moving.replay()
        return self.finite


def tensors_of(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in the order of its fields."""
    found: list[Tensor] = []
    for field in fields(batch):
        value = getattr(batch, field.name)
        parts = (
            [getattr(value, each.name) for each in fields(value)]
            if isinstance(value, (Bags, Tokens))
            else [value]
        )
        found += [part for part in parts if isinstance(part, Tensor)]
    return found
