"""The read-outs of a model, run together."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from grn.cells.cells import Cells
from grn.networks import run_readouts
from grn.networks.readouts import block_attention
from grn.networks.run_files import edge_table, square_matrix
from grn.networks.run_readouts import read_networks
from grn.regulation.states import states_of

REGULATORS = np.array([0, 3, 5])
GENES = tuple(f"g{i}" for i in range(12))


def cells_of(csr_cells) -> Cells:
    multiplicity, labels = csr_cells
    everything = np.ones(12)
    return Cells(
        multiplicity=sparse.csr_matrix(multiplicity.astype(np.float32)),
        vocabulary=GENES,
        regulators=REGULATORS,
        labels=labels,
        classes=("a/b", "T cell"),
        property=np.full(30, np.nan, np.float32),
        obs_names=np.arange(30).astype(str),
        basal=np.linspace(0.5, 1.5, 30, dtype=np.float32),
        depth=None,
        measures_depth=everything > 0,
        depth_share=everything / 12,
        target_total=None,
        counts_from="",
    )


@pytest.fixture
def read(make_model, csr_cells):
    """The networks of a small model over the cells, and the model."""

    def networks(readout: str, members: int = 0, **options):
        cells = cells_of(csr_cells)
        states = states_of(cells, seed=0)
        model = make_model(dtype=torch.float32, members=members, states=len(states))
        trained = SimpleNamespace(model=model, regulators=REGULATORS, vocabulary=GENES)
        return read_networks(trained, cells, states, readout=readout, most_cells=20, seed=0, **options)

    return networks


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_the_same_whether_or_not_whole_tables_fit_in_memory(read, monkeypatch, packed):
    whole = read("attention", top_k=2, packed=packed)
    monkeypatch.setattr(run_readouts, "TABLE", 30)
    monkeypatch.setattr(block_attention, "TABLE", 30)
    few = read("attention", top_k=2, packed=packed)
    assert sparse.issparse(few.chosen.weight) and not sparse.issparse(whole.chosen.weight)
    tables = [edge_table(found.chosen, GENES, REGULATORS, 2) for found in (whole, few)]
    assert tables[0][["source", "target"]].equals(tables[1][["source", "target"]])
    np.testing.assert_allclose(tables[0]["weight"], tables[1]["weight"], rtol=1e-5)
    assert (tables[1]["confidence"] == 0.5).all() and tables[1][["within", "between"]].isna().all(axis=None)
    for one, other in zip([*whole.layers, whole.pooled()], [*few.layers, few.pooled()], strict=True):
        one, other = square_matrix(one, REGULATORS, 2), square_matrix(other, REGULATORS, 2)
        np.testing.assert_allclose(one.toarray(), other.toarray(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("readout", ["effect", "attention", "knockout", "jacobian"])
def test_networks_of_types_have_their_labels_and_only_effects_have_evidence(read, readout):
    found = read(readout, members=2)
    assert list(found.chosen.by_type) == ["a/b", "T cell"] == list(found.attention.by_type)
    first, second = found.chosen.by_type.values()
    assert np.abs(first - second).max() > 1e-4
    effects = readout == "effect"
    for known in (found.chosen.q, found.chosen.within, found.chosen.between):
        assert (known is not None) == effects
    assert list(found.chosen.type_q) == (["a/b", "T cell"] if effects else [])
    if readout == "attention":
        assert found.chosen is found.attention
