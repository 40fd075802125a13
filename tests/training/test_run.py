"""A small whole run: what its folder holds, what repeats, what stops it."""

from __future__ import annotations

import anndata
import pandas as pd
import pytest
import torch

from grn.config.files import change_config, load_config
from grn.model.saved import TrainedModel
from grn.runtime.errors import TrainingDiverged
from grn.runtime.messages import silent
from grn.training import run
from grn.training.building import prepare
from grn.training.run import best_weights, train
from grn.training.task import Task


def test_a_run_folder_is_complete(tiny_run, make_config):
    names = {path.name for path in tiny_run.iterdir()}
    tables = {"metrics.csv", "network.h5ad", "edges.parquet", "edges_by_type.parquet"}
    assert {"config.yaml", "checkpoints", "model", "log.txt"} | tables <= names
    assert not [name for name in names if name.startswith(".")], "nothing half-written is left"
    checkpoints = {path.name for path in (tiny_run / "checkpoints").iterdir()}
    assert checkpoints == {"best.ckpt", "last.ckpt"}
    assert load_config(tiny_run / "config.yaml") == make_config(), "it reads back"
    log = (tiny_run / "log.txt").read_text()
    assert "80 cells x 16 genes" in log and "stopped: the last step was reached" in log
    edges = pd.read_parquet(tiny_run / "edges.parquet")
    assert len(edges) == 4 * 15 and set(edges["source"]) == {"R1", "R2", "R3", "R4"}
    about = anndata.read_h5ad(tiny_run / "network.h5ad").uns["grn"]
    assert about["model_hash"] == TrainedModel.load(tiny_run).hash


def test_metrics_are_of_training_validation_and_test(tiny_run):
    metrics = pd.read_csv(tiny_run / "metrics.csv")
    losses = ("loss", "masked_multiplicity_loss", "penalty_loss", "cell_type_loss", "genes_loss")
    scores = ("accuracy", "macro_f1", "auroc", "r2", "error", "ridge_error", "cell_type_loss")
    for name in (*(f"train/{each}" for each in losses), *(f"test/{each}" for each in scores)):
        assert metrics[name].notna().any(), name
    assert [name for name in metrics if name.startswith("validation/")] == ["validation/loss"]
    assert metrics["validation/loss"].notna().sum() == 3 and metrics["step"].max() == 6


def test_blocks_are_of_the_best_checkpoint_and_the_identity_token_of_the_last(
    make_config, tmp_path, monkeypatch
):
    """Held-out genes have chosen the step; what reads the cells goes on learning. Saved in half
    precision.
    """
    monkeypatch.setattr(run, "keep_what_helped", lambda *_: [])
    tiny_run = tmp_path / "run"
    train(make_config(), tiny_run, say=silent)
    model = TrainedModel.load(tiny_run).model
    trained, parameters = model.state_dict(), {name for name, _ in model.named_parameters()}
    best, last = (
        best_weights(tiny_run / "checkpoints" / f"{name}.ckpt") for name in ("best", "last")
    )
    of_calibration = {"identity.axes", "identity.centre"}  # set after the last step
    for name in trained.keys() - of_calibration:
        expected = (last if name.startswith("identity.") else best)[name]
        assert torch.equal(
            trained[name], expected.half().float() if name in parameters else expected
        ), name
    assert trained["identity.axes"].abs().max() > 0


def test_what_training_did_not_improve_is_what_it_started_with(make_config, tmp_path, monkeypatch):
    """The model that is saved is that which is kept in memory, the start included."""
    kept, lines = {}, []

    def prepared(*args):
        fit = prepare(*args)
        kept.update(
            {name: tensor.clone() for name, tensor in fit.model.blocks.state_dict().items()}
        )
        return fit

    monkeypatch.setattr(run, "prepare", prepared)
    found = train(make_config(learning_rate=1.0), tmp_path / "run", say=lines.append)
    assert [line for line in lines if "did not improve" in line] == [
        f"Training did not improve block {number}, which keeps its start." for number in (1, 2)
    ]
    assert any(line.startswith("step 0/6  validation loss") for line in lines)
    saved = TrainedModel.load(tmp_path / "run")
    assert saved.hash == found.trained.hash
    for name, tensor in found.trained.model.blocks.state_dict().items():
        assert torch.equal(tensor, saved.model.blocks.state_dict()[name]), name
        torch.testing.assert_close(tensor, kept[name], rtol=1e-3, atol=1e-3)


def test_the_same_seed_gives_the_same_run_bit_for_bit(tiny_run, make_config, tmp_path):
    again = train(make_config(), tmp_path / "again", say=silent)
    assert again.trained.hash == TrainedModel.load(tiny_run).hash
    pd.testing.assert_frame_equal(
        again.edges, pd.read_parquet(tiny_run / "edges.parquet"), check_exact=True
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_every_gene_may_regulate_and_cells_need_no_labels(make_config, tmp_path, layers):
    changes = {
        "data.regulators": "all",
        "data.label_key": None,
        "model.layers": layers,
        "model.members": 3,
    }
    found = train(change_config(make_config(max_steps=2), changes), tmp_path / "run", say=silent)
    assert len(found.edges) == 16 * 15 and (found.edges["weight"] != 0).any()
    assert TrainedModel.load(tmp_path / "run").hash == found.trained.hash
    assert "accuracy" not in found.metrics and {"error", "ridge_error", "r2"} <= set(found.metrics)


def test_cell_types_alone_train_the_blocks_too(make_config, tmp_path):
    """Their cells are then compared with each other, as states that are types would tell what is
    asked.
    """
    config = change_config(make_config(max_steps=4), {"objectives.masked_multiplicity.weight": 0})
    lines: list[str] = []
    found = train(config, tmp_path / "run", say=lines.append)
    assert any("Cell types are the only objective" in line for line in lines)
    assert "accuracy" in found.metrics and not {"error", "r2"} & set(found.metrics)
    assert len(found.edges) == 4 * 15 and (found.edges["weight"] != 0).all()
    assert TrainedModel.load(tmp_path / "run").model.genes_train is False


def test_a_run_without_test_cells_goes_through(make_config, tmp_path):
    config = change_config(
        make_config(max_steps=2), {"data.test_fraction": 0, "network.false_discovery": False}
    )
    found = train(config, tmp_path / "run", say=silent)
    assert found.metrics == {} and "q_value" not in found.edges and len(found.edges) == 4 * 15


@pytest.mark.parametrize("spoiled", ["cell", "loss", "gradient norm"])
def test_what_is_not_finite_is_named_and_stops_before_the_weights_take_it(
    make_config, tmp_path, monkeypatch, spoiled
):
    """A finite loss may have a gradient that is not. Checkpoints of earlier steps are kept."""
    training_step, losses, tasks = Task.training_step, Task.losses, []

    def of_batch(task, batch, index):
        tasks.append(task)
        if spoiled == "cell" and task.global_step == 3:
            batch.bags.multiplicity[0, 0] = torch.nan
        return training_step(task, batch, index)

    def of_step(task, *given):
        loss, parts = losses(task, *given)
        if spoiled != "cell" and task.global_step == 3:
            zero = 0 * sum(each.sum() for each in task.parameters())
            loss = loss + (torch.nan * zero if spoiled == "loss" else zero.sqrt())
        return loss, parts

    monkeypatch.setattr(Task, "training_step", of_batch)
    monkeypatch.setattr(Task, "losses", of_step)
    name = "gradient norm" if spoiled == "gradient norm" else "loss"
    with pytest.raises(TrainingDiverged, match=rf"{name} is not finite at step 3 \(.* rows \d"):
        train(make_config(), tmp_path / "run", say=silent)
    assert all(parameter.isfinite().all() for parameter in tasks[0].parameters())
    for file in ("last", "best"):
        path = tmp_path / "run" / "checkpoints" / f"{file}.ckpt"
        assert torch.load(path, weights_only=True)["global_step"] == 2
        assert all(tensor.isfinite().all() for tensor in best_weights(path).values())
