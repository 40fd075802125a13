"""Regulators of each cell type: several, each with its strongest edges, from an AnnData as from a file."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from grn.plots.regulators import cell_type_regulators

GENES = ["A", "B", "x", "y", "$z$"]


def matrix(edges: dict[tuple[str, str], float]) -> sparse.csr_matrix:
    """Row = target, column = regulator."""
    weights = np.zeros((len(GENES), len(GENES)), np.float32)
    for (regulator, target), weight in edges.items():
        weights[GENES.index(target), GENES.index(regulator)] = weight
    return sparse.csr_matrix(weights)


@pytest.fixture
def network() -> anndata.AnnData:
    every = {("A", "x"): 0.9, ("A", "y"): 0.8, ("A", "$z$"): -0.7, ("B", "x"): -0.2}
    types = pd.DataFrame({"slug": ["T_1", "NA"], "label": ["T/1", "NA"]}, index=["0", "1"], dtype=object)
    adata = anndata.AnnData(
        np.zeros((2, len(GENES)), np.float32),
        obs=pd.DataFrame({"cells": [3, 40]}, index=["T/1", "NA"]),
        var=pd.DataFrame(index=GENES),
        uns={"grn": {"sign": "positive: raises the target", "cell_types": types}},
    )
    adata.varp["grn"] = matrix(every)
    adata.varp["grn_T_1"] = matrix(every | {("B", "y"): 2.0})
    adata.varp["grn_NA"] = matrix({("B", "$z$"): 0.5})
    return adata


def bars(axes) -> list[float]:
    return [round(float(bar.get_width()), 3) for bar in axes.patches]


def test_types_with_the_most_cells_come_first_and_regulators_by_their_strongest_edge(network):
    first, second = cell_type_regulators(network).axes
    assert (first.get_title(), second.get_title()) == ("NA", "T/1")
    assert bars(first) == [0.5]
    assert bars(second) == [2.0, -0.2, 0.9, -0.7]
    assert [text.get_text() for text in second.texts if text.get_fontweight() == "bold"] == ["B", "A"]
    assert [text.get_text() for text in first.texts] == ["B", r"\$z\$"]  # its bar is too short for a number
    assert {"2.00", "0.90", "0.70"} <= {text.get_text() for text in second.texts}
    assert first.get_xlim() == second.get_xlim()
    assert len(cell_type_regulators(network, types=1).axes) == 1
    assert bars(cell_type_regulators(network, types=1, regulators=1).axes[0]) == [0.5]


def test_a_network_without_cell_types_is_drawn_over_all_cells(network):
    network.uns["grn"]["cell_types"] = network.uns["grn"]["cell_types"].iloc[:0]
    network = network[:0]
    (axes,) = cell_type_regulators(network).axes
    assert axes.get_title() == "all cells"
    assert bars(axes) == [0.9, -0.7, -0.2]
