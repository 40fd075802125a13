"""Tables of results, sets, and the benchmarks of networks: sizes, pictures, scores of known
answers.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial

import activity as benchmark
import anndata
import held_out
import networks
import numpy as np
import ours
import pandas as pd
import parts
import perturb
import pytest
import scaling
import torch
from peers import perceptron
from results_file import merged, ordered, write
from scaling import SIZES
from sets import SETS, NetworkSet, digest, load_sets

import grn
from grn.config.files import change_config

KEYS = ["set", "method"]


def rows_of(*rows: tuple[str, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*KEYS, "auprc"])


def test_new_rows_join_the_old_and_replace_those_of_the_same_set_and_method(tmp_path):
    path = tmp_path / "results" / "networks.csv"
    write(
        path,
        merged(path, rows_of(("a", "ridge", 0.1), ("a", "grn", np.nan), ("b", "ridge", 0.3)), KEYS),
    )
    write(path, merged(path, rows_of(("b", "genie3", 0.4), ("a", "ridge", 0.2)), KEYS))
    found = pd.read_csv(path)
    expected = rows_of(
        ("a", "grn", np.nan), ("b", "ridge", 0.3), ("b", "genie3", 0.4), ("a", "ridge", 0.2)
    )
    pd.testing.assert_frame_equal(found, expected)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_published_table_comes_back_as_it_is(tmp_path):
    published = networks.HERE / "results" / "networks.csv"
    path = tmp_path / "networks.csv"
    shutil.copy(published, path)
    before = pd.read_csv(path)
    table = merged(path, before[before["method"] == "ridge"], KEYS)
    write(path, ordered(table, set=list(SETS), method=networks.methods()))
    assert path.read_text() == published.read_text()


needs_data = pytest.mark.skipif(
    "GRN_BENCHMARK_DATA" not in os.environ, reason="GRN_BENCHMARK_DATA is not set"
)


SHAPES = {  # cells, genes, regulators (None: all), edges without self loops
    "sergio_ds1": (2700, 100, 10, 258),
    "sergio_ds1_clean": (2700, 100, 10, 258),
    "sergio_ds2": (1350, 400, 37, 1155),
    "sergio_ds2_clean": (1350, 400, 37, 1155),
    "boolode_GSD": (2000, 19, None, 76),
    "mdc_string": (383, 821, 264, 4815),
    "mdc_chip": (383, 821, 250, 3067),
}


@needs_data
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    (one,) = load_sets([name])
    regulators = None if one.regulators is None else len(one.regulators)
    assert (one.cells, len(one.genes), regulators, len(one.reference)) == SHAPES[name]
    assert one.matrix.shape == (one.cells, len(one.genes)) and one.matrix.dtype == np.float32
    assert (one.labels is None) == name.startswith("boolode") or len(one.labels) == one.cells
    assert set(one.reference["source"]) <= set(one.regulators or one.genes)
    assert set(one.reference["sign"]) == ({0} if name.startswith("mdc") else {-1, 1})
    prepared = one.prepared()
    assert prepared.values.dtype == np.float32 and np.isfinite(prepared.values).all()
    assert prepared.hash == one.hash


@needs_data
def test_counts_are_raw_and_peers_read_their_logarithms():
    (one,) = load_sets(["sergio_ds1"])
    assert (one.matrix == np.round(one.matrix)).all()
    seen = one.multiplicities()
    assert ((seen > 0) == (one.matrix > 0)).all()
    totals = one.matrix.sum(axis=1)
    expected = np.log1p(one.matrix[7] * np.median(totals[totals > 0]) / totals[7])
    np.testing.assert_allclose(seen[7], expected, rtol=1e-5)


def test_the_hash_knows_values_names_and_transform():
    matrix = np.ones((2, 2), dtype=np.float32)
    hashes = {
        digest(m, g, t)
        for m in (matrix, 2 * matrix)
        for g in (["a", "b"], ["a", "c"])
        for t in ("x", "y")
    }
    assert len(hashes) == 8


FEW = ["a", "b", "c"]


@pytest.fixture
def tiny() -> NetworkSet:
    matrix = np.random.default_rng(2).normal(size=(20, 3)).astype(np.float32)
    reference = pd.DataFrame({"source": ["a", "a"], "target": ["b", "c"], "sign": [1, -1]})
    return NetworkSet("tiny", FEW, "expression", matrix, None, ["a", "b"], reference, "all", "0123")


def network(*weights: float) -> pd.DataFrame:
    pairs = [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c")]
    return pd.DataFrame(
        [(*pair, weight) for pair, weight in zip(pairs, weights, strict=True)],
        columns=["source", "target", "weight"],
    )


@pytest.fixture
def table(tiny) -> pd.DataFrame:
    notes = {"seconds": 1.0, "cpu_seconds": 2.0, "peak_mb": 100.0, "cores": 2}
    right, wrong = network(3, -2, 1, 0.5), network(0.1, 0.2, 1, -2)
    rows = [
        networks.row(tiny, "grn", [(right, notes), (wrong, notes)]),
        networks.row(tiny, "ridge", [(right, notes)]),
    ]
    return pd.DataFrame(rows)


def test_a_perfect_network_and_the_spread_of_two(table):
    ours, ridge = table.iloc[0], table.iloc[1]
    assert (ridge["auprc"], ridge["sign_accuracy"], ridge["runs"]) == (1, 1, 1)
    assert ridge["auprc_ratio"] == pytest.approx(3)  # 2 edges among 6 pairs
    assert np.isnan(ridge["auprc_sd"]) and ours["auprc_sd"] > 0
    assert ours["sign_accuracy"] == pytest.approx(0.75)


def test_what_took_too_long_is_left_out_with_all_that_is_larger():
    taken: dict[tuple[int, int], float] = {}
    for genes, cells in sorted(SIZES):
        if not scaling.too_long(taken, genes, cells, limit=600):
            taken[genes, cells] = genes * cells * 1.6e-3  # 160 s for 100 genes of 1000 cells
    assert set(taken) == {(100, 500), (100, 1000), (100, 2000), (200, 1000)}
    assert taken[100, 2000] == 320  # so 4000 cells and 400 genes could take more than 600


def test_planted_cells_have_the_size_that_is_asked_for():
    one = scaling.planted(40, 50)
    assert one.matrix.shape == (50, 40) and one.regulators == ["R1", "R2", "R3", "R4"]
    assert set(one.reference["source"]) <= set(one.regulators)


@pytest.fixture
def planted(monkeypatch):
    """200 cells of two types over 20 genes, where g0 raises g3; the fit is short."""
    whole = ours.configuration
    few = {"model.members": 2, "trainer.max_steps": 40}
    monkeypatch.setattr(
        ours, "configuration", lambda *arguments: change_config(whole(*arguments), few)
    )
    generator = np.random.default_rng(0)
    level = generator.normal(1, 0.5, (200, 20))
    level[:, 3] += 2 * (level[:, 0] - 1)
    genes = [f"g{number}" for number in range(20)]
    reference = pd.DataFrame({"source": ["g0"], "target": ["g3"], "sign": [1]})
    labels = ["a", "b"] * 100
    matrix = generator.poisson(np.exp(level)).astype(np.float32)
    return NetworkSet(
        "planted", genes, "counts", matrix, labels, genes[:3], reference, "all", "planted"
    )


def test_it_lists_every_candidate_edge_of_all_cells_and_of_each_type(planted):
    found = ours.infer_in_context(planted, 0, q_values=True)
    pairs = {
        (source, target)
        for source in planted.genes[:3]
        for target in planted.genes
        if source != target
    }
    for table in (found.overall, *found.of_labels(planted.labels).values()):
        assert set(zip(table["source"], table["target"], strict=True)) == pairs
        assert table["q_value"].between(0, 1).all()
    assert sorted(found.of_labels(planted.labels)) == ["a", "b"]
    of_g3 = ours.infer(planted, 0, "cpu").query("target == 'g3'").set_index("source")["weight"]
    assert of_g3.abs().idxmax() == "g0" and of_g3["g0"] > 0


def test_errors_on_held_out_cells_are_of_the_genes_that_are_no_regulators(planted, monkeypatch):
    monkeypatch.setattr(perceptron, "STEPS", 100)
    found = held_out.errors(planted, 0, "cpu")
    assert found["test_cells"] == 20
    assert all(0.3 < found[name] < 1.5 for name in held_out.METHODS)
    every = held_out.errors(replace(planted, regulators=None), 0, "cpu")
    assert np.isnan(every["perceptron"]) and every["ridge"] > 0


def test_a_perceptron_learns_what_no_line_can(monkeypatch):
    monkeypatch.setattr(perceptron, "STEPS", 300)
    x = np.random.default_rng(0).normal(size=(1200, 2))
    y = np.sign(x[:, :1] * x[:, 1:])
    found = perceptron.predicted(x[:1000], y[:1000], x[1000:], 0)
    assert np.square(found - y[1000:]).mean() < 0.6 * np.square(y[1000:]).mean()


def test_without_its_norm_a_block_is_linear_and_its_weights_are_its_slopes(make_model, make_bags):
    model, bags = make_model(), make_bags()
    block = model.blocks[0]
    pick = torch.arange(2)
    states = torch.ones(len(bags), 1, dtype=torch.float64)
    m = model.inputs(bags.multiplicity[:, model.is_regulator], bags.basal)

    def bent() -> float:
        low, middle, high = (block(m + step, states, pick) for step in (0, 1, 2))
        return float((high - 2 * middle + low).detach().abs().max())

    assert bent() > 1e-6
    with parts.changed("no norm"):
        assert bent() < 1e-9
        scores, share = block.scores(pick), m.new_full((len(m),), 1 / len(m))
        found = block.derivatives(m, 0, pick, scores, share)
        torch.testing.assert_close(found, block.slopes(scores, pick)[:, 0])


def test_keys_that_are_present_or_absent_do_not_know_how_much_there_is(make_model, make_bags):
    model, bags = make_model(), make_bags()
    m = bags.multiplicity[:, model.is_regulator]
    assert not torch.equal(model.inputs(m, bags.basal), model.inputs(2 * m, bags.basal))
    with parts.changed("present or absent"):
        assert torch.equal(model.inputs(m, bags.basal), model.inputs(2 * m, bags.basal))


def test_propagation_adds_the_paths_and_keeps_what_is_knocked_out():
    # A (0) lowers B (1), B raises C (2); all are regulators, at level 1.
    coefficients = np.array([[0.0, 0, 0], [-0.5, 0, 0], [0, 0.4, 0]])
    regulators, level = np.arange(3), np.ones(3)
    one, two, many = (
        perturb.simple_effects(coefficients, regulators, level, steps)[:, 0] for steps in (1, 2, 9)
    )
    np.testing.assert_allclose(one, [0, 0.5, 0])
    np.testing.assert_allclose(two, [0, 0.5, 0.2])
    np.testing.assert_allclose(many, two)


def test_places_are_counted_from_one_and_hits_are_the_first_five():
    t = pd.Series(np.arange(10, 0, -1.0), [f"R{number}" for number in range(10)])
    found = benchmark.row("set", "grn", "B", 30, t, ["R0", "R4", "R5", "absent"])
    assert (found["hits"], found["misses"]) == (2, 1) and found["known"] == "R0:1 R4:5 R5:6"
    assert found["first"] == "R0 R1 R2 R3 R4" and found["expected_by_chance"] == 1.5


def test_a_planted_regulator_is_found_active_in_its_cells(monkeypatch):
    """STAT1 raises twelve genes, and does so after treatment; each method finds it."""
    pytest.importorskip("decoupler")
    few = {"model.members": 2, "trainer.max_steps": 100}
    monkeypatch.setattr(grn, "network", partial(grn.network, set=few))
    generator = np.random.default_rng(0)
    regulators = ["STAT1", "STAT2", "IRF7", "IRF9", "X1", "X2"]
    genes = [*regulators, *(f"g{number}" for number in range(30))]
    levels = generator.gamma(4.0, 1.0, (160, len(regulators)))
    treated = np.arange(160) % 2 == 0
    levels[treated, 0] += 6
    rates = np.hstack([levels, np.full((160, 30), 5.0)])
    rates[:, 6:18] = 1 + 2 * levels[:, :1]
    cells = anndata.AnnData(
        generator.poisson(rates).astype(np.float32), var=pd.DataFrame(index=genes)
    )
    cells.obs["condition"] = np.where(treated, "stim", "ctrl")
    cells.obs["type"] = np.where(np.arange(160) < 80, "a", "b")
    rows = pd.DataFrame(benchmark.rows_of("kang_ifnb", cells, regulators, "type", 0))
    assert set(rows["method"]) == {"grn", "pearson", "ridge"} and set(rows["cell_type"]) == {
        "a",
        "b",
    }
    assert rows["first"].str.startswith("STAT1 ").all()
