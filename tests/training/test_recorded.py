"""Recorded steps are the steps that they record."""

from dataclasses import replace

import pytest
import torch

from grn.bags import Bags, Batch
from grn.training.recorded import EAGER, Recorder, tensors_of


def batch_on(device: str, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(6, 4, generator=generator)
    cells = torch.arange(6)
    return Batch(Bags(values, values.sum(1)), cells, cells, cells).to(device)


def divisor(cells: float, device: str = "cpu") -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(cells, device=device)}


def recorder_of(parameter: torch.Tensor, calls: list[bool]) -> Recorder:
    def losses(batch: Batch, by: dict[str, torch.Tensor], opened: bool):
        calls.append(opened)
        loss = (batch.bags.multiplicity @ parameter + torch.rand(6, device=parameter.device)).square().sum() / by[
            "loss"
        ]
        return loss, {"loss": loss}

    return Recorder(losses, [parameter])


def test_a_processor_calls_the_losses_as_they_are():
    parameter, calls = torch.ones(4, requires_grad=True), []
    recorder = recorder_of(parameter, calls)
    for _ in range(EAGER + 2):
        recorder(batch_on("cpu"), divisor(6.0), True)
    assert calls == [True] * (EAGER + 2) and not recorder.graphs


def test_all_tensors_of_a_batch_are_inputs():
    batch = batch_on("cpu")
    names = ("multiplicity", "basal"), ("cells", "labels", "fold")
    expected = [getattr(batch.bags, name) for name in names[0]] + [getattr(batch, name) for name in names[1]]
    assert all(a is b for a, b in zip(tensors_of(batch), expected, strict=True))


def test_a_graph_has_room_for_more_cells_of_a_state_and_is_recorded_anew_for_many_more():
    recorder, batch = recorder_of(torch.ones(4), []), replace(batch_on("cpu"), cells=torch.arange(100))

    def room(*sizes: int) -> tuple[int, ...]:
        recorder.graphs["kind"] = None
        given = replace(batch, bags=replace(batch.bags, room=sizes))
        return recorder.with_room(given).bags.room

    assert recorder.with_room(batch) is batch
    assert room(0, 64) == (4, 100) and not recorder.graphs, "at most all cells"
    assert room(4, 70) == (4, 100) and recorder.graphs, "the same graphs"
    assert room(9, 25) == (25, 100) and not recorder.graphs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_has_the_loss_and_the_gradient_of_the_step():
    parameter, calls = torch.ones(4, device="cuda", requires_grad=True), []
    recorder = recorder_of(parameter, calls)
    for seed in range(EAGER + 3):
        batch = batch_on("cuda", seed)
        found = []
        for losses, backward in ((recorder, recorder.backward), (recorder.losses, torch.Tensor.backward)):
            torch.manual_seed(seed)
            parameter.grad = None
            loss, parts = losses(batch, divisor(seed + 1.0, "cuda"), False)
            backward(loss)
            found.append((loss.detach(), parts["loss"].detach().clone(), parameter.grad.clone()))
            del loss, parts  # a graph of autograd that lives on waits for the stream that it was made on
        torch.testing.assert_close(*found)
    assert len(recorder.graphs) == 1 and len(calls) == EAGER + 2 + EAGER + 3
