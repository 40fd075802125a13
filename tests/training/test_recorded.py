"""Recorded steps are the steps that they record."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from grn.bags import Bags, Batch
from grn.training.finite import skip_unless_finite
from grn.training.recorded import EAGER, Recorder, tensors_of
from grn.training.update import Update


def batch_on(device: str, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(6, 4, generator=generator)
    cells = torch.arange(6)
    return Batch(Bags(values, values.sum(1)), cells, cells, cells).to(device)


def divisor(cells: float, device: str = "cpu") -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(cells, device=device)}


def recorder_of(parameter: torch.Tensor, calls: list[bool], update: Update | None = None) -> Recorder:
    def losses(batch: Batch, by: dict[str, torch.Tensor], opened: bool):
        calls.append(opened)
        loss = (batch.bags.multiplicity @ parameter + torch.rand(6, device=parameter.device)).square().sum() / by[
            "loss"
        ]
        return loss, {"loss": loss}

    return Recorder(losses, [parameter], update)


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
def test_a_recorded_step_has_the_loss_of_the_step_and_moves_parameter_and_average_as_it_does():
    found, calls = [], []
    for recorded in (True, False):
        parameter, average = torch.ones(4, device="cuda", requires_grad=True), torch.ones(4, device="cuda")
        idle = torch.ones(4, device="cuda", requires_grad=True)
        optimizer = torch.optim.AdamW([parameter, idle], lr=0.1, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        follow = partial(average.lerp_, parameter.detach(), 0.5)
        recorder = recorder_of(parameter, calls, Update(optimizer, [follow]) if recorded else None)
        for seed in range(EAGER + 4):
            batch = batch_on("cuda", seed)
            if seed == EAGER + 2:
                batch.bags.multiplicity[0] = torch.inf  # moves nothing
            torch.manual_seed(seed)
            idle.grad = torch.ones_like(idle)  # as another step has left it: Lightning clears it after the losses
            loss, parts = recorder(batch, divisor(seed + 1.0, "cuda"), False)
            optimizer.zero_grad()
            recorder.backward(loss)
            if recorder.latest is None:
                skip_unless_finite(optimizer, parameter.grad.norm().isfinite())
            else:
                assert recorder.step().tolist() == [seed != EAGER + 2] * 2 and parameter.grad is None
            optimizer.step()
            schedule.step()
            if recorder.latest is None:
                follow()
            each = loss.detach(), parts["loss"].detach(), parameter.detach(), average, idle.detach()
            found.append([one.clone() for one in (*each, *optimizer.state[parameter].values())])
            del loss, parts  # a graph of autograd that lives on waits for the stream that it was made on
    torch.testing.assert_close(found[: EAGER + 4], found[EAGER + 4 :])
    assert len(calls) == EAGER + 2 + EAGER + 4
    assert optimizer.param_groups[0]["capturable"] is False and optimizer.param_groups[0]["lr"] == 0.1 / (EAGER + 5)
