"""A run of the paper's own kind: a transformer alone, whose layers are its network."""

import anndata
import numpy as np
import pytest

import grn
from grn.runtime.errors import ConfigError, DataError

SMALL = {
    "data.simulated.cells": 200,
    "data.simulated.genes": 24,
    "data.simulated.regulators": 6,
    "model.width": 8,
    "model.layers": 3,
    "model.query_heads": 2,
    "model.key_heads": 1,
    "model.hidden": 32,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper") / "run"
    fields = SMALL | {"model.reader": "transformer", "objectives.masked_multiplicity.weight": 0}
    return grn.train(
        "simulated:", label="cell_type", output=folder, max_steps=4, quiet=True, set=fields
    )


def test_the_model_has_no_signed_blocks_and_its_files_hold_every_layer_between_genes(run):
    assert not run.module.regulates and not any(
        name.startswith("blocks") for name, _ in run.module.named_parameters()
    )
    network = anndata.read_h5ad(run.folder / "network.h5ad")
    slugs = list(network.uns["grn"]["cell_types"]["slug"])
    assert {"grn", "grn_layer0", "grn_layer1", f"grn_layer1_{slugs[0]}"} <= set(
        network.varp
    ) and len(slugs) == 5
    assert "grn_layer2" not in network.varp, "of the last layer, the identity token alone asks"
    assert network.var["grn_identity"].abs().max() > 0
    mean = (network.varp["grn_layer0"] + network.varp["grn_layer1"]).toarray() / 2
    np.testing.assert_allclose(network.varp["grn"].toarray(), mean, atol=1e-6)
    assert "certain" in network.uns["grn"]["sign"] and (run.edges["q_value"] == 1).all()
    assert grn.read_network(run).empty and len(grn.read_network(run, certain=False)) == len(
        run.edges
    )


def test_the_report_says_that_no_edge_is_certain_and_what_a_weight_is(run):
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "No edge is certain" in page and "The attention weight of the target" in page
    assert "was not computed" not in page


def test_a_layer_is_read_in_cells_of_choice(run):
    whole = grn.read_network(run, layer=1)
    some = grn.read_network(run, layer=1, cells=["cell1", "cell2", "cell7"])
    of_type = grn.read_network(run, layer=1, cell_type="type 1")
    both = whole.merge(some, on=["source", "target"]).merge(of_type, on=["source", "target"])
    assert len(both) > 50 and (both["weight_x"] - both["weight_y"]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"layer": 2}, ConfigError),
        ({"layer": 0, "cells": ["nobody"]}, DataError),
        ({"layer": 0, "head": 1}, ConfigError),
        ({"layer": 0, "cell_type": "nothing"}, DataError),
        ({"cells": ["nobody"]}, ConfigError),
    ],
)
def test_what_cannot_be_read_is_refused(run, options, error):
    with pytest.raises(error):
        grn.read_network(run, **options)
