"""A small whole run: what its folder holds, what repeats, what stops it."""

from __future__ import annotations

from dataclasses import replace

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

from grn.cells.load import load_cells
from grn.cells.loading.order import EpochOrder
from grn.config.files import change_config, load_config
from grn.model.objectives import Judged
from grn.model.saved import TrainedModel
from grn.runtime.errors import TrainingDiverged
from grn.runtime.messages import silent
from grn.training import run
from grn.training.building import READ_EVERY, prepare
from grn.training.calibration import Calibration
from grn.training.run import best_weights, train
from grn.training.task import Task


def checkpoint(folder, name="best"):
    return torch.load(
        folder / "checkpoints" / f"{name}.ckpt", map_location="cpu", weights_only=True
    )


def test_a_run_folder_is_complete(tiny_run, make_config):
    names = {path.name for path in tiny_run.iterdir()}
    tables = {"metrics.csv", "network.h5ad", "edges.parquet", "edges_by_type.parquet"}
    assert {"config.yaml", "checkpoints", "model", "log.txt"} | tables <= names
    assert {path.name for path in (tiny_run / "checkpoints").iterdir()} == {
        "best.ckpt",
        "last.ckpt",
    }
    assert load_config(tiny_run / "config.yaml") == make_config(), (
        "the resolved configuration reads back"
    )
    log = (tiny_run / "log.txt").read_text()
    assert "80 cells x 16 genes" in log and "stopped: the last step was reached" in log
    assert not [name for name in names if name.startswith(".")], "nothing half-written is left"


def test_metrics_are_of_training_validation_and_test(tiny_run):
    metrics = pd.read_csv(tiny_run / "metrics.csv")
    assert metrics["validation/loss"].dropna().index.size == 3
    of_training = (
        "loss",
        "masked_multiplicity_loss",
        "penalty_loss",
        "cell_type_loss",
        "genes_loss",
    )
    of_test = ("accuracy", "macro_f1", "auroc", "r2", "error", "ridge_error", "cell_type_loss")
    for name in (*(f"train/{each}" for each in of_training), *(f"test/{each}" for each in of_test)):
        assert metrics[name].notna().any(), name
    assert [name for name in metrics if name.startswith("validation/")] == ["validation/loss"]
    assert metrics["step"].max() == 6


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


def test_the_network_and_its_table_agree(tiny_run):
    network = anndata.read_h5ad(tiny_run / "network.h5ad")
    edges = pd.read_parquet(tiny_run / "edges.parquet")
    assert len(edges) == 4 * 15
    assert set(edges["source"]) == {"R1", "R2", "R3", "R4"}
    for edge in edges.itertuples():
        row, column = network.var_names.get_loc(edge.target), network.var_names.get_loc(edge.source)
        assert network.varp["grn"][row, column] == np.float32(edge.weight)
    assert network.uns["grn"]["model_hash"] == TrainedModel.load(tiny_run).hash


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


def test_checkpoints_hold_the_average_of_the_weights(make_config, tmp_path, monkeypatch):
    """The average begins with the first step's weights;
    every later step has a share of 1 - decay.
    """
    steps = []
    training_step = Task.training_step

    def recorded(task, batch, index):
        steps.append({name: tensor.clone() for name, tensor in task.model.named_parameters()})
        return training_step(task, batch, index)

    monkeypatch.setattr(Task, "training_step", recorded)
    train(make_config(averaging=0.75, max_steps=8), tmp_path / "run", say=silent)
    for file in ("best", "last"):
        saved = checkpoint(tmp_path / "run", file)
        now = {
            name.removeprefix("model."): tensor
            for name, tensor in saved["current_model_state"].items()
        }
        average = best_weights(tmp_path / "run" / "checkpoints" / f"{file}.ckpt")
        for name in steps[0]:
            after_each_step = [step[name] for step in steps[1 : saved["global_step"]]] + [now[name]]
            expected = after_each_step[0]
            for later in after_each_step[1:]:
                expected = 0.75 * expected + 0.25 * later
            torch.testing.assert_close(average[name], expected, rtol=1e-5, atol=1e-7)
    assert not torch.equal(average["identity.head"], now["identity.head"]), "of the last step"


def with_a_nan(config, batch: int):
    """The cells of `config` with a NaN in one cell that the training batch number `batch` holds;
    the cell.
    """
    cells, split = load_cells(config.data, seed=config.trainer.seed)
    order = EpochOrder(
        split.train, config.trainer.batch_size, config.trainer.seed, times=READ_EVERY
    )
    cell = int(list(order)[batch][1][0])
    multiplicity = cells.multiplicity.copy()
    multiplicity.data[multiplicity.indptr[cell]] = np.nan
    return replace(cells, multiplicity=multiplicity), split, cell


def validated_by_others(cell: int):
    """Validation, which leaves out the batch with this cell."""
    validation_step = Task.validation_step
    return lambda task, batch, index: (
        None if (batch.cells == cell).any() else validation_step(task, batch, index)
    )


def test_a_nan_in_one_cell_names_step_and_cells_and_keeps_the_last_good_model(
    make_config, tmp_path, monkeypatch
):
    # Counts that are thinned are numbers; knock-offs would meet the NaN first.
    config = change_config(
        make_config(), {"data.values": "expression", "network.false_discovery": False}
    )
    sound, (cells, split, cell) = load_cells(config.data)[0], with_a_nan(config, batch=4)
    monkeypatch.setattr(run, "load_cells", lambda *args, **options: (cells, split))
    # would meet it first
    monkeypatch.setattr(run, "prepare", lambda config, cells, *rest: prepare(config, sound, *rest))
    monkeypatch.setattr(Calibration, "on_train_batch_start", lambda *_: None)
    monkeypatch.setattr(Task, "validation_step", validated_by_others(cell))
    with pytest.raises(
        TrainingDiverged, match=rf"loss is not finite at step 4 \(.* cells in rows {cell}, "
    ) as caught:
        train(config, tmp_path / "run", say=silent)
    assert "\n" not in str(caught.value)
    kept = checkpoint(tmp_path / "run")
    assert kept["global_step"] in (2, 4)
    assert all(
        tensor.isfinite().all()
        for tensor in best_weights(tmp_path / "run/checkpoints/best.ckpt").values()
    )


def test_a_gradient_that_is_not_finite_stops_before_the_weights_take_it(
    make_config, tmp_path, monkeypatch
):
    """A finite loss may have one: that of the third step in which genes learn is infinite in one
    number.
    """
    calls, kept = [], {}

    def prepare_with_a_bad_gradient(*args):
        fit = prepare(*args)
        model = fit.model

        def spoil(gradient):
            calls.append(gradient)
            return (
                gradient.index_fill(1, torch.tensor([1]), torch.inf)
                if len(calls) == 3
                else gradient
            )

        model.blocks[1].bias.register_hook(spoil)
        kept["model"] = model
        return fit

    monkeypatch.setattr(run, "prepare", prepare_with_a_bad_gradient)
    # so that genes learn to the end, however much worse unseen cells become
    worst = Judged(*torch.tensor([[1.0], [torch.inf], [0.0], [0.0]]))
    monkeypatch.setattr(run, "judged_by_unseen", lambda *_: worst)
    with pytest.raises(TrainingDiverged, match="The gradient norm is not finite at step 4"):
        train(make_config(), tmp_path / "run", say=silent)
    assert all(parameter.isfinite().all() for parameter in kept["model"].parameters())
    assert checkpoint(tmp_path / "run", "last")["global_step"] == 4
    assert checkpoint(tmp_path / "run")["global_step"] in (2, 4)
