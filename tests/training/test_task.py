"""Each step: its loss, and steps that are not finite, which leave the parameters alone."""

from dataclasses import replace

import anndata
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from grn.bags import Bags, Batch
from grn.config.schema import Config
from grn.model import objectives
from grn.model.linear_reader import LinearReader
from grn.model.objectives import (
    Draw,
    divisors,
    learns_genes,
    masked_multiplicity,
    of_cells,
    readers_cells,
)
from grn.model.saved import TrainedModel
from grn.runtime.messages import silent
from grn.training.finite import skip_unless_finite
from grn.training.run import train
from grn.training.task import Task, as_fused_here


def trained(bad: bool) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], fused=True)
    for step in range(3):
        weight.grad = torch.full((3,), torch.nan if bad and step == 1 else 1.0)
        skip_unless_finite(optimizer, weight.grad.isfinite())
        optimizer.step()
    return weight.detach()


def test_a_fused_optimiser_leaves_a_bad_step_out():
    good, skipped = trained(bad=False), trained(bad=True)
    assert skipped.isfinite().all() and (good < skipped).all() and (skipped < 1).all()


@pytest.mark.parametrize("fused", [None, True])
def test_a_checkpoint_of_another_machine_leaves_the_choice_of_fused_kernels_here(fused):
    """A checkpoint holds its machine's choice: without the hook, a run from a CPU could not go on
    where steps are told on the device to change nothing, as only fused kernels listen.
    """
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    there, here = (
        torch.optim.AdamW([w], fused=f)
        for w, f in zip(weights, (not fused or None, fused), strict=True)
    )
    here.register_load_state_dict_pre_hook(as_fused_here)
    weights[0].grad, weights[1].grad = torch.ones(3), torch.ones(3)
    there.step()
    here.load_state_dict(there.state_dict())
    assert here.param_groups[0]["fused"] is fused
    if fused:
        skip_unless_finite(here, torch.tensor([False]))
    here.step()
    assert torch.equal(weights[1], torch.ones(3)) == bool(fused)


@pytest.fixture
def task_and_batch(make_model, make_bags, monkeypatch):
    """A model in double precision, and five cells with two labels that the identity token reads;
    nothing is hidden.
    """
    config = Config.model_validate(
        {
            "data": {"path": "simulated:"},
            "objectives": {
                "masked_multiplicity": {"weight": 0.7, "fraction": 1e-12},
                "cell_type": {"weight": 0.5},
            },
        }
    )
    labels = torch.tensor([-1, -1, 2, 0, -1])
    bags, fold = make_bags(states=3), torch.tensor([0, 1, 2, 0, 5])
    nothing_hidden = torch.ones_like(bags.multiplicity, dtype=torch.bool)
    batch = Batch(bags, torch.arange(5), labels, fold, kept=nothing_hidden)
    return Task(make_model(states=3), config.objectives, config.trainer, 100), batch


@pytest.mark.parametrize("opened", [False, True])
def test_the_loss_of_a_step_is_that_of_all_members_by_the_weights_of_the_objectives(
    task_and_batch, opened
):
    """Genes learn in a step of their own, and the identity token in another, from all cells once
    these are opened. Of the token, genes shape the summaries of every second member more.
    """
    task, batch = task_and_batch
    model, of_genes = task.model, replace(batch, kept=None)
    torch.manual_seed(0)
    by = divisors(of_genes, model, opened)
    assert learns_genes(of_genes, model) and not learns_genes(batch, model)
    found, parts = task.losses(of_genes, by, opened)
    torch.manual_seed(0)
    loss, shrink = masked_multiplicity(of_genes, model, Draw.of(model, 5, 1e-12))
    torch.testing.assert_close(found, 0.7 * (loss / by["masked_multiplicity"] + shrink))
    assert set(parts) == {"masked_multiplicity", "penalty"}
    torch.testing.assert_close(parts["penalty"], shrink / 4)
    by = divisors(batch, model, opened)
    found, parts = task.losses(batch, by, opened)
    expected, cells = 0.0, readers_cells(batch, model)
    assert not cells.all()
    sums = of_cells(batch, model, torch.ones_like(cells) if opened else cells, genes=True)
    each = {name: sums[name] / by[name] for name in sums}
    for member in range(4):
        weight = LinearReader.of_genes[member % 2]
        labels = 0.5 * each["cell_type"][member]
        expected = expected + (labels + weight * each["genes"][member]) / (1 + weight)
    torch.testing.assert_close(found, expected)
    assert set(parts) == {"cell_type", "genes"}
    torch.testing.assert_close(parts["cell_type"], each["cell_type"].mean())


def test_blocks_learn_in_smaller_steps_of_some_genes_and_of_penalised_slopes(
    task_and_batch, monkeypatch
):
    """Of 3 regulators and 9 others; each block by its penalty, of which block 1's is the last."""
    task, _ = task_and_batch

    def rates() -> list[float]:
        optimizer = task.configure_optimizers()["optimizer"]
        return [group["initial_lr"] for group in optimizer.param_groups]

    one, other, *rest = rates()
    task.model.penalty[-1, 0], task.model.penalty[:-1, 0] = 3.0, 9.0
    assert rates() == pytest.approx([one / 4, other / 10, *rest])
    task.model.penalty[:, 0] = 0
    monkeypatch.setattr(objectives, "GENES", 1)
    monkeypatch.setattr(objectives, "FEWEST", 1)
    share = (4 / 12) ** 0.5
    assert rates() == pytest.approx([one * share, other * share, *rest])


@pytest.mark.parametrize("opened", [False, True])
def test_a_step_asks_for_no_number_so_that_a_gpu_can_record_it(task_and_batch, opened):
    """Fake tensors have shapes and no numbers. Without room for the cells of each state, their
    number is asked for.
    """
    task, read = task_and_batch
    by = divisors(read, task.model, opened)
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss, _ = task.losses(read, by, opened)
        torch.autograd.grad(loss, list(task.parameters()), allow_unused=True)
    batch = replace(read, kept=None)
    by = divisors(batch, task.model, opened)
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss, _ = task.losses(replace(batch, bags=replace(batch.bags, room=(5, 5, 5))), by, opened)
        torch.autograd.grad(loss, list(task.parameters()), allow_unused=True)
        with pytest.raises(DataDependentOutputException):
            task.losses(batch, by, opened)


@pytest.mark.parametrize("of_genes", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_the_mean_over_processes_is_the_loss_of_the_whole_batch(task_and_batch, cut, of_genes):
    """However unevenly labels fall, none in some processes included."""
    task, batch = task_and_batch
    batch = replace(batch, kept=None) if of_genes else batch
    whole = task.losses(batch, divisors(batch, task.model, False), opened=False)[0]

    def part(rows: slice) -> Batch:
        bags = Bags(
            *(getattr(batch.bags, name)[rows] for name in ("multiplicity", "basal", "states"))
        )
        rest = {name: getattr(batch, name)[rows] for name in ("cells", "labels", "fold")}
        return Batch(bags, **rest, kept=None if batch.kept is None else batch.kept[rows])

    parts = [part(slice(cut)), part(slice(cut, None))]
    one, other = (divisors(each, task.model, False) for each in parts)
    by = {name: (one[name] + other[name]) / 2 for name in one}
    losses = [task.losses(each, by, opened=False)[0] for each in parts]
    torch.testing.assert_close(torch.stack(losses).mean(), whole)
    assert (losses[0] - losses[1]).abs() > 0.01


def test_genes_stop_learning_where_unseen_cells_say_that_it_does_not_help(
    make_config, tmp_path, monkeypatch
):
    """Counts that do not depend on each other: large steps make the error of unseen cells larger.
    Cell types go on learning, and a run that is resumed knows it.
    """
    learned: list[int] = []

    def counted(batch, model, draw):
        learned.append(len(batch.cells))
        return masked_multiplicity(batch, model, draw)

    monkeypatch.setattr("grn.training.task.masked_multiplicity", counted)
    config = make_config(max_steps=24, validate_every=6, learning_rate=0.1)
    cells = anndata.AnnData(np.random.default_rng(3).poisson(3.0, (90, 16)).astype(np.float32))
    cells.var_names = [f"R{i}" for i in range(1, 5)] + [f"T{i}" for i in range(12)]
    cells.obs["cell_type"] = np.array(["a", "b"])[np.arange(90) % 2]
    folder = tmp_path / "run"
    train(config, folder, adata=cells, say=silent)
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert state["settled"] and state["latest"]["cell_type"] > 0
    assert len(learned) == 3, "every second step of the first six"
    task = Task(TrainedModel.load(folder).model, config.objectives, config.trainer, 24)
    assert not task.settled
    task.on_load_checkpoint(state)
    assert task.settled
