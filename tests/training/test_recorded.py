"""Recorded steps are the steps that they record."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from grn.bags import Bags, Batch
from grn.config.files import change_config
from grn.runtime.messages import silent
from grn.training import recorded as module
from grn.training.finite import FiniteCheck, Step, skip_unless_finite
from grn.training.recorded import EAGER, Recorder, tensors_of
from grn.training.run import train
from grn.training.update import Update


def batch_on(device: str, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(6, 4, generator=generator)
    cells = torch.arange(6)
    return Batch(Bags(values, values.sum(1)), cells, cells, cells).to(device)


def divisor(cells: float, device: str = "cpu") -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(cells, device=device)}


def recorder_of(
    parameter: torch.Tensor, calls: list[bool], update: Update | None = None
) -> Recorder:
    def losses(batch: Batch, by: dict[str, torch.Tensor], opened: bool):
        calls.append(opened)
        loss = (
            batch.bags.multiplicity @ parameter + torch.rand(6, device=parameter.device)
        ).square().sum() / by["loss"]
        return loss, {"loss": loss}

    return Recorder(losses, [parameter], update)


def last_of(folder) -> dict:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)


def test_all_tensors_of_a_batch_are_inputs():
    batch = batch_on("cpu")
    expected = [batch.bags.multiplicity, batch.bags.basal, batch.cells, batch.labels, batch.fold]
    assert all(one is other for one, other in zip(tensors_of(batch), expected, strict=True))


def test_a_graph_has_room_for_more_cells_of_a_state():
    recorder = recorder_of(torch.ones(4), [])
    batch = replace(batch_on("cpu"), cells=torch.arange(100))

    def room(*sizes: int) -> tuple[int, ...]:
        recorder.graphs["kind"] = None
        given = replace(batch, bags=replace(batch.bags, room=sizes))
        return recorder.with_room(given).bags.room

    assert recorder.with_room(batch) is batch
    assert room(0, 64) == (4, 100) and not recorder.graphs, "at most all cells"
    assert room(4, 70) == (4, 100) and recorder.graphs, "the same graphs"
    assert room(9, 25) == (25, 100) and not recorder.graphs


def test_nothing_new_is_recorded_while_kernels_are_checked(monkeypatch):
    recorder = recorder_of(torch.ones(4), [])
    recorder.graphs["known"] = None
    for run in (False, True):
        monkeypatch.setattr(module, "kernels_run", lambda run=run: run)
        assert recorder.may_record("known") and recorder.may_record("new") == run


class OnAProcessor:
    """Does what a recorded step does, without a graph."""

    def __init__(self, recorder: Recorder, *given):
        self.recorder, (loss, parts) = recorder, recorder.losses(*given)
        found = torch.autograd.grad(loss, recorder.parameters, allow_unused=True)
        self.used = [
            each
            for each, gradient in zip(recorder.parameters, found, strict=True)
            if gradient is not None
        ]
        self.gradient = torch.cat([each.flatten() for each in found if each is not None])
        self.loss, self.parts = loss.detach(), {name: part.detach() for name, part in parts.items()}

    def step(self, rates: list[float]) -> torch.Tensor:
        return self.recorder.update(self.loss, self.used, self.gradient, torch.tensor(rates))


def test_a_run_of_recorded_steps_is_that_of_eager_ones(make_config, tmp_path, monkeypatch):
    # without a validation on the way, after which genes may stop learning
    config = make_config(max_steps=20, validate_every=20)
    recorded, eager = [], Recorder.__call__

    def call(recorder, *given):
        if len(recorded) % 4 == 0:  # these are eager, as the first of each kind are
            recorded.append(False)
            return eager(recorder, *given)
        recorded.append(True)
        recorder.latest = OnAProcessor(recorder, *given)
        return recorder.latest.loss, recorder.latest.parts

    train(config, tmp_path / "eager", say=silent)
    monkeypatch.setattr(Recorder, "__call__", call)
    monkeypatch.setattr(FiniteCheck, "read_later", lambda _, *step: Step(*step))
    train(config, tmp_path / "recorded", say=silent)
    assert sum(recorded) == 15
    one, other = last_of(tmp_path / "eager"), last_of(tmp_path / "recorded")
    parts = ("state_dict", "current_model_state", "optimizer_states", "lr_schedulers")
    for part in parts:
        torch.testing.assert_close(one[part], other[part], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_has_the_loss_and_the_moves_of_the_step():
    found, calls = [], []
    for recorded in (True, False):
        parameter = torch.ones(4, device="cuda", requires_grad=True)
        average = torch.ones(4, device="cuda")
        idle = torch.ones(4, device="cuda", requires_grad=True)
        optimizer = torch.optim.AdamW([parameter, idle], lr=0.1, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        follow = partial(average.lerp_, parameter.detach(), 0.5)
        recorder = recorder_of(
            parameter, calls, Update(optimizer, then=[follow]) if recorded else None
        )
        for seed in range(EAGER + 4):
            batch = batch_on("cuda", seed)
            if seed == EAGER + 2:
                batch.bags.multiplicity[0] = torch.inf  # moves nothing
            torch.manual_seed(seed)
            # as another step has left it: Lightning clears it after the losses
            idle.grad = torch.ones_like(idle)
            loss, parts = recorder(batch, divisor(seed + 1.0, "cuda"), False)
            optimizer.zero_grad()
            recorder.backward(loss)
            if recorder.latest is None:
                skip_unless_finite(optimizer, parameter.grad.norm().isfinite())
            else:
                assert (
                    recorder.step().tolist() == [seed != EAGER + 2] * 2 and parameter.grad is None
                )
            optimizer.step()
            schedule.step()
            if recorder.latest is None:
                follow()
            each = loss.detach(), parts["loss"].detach(), parameter.detach(), average, idle.detach()
            found.append([one.clone() for one in (*each, *optimizer.state[parameter].values())])
            del (
                loss,
                parts,
            )  # a graph of autograd that lives on waits for the stream that it was made on
    torch.testing.assert_close(found[: EAGER + 4], found[EAGER + 4 :])
    assert len(calls) == EAGER + 2 + EAGER + 4
    assert optimizer.param_groups[0]["capturable"] is False and optimizer.param_groups[0][
        "lr"
    ] == 0.1 / (EAGER + 5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_steps_of_a_transformer_are_recorded_and_are_those_of_eager_ones(
    make_config, tmp_path, monkeypatch
):
    fields = {"model.reader": "transformer", "trainer.accelerator": "gpu"}
    config = change_config(make_config(max_steps=40), fields)
    call, recorded = Recorder.__call__, []

    def counted(recorder, batch, *given):
        found = call(recorder, batch, *given)
        recorded.append(batch.tokens is not None and recorder.latest is not None)
        return found

    monkeypatch.setattr(Recorder, "__call__", counted)
    train(config, tmp_path / "recorded", say=silent)
    monkeypatch.setattr(Recorder, "__call__", lambda recorder, *given: recorder.losses(*given))
    train(config, tmp_path / "eager", say=silent)
    assert sum(recorded) > 10
    one, other = (
        torch.cat([each.flatten() for each in last_of(tmp_path / name)["state_dict"].values()])
        for name in ("eager", "recorded")
    )
    assert torch.cosine_similarity(one, other, dim=0) > 0.999
