"""It is one model: whatever part of a run's module is changed, its network or its labels change."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import grn
from grn.cells.readers.registry import open_source
from grn.features.run import trained_of
from grn.networks.cells_of_run import cells_of_run, states_of_run
from grn.runtime.errors import DataError, RunFolderError


def noise(part: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))


def dense(network, key: str) -> np.ndarray:
    return network.varp[key].toarray()


def test_the_network_is_read_again_as_it_is_in_the_files(run):
    found = run.read_networks()
    assert set(found.varp) == set(run.network.varp)
    for key in found.varp:
        np.testing.assert_allclose(dense(found, key), dense(run.network, key), rtol=1e-5, atol=1e-7)
    assert found.uns["grn"]["model_hash"] == run.network.uns["grn"]["model_hash"]


@pytest.mark.parametrize(
    ("part", "changed", "kept"),
    [
        ("blocks.0", ["grn", "grn_layer0", "grn_type_1", "grn_total"], []),
        ("blocks.0.embedding", ["grn", "grn_layer0", "grn_type_1", "grn_total"], []),
        ("blocks.1", ["grn", "grn_layer1", "grn_type_1", "grn_total"], ["grn_layer0"]),
        ("blocks.1.embedding", ["grn", "grn_layer1", "grn_type_1", "grn_total"], ["grn_layer0"]),
        ("basal", ["grn_total"], ["grn", "grn_layer0", "grn_layer1", "grn_type_1"]),
        ("identity", [], ["grn", "grn_layer0", "grn_layer1", "grn_type_1", "grn_total"]),
    ],
)
def test_noise_in_a_part_changes_the_networks_that_are_read_from_it(run, part, changed, kept):
    run.module.basal.gate.fill_(1.0)  # so few steps may leave the context shut
    network = run.read_networks()
    noise(run.module.get_submodule(part))
    found = run.read_networks()
    for key in [*changed, *kept]:
        # Balanced rows have one unit, that of a typical row of both blocks: a change of one block
        # scales the other.
        before, after = (
            dense(each, key) / np.abs(dense(each, key)).max() for each in (network, found)
        )
        difference = np.abs(after - before).max()
        assert difference > 0.1 if key in changed else difference < 1e-4, key
    hashes = {each.uns["grn"]["model_hash"] for each in (run.network, network, found)}
    assert len(hashes) == 3


def test_noise_in_the_identity_token_changes_labels_and_the_representation(run, tiny_run):
    cells = open_source(run.config.data)
    before = grn.predict(cells, tiny_run, copy=True, quiet=True)
    noise(run.module.identity)
    after = grn.predict(cells, run, copy=True, quiet=True)
    assert (before.obs["grn_cell_type"] != after.obs["grn_cell_type"]).any()
    assert np.abs(before.obsm["X_grn"] - after.obsm["X_grn"]).max() > 0.1


def test_training_makes_the_edges(make_config):
    """Heads of width 1 cannot hold the exact solution that blocks start at, so that training
    improves them.
    """
    narrow = {"model.width": 1, "network.false_discovery": False, "trainer.learning_rate": 0.05}
    steps = [
        grn.train(make_config(max_steps=count), set=narrow, quiet=True).edges for count in (1, 30)
    ]
    both = steps[0].merge(steps[1], on=["source", "target"], suffixes=("", "_of_many"))
    assert len(both) == len(steps[0]) and not np.allclose(
        both["weight"], both["weight_of_many"], rtol=0.02
    )


def test_finite_differences_have_the_sign_of_every_edge(run):
    """Each regulator in turn is raised in every cell; what genes read of the basal gene stays as it
    is.
    """
    model = run.module.double()
    cells = cells_of_run(run.folder, run.config, trained_of(run))
    membership = torch.as_tensor(
        states_of_run(run.folder, cells, run.config.trainer.seed, trained_of(run)).membership
    )
    states = membership.double()
    multiplicity = torch.as_tensor(cells.multiplicity.toarray()).double()
    basal = torch.as_tensor(cells.basal).double()
    every, step = torch.arange(len(model.targets)), 1e-3

    def direct(raised: torch.Tensor) -> torch.Tensor:
        """The mean prediction of each gene. raised [R]: what is added to the regulators, as each
        block reads them.
        """
        m = model.inputs(multiplicity[:, model.regulators], basal)
        y = model.among(m + raised, states)
        keys = model.corrected(m, model.among(m, states), states) + raised
        found = torch.zeros(model.genes).double()
        found[model.regulators] = y.mean((0, 1))
        found[model.targets] = model.blocks[1](keys, states, every).mean((0, 1))
        return found

    weight = dense(run.network, "grn")
    for number, regulator in enumerate(model.regulators.tolist()):
        raised = torch.zeros(len(model.regulators) + 1).double()
        raised[number] = step
        slope = (direct(raised) - direct(-raised)).numpy() / (2 * step)
        others = np.arange(model.genes) != regulator
        assert (np.sign(slope) == np.sign(weight[:, regulator]))[others].all()
        assert np.corrcoef(slope[model.targets], weight[model.targets, regulator])[0, 1] > 0.9


def test_a_type_s_derivatives_are_its_own(run):
    """Block 1 of one state, changed in its deviation alone, changes that type's network and the
    global one.
    """
    with torch.no_grad():
        run.module.blocks[1].embedding.deviation[:, :, 0] += 1
    found = run.read_networks()
    assert not np.allclose(dense(found, "grn_type_1"), dense(run.network, "grn_type_1"), rtol=0.1)
    np.testing.assert_allclose(
        dense(found, "grn_type_2"), dense(run.network, "grn_type_2"), rtol=1e-4, atol=1e-6
    )


def test_cells_in_memory_may_be_given_and_others_are_refused(run, tmp_path):
    cells = open_source(run.config.data)
    again = run.read_networks(cells)
    np.testing.assert_allclose(dense(again, "grn"), dense(run.network, "grn"), rtol=1e-5, atol=1e-7)
    cells.X[0, 0] += 5
    with pytest.raises(DataError, match="not those"):
        run.read_networks(cells)
    alone = tmp_path / "alone"
    shutil.copytree(run.folder / "model", alone)
    with pytest.raises(RunFolderError):
        grn.load(alone).read_networks()
    assert isinstance(grn.load(alone).module, torch.nn.Module)


def test_the_files_of_a_run_do_not_follow_its_module(run, tiny_run):
    noise(run.module)
    pd.testing.assert_frame_equal(run.edges, pd.read_parquet(tiny_run / "edges.parquet"))
    assert grn.load(tiny_run).module is not run.module
