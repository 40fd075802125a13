"""Objectives over the vocabulary and the folded feed-forward map, from the configuration to the model folder."""

import pytest
import torch

import grn
from grn.model.saved import TrainedModel
from grn.training import run as runs

SETTINGS = {
    "data.simulated.cells": 300,
    "data.simulated.genes": 40,
    "data.simulated.regulators": 8,
    "regulation.members": 1,
    "regulation.steps": 0,
    "cell_reader.steps": 10,
    "network.false_discovery": False,
    "trainer.max_steps": 80,
    "trainer.validate_every": 40,
    "trainer.averaging": 0.9,
    "objectives.gene_identity.weight": 1.0,
    "objectives.composition.weight": 1.0,
}


@pytest.mark.slow
def test_gene_identity_and_composition_beat_the_unigram_baseline_and_leave_no_head_behind(tmp_path, monkeypatch):
    """Shares of genes that are the same in every cell are what a head of zeros predicts: the loss before training."""
    before = {}

    def fit_model(config, model, data, *arguments, **options):
        data.setup("fit")
        task = runs.Task(model, config.objectives, config.trainer, 1)
        before.update(runs.evaluate(task, data.test_dataloader()))
        return fitted(config, model, data, *arguments, **options)

    fitted = runs.fit_model
    monkeypatch.setattr(runs, "fit_model", fit_model)
    run = grn.train("simulated:", output=tmp_path / "run", set=SETTINGS | {"feed_forward.implementation": "fold"})
    for name in ("gene_identity_loss", "composition_loss"):
        assert run.metrics[name] < float(before[name]) - 0.01, name
        assert f"validation/{name}" in run.history
    saved = TrainedModel.load(tmp_path / "run")
    assert not saved.model.over_genes and not any("over_genes" in name for name in saved.model.state_dict())


def test_the_configuration_decides_about_heads_and_the_feed_forward_map():
    from grn.config.files import load_config
    from grn.training.building import build_model

    class Cells:
        vocabulary, classes, regulators = ("a", "b", "c"), (), None

    for on in (False, True):
        weight = float(on)
        options = [f"objectives.{name}.weight={weight}" for name in ("gene_identity", "composition")]
        implementation = "fold" if on else "plain"
        config = load_config("simulated.yaml", [*options, f"feed_forward.implementation={implementation}"])
        model = build_model(config, Cells(), None, torch.ones(3), torch.ones(3), None)
        assert list(model.over_genes) == ["gene_identity", "composition"] * on
        assert {block.feed_forward.implementation for block in model.blocks} == {implementation}
