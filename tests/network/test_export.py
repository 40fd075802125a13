"""The files of a network say how they were read."""

from types import SimpleNamespace

import pytest

from grn.data.cells import load_cells
from grn.network.export import bags_read
from grn.network.signed_network import open_network


@pytest.mark.parametrize(
    ("members", "readout", "bags"),
    [(2, "effect", 80), (2, "attention", 80), (0, "attention", 40), (2, "knockout", 40)],
)
def test_the_number_of_bags_is_that_of_those_read(make_config, members, readout, bags):
    """80 cells of two types; network.cells is 40."""
    config = make_config()
    network = config.network.model_copy(update={"readout": readout})
    config = config.model_copy(update={"network": network})
    trained = SimpleNamespace(model=SimpleNamespace(regulation=object() if members else None))
    cells, _ = load_cells(config.data)
    assert bags_read(config, trained, cells) == bags


def test_network_h5ad_has_the_number_of_bags_that_were_read(tiny_run):
    assert open_network(tiny_run / "network.h5ad").about["parameters"]["bags"] == 80
