"""Objectives from the configuration to the model folder; cell types and properties are tested with no gene hidden, as
`grn predict` predicts them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch.nn import functional as F

import grn
from grn.cells.load import load_cells
from grn.cells.loading.batches import EVALUATE, BagMaker
from grn.cells.simulated import simulate
from grn.config.schema import Config
from grn.model.objectives import LABEL_SMOOTHING, active_objectives
from grn.training.run import train
from grn.training.task import Task

ROUNDING = 1e-4  # batches and packed bags of other sizes sum in another order


def configured(make_config, bags: str = "dense", **weights: float) -> Config:
    """40 % of the genes are masked, so that cell types read from what remains are others for many cells."""
    found = make_config(max_steps=100, validate_every=50, batch_size=32, learning_rate=0.01, averaging=0.5).model_dump()
    found["data"] |= {"bags": bags, "test_fraction": 0.4, "regulators": "all"}
    found["data"]["simulated"] |= {"cells": 300, "cell_types": 4}
    found["regulation"]["members"] = 0
    found["cell_reader"]["members"] = 0  # these tests are of the transformer's own summary
    found["network"]["readout"] = "attention"
    found["objectives"]["masked_multiplicity"]["fraction"] = 0.4
    found["objectives"]["property"] |= {"weight": 0.5, "key": "age"}
    for name, weight in weights.items():
        found["objectives"][name]["weight"] = weight
    return Config.model_validate(found)


@pytest.mark.parametrize("bags", ["dense", "packed"])
def test_metrics_of_training_are_those_of_predict_with_the_saved_model(make_config, tmp_path, bags):
    config = configured(make_config, bags)
    adata = simulate(config.data.simulated)
    adata.obs["age"] = 20.0 + np.asarray(adata.X.sum(1)).ravel() ** 0.5
    cells, split = load_cells(config.data, "age", config.trainer.seed, adata)
    result = train(config, tmp_path / "run", adata=adata, say=lambda line: None)
    found = grn.predict(adata, tmp_path / "run", copy=True, quiet=True)

    def expected(rows: np.ndarray) -> dict[str, float]:
        types = found.obs["grn_cell_type"].to_numpy()[rows].astype(str)
        truth = adata.obs["cell_type"].to_numpy()[rows].astype(str)
        logs = torch.as_tensor(found.obsm["grn_probabilities"][rows]).log()
        labels, smoothing = torch.as_tensor(cells.labels[rows]), LABEL_SMOOTHING
        error = found.obs["grn_property"].to_numpy()[rows] - adata.obs["age"].to_numpy()[rows]
        return {
            "accuracy": accuracy_score(truth, types),
            "macro_f1": f1_score(truth, types, average="macro"),
            "cell_type_loss": float(F.cross_entropy(logs, labels, label_smoothing=smoothing)),
            "property_loss": float(np.square(error / adata.obs["age"].to_numpy()[split.train].std()).mean()),
        }

    best = torch.load(tmp_path / "run" / "checkpoints" / "best.ckpt", weights_only=True)["global_step"]
    logged = pd.read_csv(tmp_path / "run" / "metrics.csv").groupby("step").first().loc[best - 1]
    assert result.metrics["accuracy"] > 0.35, "of four types, the model tells some apart"
    for name, value in expected(split.test).items():
        assert result.metrics[name] == pytest.approx(value, rel=ROUNDING), name
    for name, value in expected(split.validation).items():
        assert logged[f"validation/{name}"] == pytest.approx(value, rel=ROUNDING), name


@pytest.mark.parametrize("bags", ["dense", "packed"])
def test_hidden_multiplicities_keep_their_masks(make_config, make_model, bags):
    config = configured(make_config, bags)
    adata = simulate(config.data.simulated)
    adata.obs["age"] = np.arange(len(adata), dtype=float)
    cells, _ = load_cells(config.data, "age", 0, adata)
    model = make_model(genes=16, regulators=None, classes=4, dtype=torch.float32)
    batch = BagMaker(cells, bags == "packed", 0.8, 0.5, stream=EVALUATE)[0, np.arange(20)]
    passes = []
    model.register_forward_pre_hook(lambda module, arguments: passes.append(arguments[0]))

    def losses(**weights: float) -> dict[str, float]:
        task = Task(model, configured(make_config, bags, **weights).objectives, config.trainer, 1)
        passes.clear()
        with torch.no_grad():
            return {name: float(loss.sum / loss.count) for name, loss in task.evaluated(batch)[1].items()}

    every = losses()
    assert len(passes) == 2 and list(every) == ["cell_type", "property", "masked_multiplicity"]
    by_hand = {}
    with torch.no_grad():
        for name, (_, objective) in active_objectives(config.objectives, model).items():
            seen = batch if name == "masked_multiplicity" else batch.unmasked()
            loss = objective(model(seen.bags), seen, model)
            by_hand[name] = float(loss.sum / loss.count)
    assert every == by_hand
    assert losses(cell_type=0.0, property=0.0) == {"masked_multiplicity": by_hand["masked_multiplicity"]}
    assert len(passes) == 1 and passes[0] is batch.bags
    assert losses(masked_multiplicity=0.0, property=0.0) == {"cell_type": by_hand["cell_type"]}
    assert len(passes) == 1 and torch.equal(passes[0].multiplicity, batch.multiplicity)
