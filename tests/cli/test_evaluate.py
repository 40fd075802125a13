"""`grn evaluate` as a user calls it."""

import math
import os
import shutil
from pathlib import Path

import anndata
import pandas as pd
import pytest

import grn
from grn.cells.load import load_cells
from grn.cli import main as cli
from grn.config.files import change_config, dump_config, load_config
from grn.edges.edge_table import open_network_file, open_reference_file
from grn.features.evaluate.comparison import CAUTION
from grn.features.evaluate.scores import OF_SIGNS, SCORES, checked_edges, evaluate_on, make_universe
from grn.networks.baselines import pearson, ridge
from grn.runtime.errors import DataError

NETWORK = "source,target,weight\nA,B,3\nA,C,-2\nB,A,1\nZ,A,9\n"
REFERENCE = "Gene1,Gene2,Type\nA,B,+\nA,C,-\nB,C,+\n"
TRRUST = (
    "A\tB\tActivation\t1\n"
    "A\tC\tRepression\t2\n"
    "A\tC\tActivation\t3\n"
    "B\tC\tRepression\t4\n"
    "B\td\tUnknown\t5\n"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("network.csv").write_text(NETWORK)
    Path("reference.csv").write_text(REFERENCE)
    Path("trrust.tsv").write_text(TRRUST)
    return tmp_path


@pytest.fixture
def grn_evaluate(capsys):
    """Runs the command; its exit code, what it printed, and its errors."""

    def call(*arguments):
        code = cli.main(["evaluate", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def row(printed, name):
    return (
        next(line for line in printed.splitlines() if line.startswith(name))
        .removeprefix(name)
        .split()
    )


def test_the_table_follows_a_description_of_its_universe(grn_evaluate):
    code, printed, wrong = grn_evaluate("network.csv", "reference.csv")
    assert (code, wrong) == (0, "")
    assert "2 regulators x 3 genes, 4 pairs; K = 3 true edges" in printed.splitlines()[0]
    assert row(printed, "score") == ["network", "p"]
    assert row(printed, "early precision ")[0] == "0.6667"
    assert row(printed, "sign accuracy on true edges")[0] == "0.6667"
    assert row(printed, "share of the majority sign") == ["0.6667", "-"]
    assert CAUTION not in printed


def test_curated_signs_come_with_a_caution_and_conflicts_are_counted(grn_evaluate):
    _, printed, _ = grn_evaluate("network.csv", "trrust.tsv")
    assert CAUTION in printed.splitlines() and "both signs" in printed
    Path("unsigned.tsv").write_text("TF\ttarget\timportance\nA\tB\t1\nB\tD\t2\n")
    _, unsigned, _ = grn_evaluate("unsigned.tsv", "trrust.tsv")
    assert CAUTION not in unsigned and "sign accuracy" not in unsigned


def test_a_run_folder_is_compared_with_baselines_on_its_own_cells(grn_evaluate, tiny_run):
    code, printed, _ = grn_evaluate(tiny_run, tiny_run / "truth.csv", "--output", "found")
    assert code == 0 and row(printed, "score") == ["network", "p", "Pearson", "ridge"]
    cells, _ = load_cells(load_config(tiny_run / "config.yaml").data)
    matrix, truth = cells.multiplicity.toarray(), open_reference_file(tiny_run / "truth.csv").edges
    table = pd.read_csv("found/evaluation.csv", index_col="score")
    regulators = sorted(truth["source"].unique())
    networks = {
        "network": open_network_file(tiny_run).edges,
        "Pearson": pearson(matrix, cells.vocabulary, regulators),
        "ridge": ridge(matrix, cells.vocabulary, regulators),
    }
    universe = make_universe(truth, "reference", cells.vocabulary)
    for name, edges in networks.items():
        expected = evaluate_on(universe, checked_edges(edges), permutations=0).scores
        assert table[name].to_dict() == pytest.approx(expected, nan_ok=True)
    _, without, _ = grn_evaluate(tiny_run, tiny_run / "truth.csv", "--data", "none")
    assert row(without, "score") == ["network", "p"]


def test_other_cells_than_those_of_the_run_are_no_baselines_of_it(grn_evaluate, tiny_run):
    shutil.copytree(tiny_run, "run")
    changed = change_config(tiny_run / "config.yaml", {"data.simulated.seed": 9})
    Path("run/config.yaml").write_text(dump_config(changed))
    truth = tiny_run / "truth.csv"
    code, printed, _ = grn_evaluate("run", truth)
    assert code == 0 and row(printed, "score") == ["network", "p"] and "run/config.yaml" in printed
    assert grn_evaluate("run", truth, "--data", "run")[0] == 2
    with pytest.raises(DataError):
        grn.evaluate(grn.load("run"), str(truth), data=grn.load("run"), quiet=True)


@pytest.mark.parametrize("data", [[], ["--data", "none"]])
def test_the_universe_of_a_run_is_the_same_without_its_data(grn_evaluate, tiny_run, data):
    truth = pd.read_csv(tiny_run / "truth.csv")
    unmeasured = pd.DataFrame({"source": ["R1", "Z", "R1"], "target": ["Z", "R2", "Z"], "sign": 1})
    pd.concat([truth, unmeasured]).to_csv("truth.csv", index=False)
    _, printed, _ = grn_evaluate(tiny_run, "truth.csv", "--output", "with data")
    lines = printed.splitlines()
    assert f"K = {len(truth)} true edges" in lines[0]
    shutil.copytree(tiny_run, "run")
    Path("run/config.yaml").write_text(
        (tiny_run / "config.yaml").read_text().replace("'simulated:'", "gone.h5ad")
    )
    _, without, _ = grn_evaluate("run", "truth.csv", "--output", "without", *data)
    assert lines[0] in without.splitlines()
    written = [Path(name, "evaluation.txt").read_text() for name in ("with data", "without")]
    assert all("2 of the reference's" in each and lines[0] in each for each in written)


@pytest.fixture
def unsigned_run(tiny_run, tmp_path):
    """The folder of a run whose network has signs that mean nothing."""
    folder = tmp_path / "unsigned"
    shutil.copytree(tiny_run, folder)
    adata = anndata.read_h5ad(folder / "network.h5ad")
    adata.uns["grn"]["sign"] = "none: of a method that has none"
    adata.write_h5ad(folder / "network.h5ad")
    return folder


@pytest.mark.parametrize("name", ["", "edges.parquet", "network.h5ad"])
def test_signs_without_a_meaning_are_not_scored(grn_evaluate, unsigned_run, name):
    assert (open_network_file(unsigned_run).edges["weight"] < 0).any()
    code, printed, _ = grn_evaluate(
        unsigned_run / name, unsigned_run / "truth.csv", "--output", "found"
    )
    assert code == 0 and "Signs are not scored" in printed
    table = pd.read_csv("found/evaluation.csv", index_col="score")
    assert table.loc[list(OF_SIGNS), ["network", "p"]].isna().all(axis=None)
    assert table.loc["auprc", "network"] > 0
    if not name:
        assert table.loc["sign_accuracy", "Pearson"] > 0


def test_tables_and_a_figure_are_written_and_never_over_others(grn_evaluate, folder):
    assert grn_evaluate("network.csv", "reference.csv", "--output", "found")[0] == 0
    files = {path.name: path.read_bytes() for path in Path("found").iterdir()}
    assert set(files) == {"evaluation.csv", "evaluation.txt", "precision_recall.png"}
    table = pd.read_csv("found/evaluation.csv")
    assert list(table) == ["score", "network", "p"] and list(table["score"]) == list(SCORES)
    assert grn_evaluate("network.csv", "reference.csv", "--output", "found")[:2] == (2, "")
    assert files == {path.name: path.read_bytes() for path in Path("found").iterdir()}
    assert len(list(folder.iterdir())) == 4


# Cell types

TYPED = "source,target,weight,cell_type\nA,B,5,a\nA,C,4,a\nB,C,-1,a\nA,B,2,b\nB,C,-3,b\nA,C,1,b\n"
TYPED_REFERENCE = "source,target,sign,cell_type\nA,B,1,a\nA,C,1,a\nB,C,1,a\nA,B,1,b\nB,C,-1,b\n"


@pytest.fixture
def typed(folder):
    Path("typed.csv").write_text(TYPED)
    Path("types.csv").write_text(TYPED_REFERENCE)


@pytest.fixture
def typed_truth(tiny_run):
    """A truth of the tiny run's cells in which each type lacks some edges, and one edge changes its
    sign.
    """
    truth = pd.read_csv(tiny_run / "truth.csv")
    labels = list(open_network_file(tiny_run).read_types())
    parts = [
        truth[truth.index % len(labels) != number].assign(cell_type=label)
        for number, label in enumerate(labels)
    ]
    parts[0].loc[parts[0].index[-1], "sign"] *= -1
    pd.concat(parts).to_csv("typed_truth.csv", index=False)
    return labels


def test_a_reference_with_types_is_scored_type_by_type(grn_evaluate, typed):
    code, printed, wrong = grn_evaluate("typed.csv", "types.csv", "--output", "found")
    assert (code, wrong) == (0, "")
    assert "K = 3 true edges (2 +, 0 -, 1 of unknown sign)" in printed
    lines = printed[printed.index("Each cell type against its own edges") :].splitlines()
    assert lines[1].split("  ")[0] == "cell type" and lines[1].endswith(
        "specificity  changed signs"
    )
    # In b, AC is no edge of the type; BC and AB are ahead of it.
    assert [line.split() for line in lines[2:5]] == [
        ["a", "network", "3", "1", "1.333", "1.333", "0.6667", "-", "0"],
        ["b", "network", "2", "1", "2", "2", "1", "-", "1"],
        ["mean", "network", "2.5", "1", "1.667", "1.667", "0.8333", "-", "0.5"],
    ]
    table = pd.read_csv("found/evaluation_types.csv")
    assert table["cell_type"].tolist() == ["a", "b", "mean"] and table["auprc_ratio"].iloc[1] == 2
    assert table["changed_signs"].iloc[1] == 1 and table["specificity"].isna().all()


def test_types_of_a_run_stand_beside_baselines_on_their_own_cells(
    grn_evaluate, tiny_run, typed_truth
):
    code, _, wrong = grn_evaluate(tiny_run, "typed_truth.csv", "--output", "found")
    assert (code, wrong) == (0, "")
    table = pd.read_csv("found/evaluation_types.csv").set_index(["cell_type", "method"])
    assert len(table) == 3 * (len(typed_truth) + 1)
    assert table.xs("mean")["auprc"].to_dict() == pytest.approx(
        table.loc[typed_truth].groupby("method")["auprc"].mean().to_dict()
    )
    cells, _ = load_cells(load_config(tiny_run / "config.yaml").data)
    reference = open_reference_file("typed_truth.csv")
    regulators = sorted(reference.edges["source"].unique())
    for label in typed_truth:
        rows = cells.labels == cells.classes.index(label)
        own = pearson(cells.multiplicity[rows].toarray(), cells.vocabulary, regulators)
        networks = {"network": open_network_file(tiny_run).read_types()[label], "Pearson": own}
        for method, edges in networks.items():
            assert table.loc[(label, method), "sign_accuracy"] == sign_accuracy(
                edges, reference.by_type[label]
            )
    options = {"cell_type": typed_truth[1], "data": grn.load(tiny_run), "permutations": 0}
    alone = grn.evaluate(tiny_run, "typed_truth.csv", quiet=True, **options)
    of_type = table.loc[typed_truth[1], "auprc"].rename(index=str.lower)
    assert alone.loc["auprc", of_type.index].to_dict() == pytest.approx(of_type.to_dict())


def sign_accuracy(edges, truth):
    weights = {(edge.source, edge.target): edge.weight for edge in edges.itertuples()}
    right = [
        math.copysign(1, weights.get((e.source, e.target), 0) or -e.sign) == e.sign
        for e in truth.itertuples()
    ]
    return pytest.approx(sum(right) / len(right))


@pytest.mark.skipif("GRN_BENCHMARK_DATA" not in os.environ, reason="GRN_BENCHMARK_DATA is not set")
def test_sergio_s_published_numbers(grn_evaluate):
    """The baselines of the project's design: 990 pairs, 258 true edges; Pearson and ridge 0.54 and
    0.52.
    """
    data = Path(os.environ["GRN_BENCHMARK_DATA"])
    truth = data / "sergio_ds1_network.csv"
    open_reference_file(truth).edges.rename(columns={"sign": "weight"}).to_csv(
        "perfect.csv", index=False
    )
    _, printed, _ = grn_evaluate("perfect.csv", truth, "--data", data / "sergio_ds1.h5ad")
    assert (
        "990 pairs; K = 258 true edges (179 +, 79 -, 0 of unknown sign), density 0.2606." in printed
    )
    perfect, _, *baselines = map(float, row(printed, "AUPRC (average precision)"))
    assert perfect == 1 and baselines == pytest.approx([0.54, 0.52], abs=0.005)


def test_another_network_of_the_file_is_scored_by_its_key(tiny_run):
    """As a run, and as its file: total effects, whose signs have a meaning."""
    options = {"permutations": 0, "genes": "network", "quiet": True}
    truth, key, network = tiny_run / "truth.csv", "grn_total", grn.load(tiny_run).network
    total = network.varp[key].tocoo()
    ends = {"source": network.var_names[total.col], "target": network.var_names[total.row]}
    expected = grn.evaluate(
        pd.DataFrame(ends | {"weight": total.data}), truth, **options | {"genes": network.var_names}
    )
    for form in (tiny_run, tiny_run / "network.h5ad"):
        found = grn.evaluate(form, truth, key=key, **options)
        assert found["network"].to_dict() == pytest.approx(
            expected["network"].to_dict(), nan_ok=True
        )
        assert found.loc["sign_accuracy", "network"] >= 0
    for wrong in ({"key": "grn_layer7"}, {"key": key, "cell_type": "type 1"}):
        with pytest.raises(DataError):
            grn.evaluate(tiny_run, truth, **wrong, **options)
    with pytest.raises(DataError):
        grn.evaluate("network.csv", truth, key=key, **options)
