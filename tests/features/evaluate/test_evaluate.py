"""`grn.evaluate`: networks of every form against a reference, beside Pearson and ridge."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest

import grn
from grn.cells.load import load_cells
from grn.config.files import change_config, dump_config
from grn.features.evaluate.comparison import CAUTION
from grn.features.evaluate.scores import OF_SIGNS, SCORES, checked_edges, evaluate_on, make_universe
from grn.networks.baselines import pearson, ridge
from grn.runtime.errors import ConfigError, DataError

NETWORK = pd.DataFrame(
    [("A", "B", 3.0), ("A", "C", -2.0), ("B", "A", 1.0), ("Z", "A", 9.0)],
    columns=["source", "target", "weight"],
)
TRUTH = pd.DataFrame({"Gene1": ["A", "A", "B"], "Gene2": ["B", "C", "C"], "Type": ["+", "-", "+"]})


def evaluate(network, reference, **options):
    return grn.evaluate(network, reference, **{"permutations": 0, "quiet": True} | options)


@pytest.fixture
def truth(run):
    return pd.read_csv(run.folder / "truth.csv")


def test_tables_are_judged_as_their_files(tmp_path):
    NETWORK.to_csv(tmp_path / "network.csv", index=False)
    TRUTH.to_csv(tmp_path / "truth.csv", index=False)
    found = evaluate(NETWORK, TRUTH)
    assert found.index.tolist() == list(SCORES) and found.columns.tolist() == ["network", "p"]
    assert found.loc["sign_accuracy", "network"] == pytest.approx(2 / 3)
    of_files = evaluate(tmp_path / "network.csv", str(tmp_path / "truth.csv"))
    pd.testing.assert_frame_equal(found, of_files)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"genes": ["A", "B"]}, "1 regulators x 2 genes"),
        ({"genes": "list.txt"}, "1 regulators x 2 genes"),
        ({"regulators": "all"}, "3 regulators x 3 genes"),
        ({"regulators": ["A"]}, "1 regulators x 3 genes"),
    ],
)
def test_the_universe_is_chosen_by_names(names, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("A\nB\n")
    assert said in evaluate(NETWORK, TRUTH, **names).attrs["notes"][0]


def test_curated_signs_come_with_a_caution(tmp_path):
    pairs = ["A\tB\tActivation\t1", "A\tC\tRepression\t2", "A\tC\tActivation\t3"]
    (tmp_path / "trrust.tsv").write_text("\n".join([*pairs, "B\tC\tRepression\t4\n"]))
    notes = evaluate(NETWORK, tmp_path / "trrust.tsv").attrs["notes"]
    assert CAUTION in notes and any("both signs" in line for line in notes)
    unsigned = NETWORK.assign(weight=NETWORK["weight"].abs())
    assert CAUTION not in evaluate(unsigned, tmp_path / "trrust.tsv").attrs["notes"]


def test_a_run_stands_beside_baselines_on_its_own_cells(run, adata, truth):
    cells, _ = load_cells(run.config.data)
    universe = make_universe(truth, "reference", cells.vocabulary)
    regulators = sorted(truth["source"].unique())
    networks = {"network": run.edges}
    for name, method in {"pearson": pearson, "ridge": ridge}.items():
        networks[name] = method(cells.multiplicity.toarray(), cells.vocabulary, regulators)
    for data in (run, run.config, adata, str(run.folder)):
        found = evaluate(run, truth, data=data)
        assert found.columns.tolist() == ["network", "p", "pearson", "ridge"]
        for name, edges in networks.items():
            expected = evaluate_on(universe, checked_edges(edges), permutations=0).scores
            assert found[name].to_dict() == pytest.approx(expected, nan_ok=True)


def test_without_its_cells_a_run_has_the_same_universe(run, truth):
    unmeasured = pd.DataFrame({"source": ["R1", "Z"], "target": ["Z", "R2"], "sign": 1})
    more = pd.concat([truth, unmeasured])
    notes, without = (evaluate(run, more, data=data).attrs["notes"] for data in (run, None))
    assert f"K = {len(truth)} true edges" in notes[0] == without[0]
    assert any("2 of the reference's" in line for line in notes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", "gone.h5ad"),
        ("simulated.seed", 9),
        ("multiplicity", "log1p"),
        ("label_key", None),
        ("test_fraction", 0.3),
    ],
)
def test_other_cells_than_those_of_the_run_are_no_baselines_of_it(
    field, value, run, truth, tmp_path, command
):
    """Another seed of the simulation is what another file at the same path is: the same genes,
    other counts.
    """
    other = shutil.copytree(run.folder, tmp_path / "run")
    changed = change_config(run.config, {f"data.{field}": value})
    (other / "config.yaml").write_text(dump_config(changed))
    with pytest.raises(DataError):
        evaluate(grn.load(other), truth, data=grn.load(other))
    code, printed, _ = command("evaluate", other, run.folder / "truth.csv")
    assert code == 0 and "Pearson and ridge are left out" in printed


@pytest.mark.parametrize("name", ["", "edges.parquet", "network.h5ad"])
def test_signs_without_a_meaning_are_not_scored(run, truth, tmp_path, name):
    folder = shutil.copytree(run.folder, tmp_path / "unsigned")
    network = run.network
    network.uns["grn"]["sign"] = "none: of a method that has none"
    network.write_h5ad(folder / "network.h5ad")
    found = evaluate(folder / name, truth, data=run)
    assert found.loc[list(OF_SIGNS), "network"].isna().all()
    assert (found.loc[["auprc", "sign_accuracy"], "pearson"] > 0).all()


def test_a_reference_with_types_is_scored_type_by_type():
    """In b, AC is no edge of the type; BC and AB are ahead of it."""
    network = pd.DataFrame(
        {"source": [*"AAB"] * 2, "target": [*"BCC"] * 2, "cell_type": [*"aaabbb"]}
    )
    network["weight"] = [5.0, 4.0, -1.0, 2.0, 1.0, -3.0]
    reference = network.drop(index=4).assign(sign=[1, 1, 1, 1, -1]).drop(columns="weight")
    found = evaluate(network, reference)
    assert "K = 3 true edges (2 +, 0 -, 1 of unknown sign)" in found.attrs["notes"][0]
    of_types = pd.DataFrame(found.attrs["cell_types"]).set_index("cell_type")
    assert of_types["auprc_ratio"].tolist() == pytest.approx([4 / 3, 2, 5 / 3])
    assert of_types["sign_accuracy"].tolist() == pytest.approx([2 / 3, 1, 5 / 6])
    assert of_types["changed_signs"].tolist() == [0, 1, 0.5]


def test_types_of_a_run_stand_beside_baselines_on_their_own_cells(run, truth):
    """Each type lacks some of the edges."""
    parts = [
        truth[truth.index % 2 != number].assign(cell_type=label)
        for number, label in enumerate(run.cell_types)
    ]
    typed = pd.concat(parts)
    found = pd.DataFrame(evaluate(run, typed, data=run).attrs["cell_types"])
    auprc = found.set_index(["cell_type", "method"])["auprc"].unstack()
    pd.testing.assert_series_equal(auprc.loc["mean"], auprc.drop("mean").mean(), check_names=False)
    for label in run.cell_types:
        alone = evaluate(run, typed, cell_type=label, data=run).loc["auprc"].drop("p")
        expected = auprc.loc[label].rename(index=str.lower)
        assert alone.to_dict() == pytest.approx(expected.to_dict())
    assert auprc.drop("mean").nunique().min() == 2


def test_another_network_of_the_file_is_scored_by_its_key(run, truth):
    """Total effects, whose signs have a meaning."""
    total = run.network.varp["grn_total"].tocoo()
    names = run.network.var_names
    edges = pd.DataFrame(
        {"source": names[total.col], "target": names[total.row], "weight": total.data}
    )
    expected = evaluate(edges, truth, genes=names)["network"]
    for form in (run, run.folder, run.folder / "network.h5ad"):
        found = evaluate(form, truth, key="grn_total")
        pd.testing.assert_series_equal(found["network"], expected)
    for other in ({"key": "grn_layer7"}, {"key": "grn_total", "cell_type": "type 1"}):
        with pytest.raises(DataError):
            evaluate(run, truth, **other)
    with pytest.raises(DataError, match="A table holds one network"):
        evaluate(edges, truth, key="grn_total")


@pytest.mark.parametrize(
    "change",
    [
        {"network": NETWORK.rename(columns={"weight": "w"})},
        {"network": NETWORK.assign(weight=float("nan"))},
        {"network": NETWORK.assign(weight=0.0)},
        {"network": NETWORK.replace({"A": "a", "B": "b", "C": "c", "Z": "z"})},
        {"reference": TRUTH.drop(columns="Gene2")},
        {"genes": "data"},
        {"cell_type": "x"},
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused(change):
    with pytest.raises((DataError, ConfigError)):
        evaluate(**{"network": NETWORK, "reference": TRUTH, **change})
