"""The read-outs of a model, run together."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from grn.network import run_readouts
from grn.network.file_formats import edge_table, square_matrix
from grn.network.readouts import block_attention
from grn.network.run_readouts import read_networks, with_progress

REGULATORS = np.array([0, 3, 5])


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_the_same_whether_or_not_whole_tables_fit_in_memory(make_model, csr_cells, monkeypatch, packed):
    multiplicity, labels = csr_cells
    multiplicity = sparse.csr_matrix(multiplicity.astype(np.float32))
    trained = SimpleNamespace(
        model=make_model(dtype=torch.float32), regulators=REGULATORS, vocabulary=[f"g{i}" for i in range(12)]
    )
    options = {"readout": "attention", "cells": 20, "seed": 0, "top_k": 2, "packed": packed}
    whole = read_networks(trained, multiplicity, labels, **options)
    monkeypatch.setattr(run_readouts, "TABLE", 30)
    monkeypatch.setattr(block_attention, "TABLE", 30)
    few = read_networks(trained, multiplicity, labels, **options)
    assert sparse.issparse(few.chosen.weight) and not sparse.issparse(whole.chosen.weight)
    tables = [edge_table(found.chosen, trained.vocabulary, REGULATORS, 2) for found in (whole, few)]
    assert tables[0][["source", "target"]].equals(tables[1][["source", "target"]])
    np.testing.assert_allclose(tables[0]["weight"], tables[1]["weight"], rtol=1e-5)
    assert (tables[1]["confidence"] == 0.5).all()
    for one, other in zip([*whole.layers, whole.pooled()], [*few.layers, few.pooled()], strict=True):
        one, other = square_matrix(one, REGULATORS, 2), square_matrix(other, REGULATORS, 2)
        np.testing.assert_allclose(one.toarray(), other.toarray(), rtol=1e-5, atol=1e-7)


def test_progress_is_reported_now_and_then_and_changes_no_sample(monkeypatch):
    lines = []
    assert list(with_progress([1, 2], "Reading", lines.append)) == [1, 2] and lines == []
    monkeypatch.setattr(run_readouts, "MESSAGE_EVERY_S", -1)
    assert list(with_progress([1, 2], "Reading", lines.append)) == [1, 2]
    assert lines == ["Reading: 50 % of the bags are read.", "Reading: 100 % of the bags are read."]
