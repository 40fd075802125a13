"""Interventions become keys: what obs says, what a knock-out sets, and which guides worked."""

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

from grn.cells.interventions import read_interventions
from grn.cells.load import load_cells
from grn.cells.loading.batches import BagMaker
from grn.cells.simulated.cells import simulate
from grn.config.schema import DataConfig, Simulation
from grn.runtime.errors import DataError

SCREEN = {"path": "simulated:", "genes": "all", "intervention_key": "intervention"}


@pytest.fixture(scope="module")
def screen() -> AnnData:
    size = {"cells": 1500, "genes": 40, "regulators": 12, "cell_types": 2}
    return simulate(Simulation(**size, interventions=0.3, failing=0.25, pairs=0.2, seed=3))


def read(genes, **fields):
    config = DataConfig(path="x.h5ad", intervention_key="gene", **fields)
    return read_interventions(pd.DataFrame({"gene": genes}), config)


def test_genes_of_cells_and_controls_are_read_as_screens_write_them():
    genes = ["A", "ctrl", "A+B", "B+ctrl", "Non-Targeting", None, *["control"] * 5]
    done = read(genes)
    assert done.names == ("A", "B")
    given = [[1, 0], [0, 0], [1, 1], [0, 1], [0, 0], [0, 0]]
    np.testing.assert_array_equal(done.given.toarray()[:6], given)
    assert done.control[:6].tolist() == [False, True, False, False, True, False]
    assert list(done.alone(0)) == [0] and list(done.alone(1)) == [3]
    assert "Non-Targeting" in read(genes, control=["control", "ctrl"]).names
    of_bulk = ["", "", "A", "A"]
    with pytest.raises(DataError):
        read(of_bulk)
    assert list(read(of_bulk, control="").control) == [True, True, False, False]


@pytest.mark.parametrize("control", ["nobody", ["control", "A"]])
def test_a_screen_without_controls_or_without_interventions_is_refused(control):
    with pytest.raises(DataError) as refused:
        read(["A"] * 5 + ["control"] * 5, control=control)
    assert refused.value.field == "data.control"


def test_a_knock_out_sets_the_messenger_to_zero_and_adds_a_key(screen):
    with_keys, _ = load_cells(DataConfig(**SCREEN), adata=screen)
    without, _ = load_cells(DataConfig(path="simulated:", genes="all"), adata=screen)
    done, genes = with_keys.interventions, len(without.vocabulary)
    assert with_keys.vocabulary == (*without.vocabulary, *(f"do({name})" for name in done.names))
    given = done.given.toarray() > 0
    np.testing.assert_array_equal(with_keys.multiplicity[:, genes:].toarray() > 0, given)
    before, after = without.multiplicity.toarray(), with_keys.multiplicity[:, :genes].toarray()
    for gene, place in enumerate(done.place):
        assert (after[given[:, gene], place] == 0).all()
        np.testing.assert_array_equal(after[~given[:, gene], place], before[~given[:, gene], place])
    others = np.setdiff1d(np.arange(genes), done.place)
    np.testing.assert_array_equal(after[:, others], before[:, others])
    assert without.digest != with_keys.digest


def test_a_knock_down_leaves_the_messenger_as_it_was_counted(screen):
    cells, _ = load_cells(DataConfig(**SCREEN, intervention="knock-down"), adata=screen)
    without, _ = load_cells(DataConfig(path="simulated:", genes="all"), adata=screen)
    assert (cells.multiplicity[:, : len(without.vocabulary)] != without.multiplicity).nnz == 0


def test_a_gene_that_was_not_measured_has_the_guides_key_alone(screen):
    name = next(each for each in screen.obs["intervention"] if each in screen.var_names)
    cells, _ = load_cells(DataConfig(**SCREEN), adata=screen[:, screen.var_names != name].copy())
    number = cells.interventions.names.index(name)
    assert cells.interventions.place[number] == -1
    assert cells.vocabulary[cells.interventions.key[number]] == name


def test_only_the_rows_of_intervened_genes_and_of_keys_are_cut(screen):
    cells, _ = load_cells(DataConfig(**SCREEN), adata=screen)
    rows, done = np.arange(50), cells.interventions
    expected = np.zeros((50, len(cells.vocabulary)), bool)
    expected[:, done.key] = True
    for cell, gene in zip(*done.given[rows].nonzero(), strict=True):
        expected[cell, done.place[gene]] = True
    np.testing.assert_array_equal(BagMaker(cells)[0, rows].bags.cut, expected)


def test_guides_that_fail_are_found(screen):
    """Of genes that some guide took away: where all fail, no effect shows and nothing is said. In
    cells of two guides each counts for itself.
    """
    cells, _ = load_cells(DataConfig(**SCREEN, guide_key="guide"), adata=screen)
    works = screen.uns["guides"].set_index("guide")["works"]
    share = cells.guides.set_index("guide")["share"].dropna()
    assert len(share) >= 6 and (~works[share.index]).any()
    np.testing.assert_array_equal(share > 0.5, works[share.index])
    failing, given = set(share.index[share < 0.5]), cells.interventions.given
    guides = screen.obs["guide"].astype(str).str.split("+")
    both = [
        given[[cell]].data
        for cell, names in enumerate(guides)
        if len(names) == given[[cell]].nnz == 2 and failing & {*names}
    ]
    assert both and all(each.min() < 0.5 for each in both) and max(map(max, both)) > 0.5
