"""network.h5ad and edges.parquet: what they hold, and that they agree."""

import re
from dataclasses import replace

import anndata
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from grn.edges import weights as network_weights
from grn.edges.signed_network import open_network
from grn.edges.weights import Network, strongest
from grn.evidence.states import States
from grn.networks.run_files import (
    RESERVED,
    edge_table,
    edges_by_type,
    kept,
    network_anndata,
    slugs,
    write_network,
)

GENES = ("NA", "g1", "g2", "g3", "nan")
REGULATORS = np.array([1, 4])
COLUMNS = [
    "weight",
    "sd",
    "effect",
    "effect_se",
    "q_value",
    "confidence",
    "programme",
    "between",
    "indirect",
    "cells",
]
LABELS = ("total", "a/b", "a b", "", "β", "layer0", "T/NK cell", "type", "a_b_2")


def drawn(seed: int) -> np.ndarray:
    weight = np.random.default_rng(seed).normal(size=(5, 2)).astype(np.float32)
    weight[REGULATORS, [0, 1]] = 0
    return weight


def network(types=LABELS[:3], seed: int = 0, sure: bool = True) -> Network:
    """Every type has its own; with what knock-offs say of it, or without."""
    names = ("weight", "sd", "total", "indirect", "between")
    names += ("confidence", "q", "effect", "effect_se") if sure else ()
    of_types = {name: network((), seed + 1 + n, sure) for n, name in enumerate(types)}
    drawn_ones = {name: drawn(100 * seed + number) for number, name in enumerate(names)}
    return Network(**drawn_ones, cells=np.arange(1, 11).reshape(5, 2), of_states=of_types)


def tables(read: Network, top_k: int | None, least_cells: int = 1) -> tuple[pd.DataFrame, ...]:
    """The table of edges, and that of edges by type."""
    return tuple(
        table(read, GENES, REGULATORS, top_k, least_cells=least_cells)
        for table in (edge_table, edges_by_type)
    )


def as_anndata(classes=LABELS, top_k=None, read=None):
    """Of four cells of each type, and as many that belong to all in equal parts."""
    count = max(1, len(classes))
    share = np.concatenate([np.repeat(np.eye(count), 4, 0), np.full((4, count), 1 / count)])
    counts = np.random.default_rng(1).poisson(1.0, (len(share), 5)).astype(np.float32)
    names, origin = (tuple(classes), "labels") if classes else (("all cells",), "one")
    return network_anndata(
        read or network(classes),
        genes=GENES,
        regulators=REGULATORS,
        states=States(share.astype(np.float32), names, origin),
        multiplicity=sparse.csr_matrix(counts),
        top_k=top_k,
        about={"model_hash": "abc", "version": "0"},
    )


@given(st.lists(st.text(max_size=8) | st.sampled_from(LABELS), unique=True))
def test_slugs_are_different_plain_and_not_reserved(labels):
    found = slugs(labels)
    assert list(found) == labels
    assert len(set(found.values())) == len(labels)
    for slug in found.values():
        assert re.fullmatch(r"[A-Za-z0-9_]+", slug)
        assert not RESERVED.fullmatch(slug)


def test_the_networks_of_all_types_read_back(tmp_path):
    read = network(LABELS)
    edges, by_type = tables(read, None)
    write_network(tmp_path, as_anndata(read=read), edges, by_type)
    found = anndata.read_h5ad(tmp_path / "network.h5ad")
    label_of = pd.DataFrame(found.uns["grn"]["cell_types"]).set_index("slug")["label"].to_dict()
    assert sorted(label_of.values()) == sorted(LABELS)
    whole = {"grn": read.weight, "grn_total": read.total}
    whole |= {f"grn_{slug}": read.of_states[label].weight for slug, label in label_of.items()}
    assert set(found.varp) == {*whole, "grn_layer0", "grn_layer1"}
    for key, expected in whole.items():
        np.testing.assert_array_equal(found.varp[key].toarray()[:, REGULATORS], expected)
    of_blocks = [found.varp[f"grn_layer{layer}"].toarray() for layer in (0, 1)]
    np.testing.assert_array_equal(sum(of_blocks), found.varp["grn"].toarray())
    is_regulator = np.isin(np.arange(5), REGULATORS)
    assert (of_blocks[0][~is_regulator] == 0).all() and (of_blocks[1][is_regulator] == 0).all()
    assert list(found.var_names) == list(GENES), "NA and nan are genes"
    assert found.var["is_regulator"].tolist() == is_regulator.tolist()
    # a matrix or, as anndata.settings.use_sparse_array_on_read has it, an array
    assert sparse.issparse(found.varp["grn"]) and found.varp["grn"].format == "csr"
    about = found.uns["grn"]
    assert about["orientation"] == "row = target, column = regulator"
    assert about["sign"].startswith("positive: more of the regulator raises")
    assert about["model_hash"] == "abc" and about["states"] == "labels"
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "edges.parquet"), edges)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "edges_by_type.parquet"), by_type)
    opened = open_network(tmp_path / "network.h5ad")
    assert opened.signed and sorted(opened.by_type) == sorted(LABELS)


def test_cell_types_hold_their_mean_multiplicity():
    """Cells that belong to several count in part."""
    found = as_anndata(("x", "y"))
    counts = np.random.default_rng(1).poisson(1.0, (12, 5))
    assert found.obs_names.tolist() == ["x", "y"] and found.obs["cells"].tolist() == [6, 6]
    shared = counts[8:].sum(0) / 2
    np.testing.assert_allclose(
        found.X, [(part.sum(0) + shared) / 6 for part in (counts[:4], counts[4:8])], rtol=1e-6
    )


def test_a_network_without_cell_types_is_written(tmp_path):
    read = network((), sure=False)
    edges, by_type = tables(read, None)
    write_network(tmp_path, as_anndata((), read=read), edges, by_type)
    found = anndata.read_h5ad(tmp_path / "network.h5ad")
    assert found.shape == (0, 5) and found.uns["grn"]["states"] == "one"
    assert set(found.varp) == {"grn", "grn_total", "grn_layer0", "grn_layer1"}
    nothing = pd.read_parquet(tmp_path / "edges_by_type.parquet")
    assert len(nothing) == 0 and list(nothing.columns) == [*edges.columns, "cell_type"]


def test_files_hold_certain_edges_and_the_strongest_that_are_seen_in_some_cell():
    weight = np.array([[0, 4.0], [3, 0.1], [2, 1], [9, 5], [1, 0]], np.float32)
    q = np.ones((5, 2))
    q[1, 1] = 0.05
    cells = np.full((5, 2), 3)
    cells[3, 0] = 0
    read = replace(network(()), weight=weight, q=q, cells=cells)
    expected = np.array([[0, 1], [1, 1], [1, 0], [0, 1], [1, 0]], bool)
    np.testing.assert_array_equal(kept(read, 1), expected)
    np.testing.assert_array_equal(kept(replace(read, q=None, caused_q=q), 1), expected)
    seen = np.ones((5, 2), bool)
    seen[3, 0] = False
    np.testing.assert_array_equal(kept(read, None), seen)
    assert len(edge_table(read, GENES, REGULATORS, None)) == 7
    matrix = as_anndata((), top_k=1, read=read).varp["grn"].toarray()[:, REGULATORS]
    np.testing.assert_array_equal(matrix, np.where(expected, weight, 0))


def test_pairs_that_few_cells_have_together_are_no_rows():
    """But for what an intervention has shown."""
    read = network(sure=False)
    for least in (1, 5, 10):
        table, of_types = tables(read, None, least)
        assert len(table) == ((read.cells >= least) & (read.weight != 0)).sum()
        assert len(of_types) == 3 * len(table)
        assert (table["cells"] >= least).all() and (of_types["cells"] >= least).all()
    caused_q = np.ones((5, 2))
    caused_q[0, 0] = 0.01
    shown, _ = tables(replace(read, caused_q=caused_q), None, 11)
    assert shown["target"].tolist() == ["NA"]


def test_the_most_certain_edges_are_first_and_of_these_the_strongest():
    """A pair that nobody has judged is as one that is not certain."""
    q = np.array([[0.01, 0.2], [0.2, 0.01], [np.nan, 1.0], [0.2, 0.01], [1.0, 0.2]], np.float32)
    for known in (q, None):
        found = edge_table(replace(network(), q=known), GENES, REGULATORS, None)
        assert ("q_value" in found) == (known is not None)
        order = pd.DataFrame({"q": found.get("q_value", 1.0), "size": -found["weight"].abs()})
        order = order.fillna({"q": 1.0})
        assert order.equals(order.sort_values(["q", "size"])) and len(order) == 8


@pytest.mark.parametrize("sorted_at_once", [1, 2**20])
@given(
    weight=arrays(np.float32, (5, 7), elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 0.5])),
    top_k=st.integers(1, 7),
)
def test_the_strongest_are_first_in_a_stable_order(weight, top_k, sorted_at_once):
    order = np.argsort(-np.abs(weight), axis=1, kind="stable")[:, :top_k]
    expected = np.zeros(weight.shape, dtype=bool)
    np.put_along_axis(expected, order, True, axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_weights, "SORTED", sorted_at_once)
        np.testing.assert_array_equal(strongest(weight, top_k), expected)


@pytest.mark.parametrize("sure", [False, True])
def test_every_column_of_an_edge_is_about_that_edge(sure):
    """Also in the table of types, which has their tables one after the other."""
    read = network(LABELS, sure=sure)
    whole, by_type = tables(read, None)
    assert list(by_type["cell_type"].unique()) == list(LABELS)
    of_types = dict(list(by_type.groupby("cell_type", observed=True)))
    both = [(read, whole), *((read.of_states[name], of_types[name]) for name in LABELS)]
    known = {name: name for name in COLUMNS if name != "programme"} | {"q_value": "q"}
    for one, table in both:
        assert len(table) == 8
        row = table["target"].map(GENES.index)
        column = table["source"].map({"g1": 0, "nan": 1})
        for name, field in known.items():
            values = getattr(one, field)
            assert (name in table) == (values is not None)
            if values is not None:
                np.testing.assert_array_equal(table[name], values[row, column])
    assert not sure or list(whole) == ["source", "target", *COLUMNS]


@pytest.mark.parametrize("top_k", [1, 3, 99])
def test_files_hold_the_strongest_edges_of_a_target_over_all_types(top_k):
    """And each type's certain ones, and those that are certain over all cells; the matrices hold
    the same.
    """
    read, pair = network(LABELS), ["source", "target"]
    (overall, every), (_, found) = tables(read, None), tables(read, top_k)
    certain = pd.MultiIndex.from_frame(overall.loc[overall["q_value"] <= 0.05, pair])
    size = every["weight"].abs().where(every["cells"] > 0, 0)
    of_target, of_type = every["target"], every["cell_type"]
    # Of a target, a type has top_k edges at most.
    strong = size.groupby(of_target).rank(ascending=False) <= top_k
    own = size.groupby([of_target, of_type], observed=True).rank(ascending=False) <= top_k
    sure = every["q_value"] <= 0.05
    borrowed = pd.MultiIndex.from_frame(every[pair]).isin(certain)
    expected = every[((strong & own | borrowed) & (size > 0)) | sure]
    assert top_k > 1 or len(expected) > (strong | sure).sum(), "some are borrowed"
    pd.testing.assert_frame_equal(found, expected.reset_index(drop=True))
    adata = as_anndata(top_k=top_k, read=read)
    stored = sum(adata.varp[f"grn_{slug}"].nnz for slug in adata.uns["grn"]["cell_types"]["slug"])
    assert stored == len(found)
