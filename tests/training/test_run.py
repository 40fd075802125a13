"""A small whole run: what its folder holds, what repeats, what stops it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

from grn.cells.load import load_cells
from grn.cells.loading.order import EpochOrder
from grn.cells.preprocessing.moments import mean_and_sd
from grn.config.files import change_config, load_config
from grn.errors import ConfigError, TrainingDiverged
from grn.messages import silent
from grn.model.saved import TrainedModel
from grn.networks.build import read_again
from grn.regulation import fit as fitting
from grn.training import run
from grn.training.run import best_weights, train
from grn.training.task import Task


def without_layer(config, readout="knockout"):
    network = config.network.model_copy(update={"readout": readout})
    regulation = config.regulation.model_copy(update={"members": 0})
    reader = config.cell_reader.model_copy(update={"members": 0})
    return config.model_copy(update={"network": network, "regulation": regulation, "cell_reader": reader})


def checkpoint(folder, name="best"):
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", map_location="cpu", weights_only=True)


def test_a_run_folder_is_complete(tiny_run, make_config):
    names = {path.name for path in tiny_run.iterdir()}
    tables = {"metrics.csv", "network.h5ad", "edges.parquet", "edges_by_type.parquet"}
    assert {"config.yaml", "checkpoints", "model", "log.txt"} | tables <= names
    assert {path.name for path in (tiny_run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert load_config(tiny_run / "config.yaml") == make_config(), "the resolved configuration reads back"
    log = (tiny_run / "log.txt").read_text()
    assert "80 cells x 16 genes" in log and "stopped: the last step was reached" in log
    assert not [name for name in names if name.startswith(".")], "nothing half-written is left"


def test_metrics_are_of_training_validation_and_test(tiny_run):
    metrics = pd.read_csv(tiny_run / "metrics.csv")
    assert metrics["validation/loss"].dropna().index.size == 3
    for name in ("train/loss", "validation/r2", "test/accuracy", "test/macro_f1", "test/r2", "test/loss"):
        assert metrics[name].notna().any(), name
    assert metrics["step"].max() == 6


def test_the_model_is_the_best_checkpoint(tiny_run):
    """All but the regulation layers, which are fitted once more, on all cells."""
    trained = TrainedModel.load(tiny_run)
    best = best_weights(tiny_run / "checkpoints" / "best.ckpt")
    same = {name: torch.equal(tensor, best[name]) for name, tensor in trained.model.state_dict().items()}
    assert all(equal for name, equal in same.items() if not name.startswith("regulation."))
    assert not same["regulation.pooled.query"] and not same["regulation.by_state.query"]


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
    pd.testing.assert_frame_equal(again.edges, pd.read_parquet(tiny_run / "edges.parquet"), check_exact=True)


def test_q_values_are_exported_with_effects_and_with_no_other_read_out(make_config, tmp_path):
    """They are about effects alone; those of a run do not prevent another read-out of it."""
    config = make_config(max_steps=2)
    network = config.network.model_copy(update={"false_discovery": True})
    found = train(config.model_copy(update={"network": network}), tmp_path / "run", say=silent)
    assert found.edges["q_value"].between(0, 1).all()
    again = read_again(tmp_path / "run", {"top_k": 2})[1]
    assert "q_value" in again
    for readout in ("attention", "knockout"):
        other = read_again(tmp_path / "run", {"readout": readout})[1]
        assert "q_value" not in other and len(other) == 4 * 15


def test_the_metrics_are_of_a_layer_that_has_seen_the_training_cells_alone(make_config, tmp_path, monkeypatch):
    """The layers of the network are fitted on all cells, last, and with the penalties of the first fits."""
    config, seen, fit_ensemble = make_config(), [], fitting.fit_ensemble

    def recorded(settings, cells, **options):
        fitted = fit_ensemble(settings, cells, **options)
        seen.append((cells, options["penalties"], fitted))
        return fitted

    order = []
    evaluate = run.evaluate
    monkeypatch.setattr(fitting, "fit_ensemble", recorded)
    monkeypatch.setattr(run, "evaluate", lambda task, batches: order.append(len(seen)) or evaluate(task, batches))
    found = train(config, tmp_path / "run", say=silent)
    _, split = load_cells(config.data, seed=config.trainer.seed)
    first, last = seen[:2], seen[2:]  # the pooled layer, then that of the states
    assert len(last) == 2 and order == [2]
    for (cells, penalties, chosen), (every, repeated, _), several in zip(first, last, (False, True), strict=True):
        assert cells.rows.tolist() == split.train.tolist() and sorted(every.rows) == [*range(80)]
        assert penalties is None and repeated == (chosen.values, chosen.ranks)
        assert (cells.states is not None) == (every.states is not None) == several
    regulation = found.trained.model.regulation
    for layer, (_, _, fitted) in zip((regulation.pooled, regulation.by_state), last, strict=True):
        assert torch.equal(layer.query, fitted.layer.query)


def test_no_donor_is_both_fitted_and_held_out_by_a_member_of_any_fit(make_config, tmp_path, monkeypatch):
    """Folds that choose penalties, members of the metrics and those of the network; of both layers."""
    config, found, chosen = make_config(max_steps=2), [], []
    held_out_cells, validation_folds = fitting.held_out_cells, fitting.validation_folds
    simulated = config.data.simulated.model_copy(update={"cell_types": 8})
    data = config.data.model_copy(update={"simulated": simulated, "group_key": "cell_type"})
    config = config.model_copy(update={"data": data})

    def recorded(rows, groups, *others):
        parts = held_out_cells(rows, groups, *others)
        found.append((groups, *parts))
        return parts

    def choosing(count, groups, *others):
        folds = validation_folds(count, groups, *others)
        chosen.append((groups, folds.numpy()))
        return folds

    monkeypatch.setattr(fitting, "held_out_cells", recorded)
    monkeypatch.setattr(fitting, "validation_folds", choosing)
    train(config, tmp_path / "run", say=silent)
    assert len(found) == 4 and len(chosen) == 2  # the fits of the network have the penalties of the first ones
    for donor, fold in chosen:
        assert all(len(np.unique(fold[donor == one])) == 1 for one in np.unique(donor))
    for donor, training, held_out in found:
        assert len(np.unique(donor)) >= 5
        for fitted, others in zip(training, held_out, strict=True):
            assert not set(donor[fitted]) & set(donor[others])


@pytest.mark.parametrize("readout", ["knockout", "attention"])
def test_a_model_without_a_regulation_layer_trains_and_exports(make_config, tmp_path, readout):
    found = train(without_layer(make_config(), readout), tmp_path / "run", say=silent)
    assert found.trained.model.regulation is None
    assert TrainedModel.load(tmp_path / "run").hash == found.trained.hash
    assert len(found.edges) == 4 * 15 and (found.edges["weight"] != 0).any()
    about = anndata.read_h5ad(tmp_path / "run" / "network.h5ad").uns["grn"]
    assert about["sign_attention"].startswith("none")
    assert about["sign"].startswith("none") == (readout == "attention")
    again = read_again(tmp_path / "run", {"readout": "attention"})[1]
    assert len(again) == 4 * 15
    with pytest.raises(ConfigError, match=r"network\.readout: effect reads the regulation layer, but"):
        read_again(tmp_path / "run", {"readout": "effect"})


def test_a_run_with_softmax_in_its_blocks_is_read_and_loaded_as_such(make_config, tmp_path):
    changes = {"model.attention": "softmax", "data.bags": "packed"}
    config = change_config(without_layer(make_config(), "attention"), changes)
    trained = train(config, tmp_path / "run", say=silent).trained
    assert TrainedModel.load(tmp_path / "run").model.blocks[0].attention.normaliser == "softmax"
    network = anndata.read_h5ad(tmp_path / "run" / "network.h5ad")
    layer = network.varp["grn_attention_layer0"].toarray()[:, trained.regulators]
    # Over the regulators and the basal gene, the weights of a softmax add up to 1; those on oneself are left out.
    assert (layer >= 0).all() and (layer.sum(1) < 1).all() and layer.max() > 0.05


def test_checkpoints_hold_the_average_of_the_weights(make_config, tmp_path, monkeypatch):
    """The average begins with the first step's weights; every later step has a share of 1 - decay."""
    steps = []
    training_step = Task.training_step

    def recorded(task, batch, index):
        steps.append({name: tensor.clone() for name, tensor in task.model.named_parameters()})
        return training_step(task, batch, index)

    monkeypatch.setattr(Task, "training_step", recorded)
    train(make_config(averaging=0.75, max_steps=4), tmp_path / "run", say=silent)
    for file in ("best", "last"):
        saved = checkpoint(tmp_path / "run", file)
        now = {name.removeprefix("model."): tensor for name, tensor in saved["current_model_state"].items()}
        average = best_weights(tmp_path / "run" / "checkpoints" / f"{file}.ckpt")
        for name in steps[0]:
            after_each_step = [step[name] for step in steps[1 : saved["global_step"]]] + [now[name]]
            expected = after_each_step[0]
            for later in after_each_step[1:]:
                expected = 0.75 * expected + 0.25 * later
            torch.testing.assert_close(average[name], expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(average["embedding.weight"], now["embedding.weight"])
    trained = TrainedModel.load(tmp_path / "run")
    best = best_weights(tmp_path / "run" / "checkpoints" / "best.ckpt")
    assert torch.equal(trained.model.embedding.weight, best["embedding.weight"])


def with_a_nan(config, batch: int):
    """The cells of `config` with a NaN in one cell that the training batch number `batch` holds; the cell."""
    cells, split = load_cells(config.data, seed=config.trainer.seed)
    order = EpochOrder(split.train, config.trainer.batch_size, config.trainer.seed)
    cell = int(list(order)[batch][1][0])
    multiplicity = cells.multiplicity.copy()
    multiplicity.data[multiplicity.indptr[cell]] = np.nan
    return replace(cells, multiplicity=multiplicity), split, cell


def test_a_nan_in_one_cell_names_step_and_cells_and_keeps_the_last_good_model(make_config, tmp_path, monkeypatch):
    config = without_layer(make_config())  # the layer would meet it first
    cells, split, cell = with_a_nan(config, batch=4)
    scale = mean_and_sd(load_cells(config.data)[0].multiplicity[split.train])
    monkeypatch.setattr(run, "load_cells", lambda *args, **options: (cells, split))
    monkeypatch.setattr(run, "mean_and_sd", lambda multiplicity: scale)
    with pytest.raises(TrainingDiverged, match=rf"loss is not finite at step 4 \(.* cells in rows {cell}, ") as caught:
        train(config, tmp_path / "run", say=silent)
    assert "\n" not in str(caught.value)
    kept = checkpoint(tmp_path / "run")
    assert kept["global_step"] in (2, 4)
    assert all(tensor.isfinite().all() for tensor in best_weights(tmp_path / "run/checkpoints/best.ckpt").values())


def test_a_gradient_that_is_not_finite_stops_before_the_weights_take_it(make_config, tmp_path, monkeypatch):
    """A finite loss may have one: the third step's is infinite in one number."""
    build, calls, kept = run.build_model, [], {}

    def build_with_a_bad_gradient(*args):
        model = build(*args)

        def spoil(gradient):
            calls.append(gradient)
            return gradient.index_fill(0, torch.tensor([1]), torch.inf) if len(calls) == 3 else gradient

        model.norm.weight.register_hook(spoil)
        kept["model"] = model
        return model

    monkeypatch.setattr(run, "build_model", build_with_a_bad_gradient)
    with pytest.raises(TrainingDiverged, match="The gradient norm is not finite at step 2"):
        train(make_config(), tmp_path / "run", say=silent)
    assert all(parameter.isfinite().all() for parameter in kept["model"].parameters())
    assert checkpoint(tmp_path / "run")["global_step"] == 2


def test_a_whole_run_prints_our_lines_only(tmp_path):
    fields = {
        "trainer.max_steps": 4,
        "trainer.validate_every": 2,
        "trainer.accelerator": "cpu",
        "data.simulated.cells": 80,
        "model.width": 16,
        "network.cells": 10,
        "regulation.steps": 20,
        "cell_reader.steps": 10,
    }
    changes = [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "grn", "train", "--config", "simulated.yaml", "--output", str(tmp_path), *changes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("80 cells x 120 genes")
    for noise in ("available", "Tip", "weights_only", "stopped: `", "Warning"):
        assert noise not in done.stdout
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert "Strongest up-regulations" in done.stdout and "F1 of the cell types" in done.stdout
