"""It is one model: whatever part of a run's module is changed, its network or its labels change."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import grn
from grn.features.perturb.mechanism import effects
from grn.features.perturb.perturbed import Subject
from grn.features.run import trained_of
from grn.runtime.errors import DataError, RunFolderError


def noise(part: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))


def assert_networks(found, expected, keys) -> None:
    for key in keys:
        one, other = (each.varp[key].toarray() for each in (found, expected))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=key)


def test_the_network_is_read_again_as_it_is_in_the_files(run, adata):
    for found in (run.read_networks(), run.read_networks(adata)):
        assert set(found.varp) == set(run.network.varp)
        assert_networks(found, run.network, found.varp)
        assert found.uns["grn"]["model_hash"] == run.network.uns["grn"]["model_hash"]


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        ("blocks.0", []),
        ("blocks.0.embedding", []),
        ("blocks.1", ["grn_layer0"]),
        ("blocks.1.embedding", ["grn_layer0"]),
        ("basal", ["grn", "grn_layer0", "grn_layer1", "grn_type_1"]),
        ("identity", ["grn", "grn_layer0", "grn_layer1", "grn_type_1", "grn_total"]),
    ],
)
def test_noise_in_a_part_changes_the_networks_that_are_read_from_it(run, part, kept):
    """All but those that are kept; a block has no part in the other's."""
    run.module.basal.gate.fill_(1.0)  # so few steps may leave the context shut
    network = run.read_networks()
    noise(run.module.get_submodule(part))
    found = run.read_networks()
    other = "grn_layer1" if part.startswith("blocks.0") else "grn_layer0"
    for key in {"grn", "grn_layer0", "grn_layer1", "grn_type_1", "grn_total"} - {other} | {*kept}:
        # Balanced rows have one unit, that of a typical row of both blocks: a change of one block
        # scales the other.
        before, after = (
            values / np.abs(values).max()
            for values in (each.varp[key].toarray() for each in (network, found))
        )
        difference = np.abs(after - before).max()
        assert difference < 1e-4 if key in kept else difference > 0.1, key
    assert found.uns["grn"]["model_hash"] != network.uns["grn"]["model_hash"]


def test_noise_in_the_identity_token_changes_labels_and_the_representation(run, adata):
    before = grn.predict(adata, run, copy=True)
    noise(run.module.identity)
    after = grn.predict(adata, run, copy=True)
    assert (before.obs["grn_cell_type"] != after.obs["grn_cell_type"]).any()
    assert np.abs(before.obsm["X_grn"] - after.obsm["X_grn"]).max() > 0.1


def test_training_makes_the_edges(make_config):
    """Heads of width 1 cannot hold the exact solution that blocks start at, so that training
    improves them.
    """
    narrow = {"model.width": 1, "network.false_discovery": False, "trainer.learning_rate": 0.05}
    one, many = (grn.train(make_config(max_steps=count), set=narrow).edges for count in (1, 30))
    both = one.merge(many, on=["source", "target"])
    assert len(both) == len(one) and not np.allclose(both["weight_x"], both["weight_y"], rtol=0.02)


def test_raising_a_regulator_moves_every_target_by_the_sign_of_its_edge(run, adata):
    """In every cell, each in turn; by derivatives of perturbations, in double precision."""
    subject = Subject.of_run(run.folder, run.config, trained_of(run), adata)
    model, inputs = subject.model.double(), subject.inputs(subject.rows(None))
    measured, basal, states = (each.double() for each in inputs)
    weight, targets, step = run.network.varp["grn"].toarray(), model.targets.numpy(), 1e-3
    for number, regulator in enumerate(model.regulators.tolist()):
        raised = {number: measured[:, number] + step}
        slope = effects(model, measured, basal, states, raised, 1).mean((0, 1)).numpy() / step
        others = np.arange(model.genes) != regulator
        assert (np.sign(slope) == np.sign(weight[:, regulator]))[others].all()
        assert np.corrcoef(slope[targets], weight[targets, regulator])[0, 1] > 0.9


def test_a_type_s_derivatives_are_its_own(run):
    """Block 1 of one state, changed in its deviation alone, changes that type's network and the
    global one.
    """
    with torch.no_grad():
        run.module.blocks[1].embedding.deviation[:, :, 0] += 1
    found = run.read_networks()
    assert_networks(found, run.network, ["grn_type_2"])
    with pytest.raises(AssertionError):
        assert_networks(found, run.network, ["grn_type_1"])


def test_other_cells_are_refused_and_a_model_alone_has_no_network(run, adata, tmp_path):
    adata.X[0, 0] += 5
    with pytest.raises(DataError, match="not those"):
        run.read_networks(adata)
    alone = grn.load(shutil.copytree(run.folder / "model", tmp_path / "alone"))
    with pytest.raises(RunFolderError):
        alone.read_networks()
    assert isinstance(alone.module, torch.nn.Module)


def test_the_files_of_a_run_do_not_follow_its_module(run, tiny_run):
    noise(run.module)
    pd.testing.assert_frame_equal(run.edges, pd.read_parquet(tiny_run / "edges.parquet"))
    assert grn.load(tiny_run).module is not run.module
