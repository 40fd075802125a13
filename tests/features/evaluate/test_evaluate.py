"""`grn.evaluate`: what `grn evaluate` prints, as a table."""

from __future__ import annotations

import pandas as pd
import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.cli.main import main
from grn.config.schema import Config, DataConfig
from grn.features.evaluate.scores import SCORES
from grn.runtime.errors import ConfigError, DataError

NETWORK = pd.DataFrame(
    {
        "source": ["A", "A", "B", "Z"],
        "target": ["B", "C", "A", "A"],
        "weight": [3.0, -2.0, 1.0, 9.0],
    }
)
TRUTH = pd.DataFrame({"Gene1": ["A", "A", "B"], "Gene2": ["B", "C", "C"], "Type": ["+", "-", "+"]})


@pytest.fixture
def run(tiny_run):
    return grn.load(tiny_run)


@pytest.fixture
def adata(run):
    return simulate(run.config.data.simulated)


def evaluate(network, reference, **keywords):
    return grn.evaluate(network, reference, **{"permutations": 20, "quiet": True, **keywords})


def test_tables_in_memory_are_judged_as_their_files(tmp_path):
    NETWORK.to_csv(tmp_path / "network.csv", index=False)
    TRUTH.to_csv(tmp_path / "truth.csv", index=False)
    found = evaluate(NETWORK, TRUTH)
    assert found.index.tolist() == list(SCORES) and found.index.name == "score"
    assert found.columns.tolist() == ["network", "p"]
    assert found.loc["sign_accuracy", "network"] == pytest.approx(2 / 3)
    pd.testing.assert_frame_equal(
        found, evaluate(tmp_path / "network.csv", str(tmp_path / "truth.csv"))
    )


def test_a_run_with_its_cells_is_judged_as_on_the_command_line(run, adata, tmp_path):
    truth, output = run.folder / "truth.csv", tmp_path / "found"
    assert main(["evaluate", str(run.folder), str(truth), "--output", str(output)]) == 0
    expected = pd.read_csv(output / "evaluation.csv", index_col="score").rename(columns=str.lower)
    assert expected.columns.tolist() == ["network", "p", "pearson", "ridge"]
    for data in (run, run.config, adata, str(run.folder)):
        pd.testing.assert_frame_equal(
            evaluate(run, truth, data=data, permutations=1000),
            expected,
            check_exact=False,
            rtol=1e-12,
        )
    pd.testing.assert_frame_equal(
        evaluate(run.network, truth, data=run)[["network"]], expected[["network"]]
    )
    assert evaluate(run, truth).columns.tolist() == ["network", "p"]


def test_cells_in_memory_give_baselines_to_any_network(run, adata):
    truth = pd.read_csv(run.folder / "truth.csv")
    found = evaluate(grn.read_network(run, certain=False), truth, data=adata, permutations=0)
    cells = Config(
        data=DataConfig(path="simulated:", genes="all", simulated=run.config.data.simulated)
    )
    expected = evaluate(grn.read_network(run, certain=False), truth, data=cells, permutations=0)
    pd.testing.assert_frame_equal(found, expected)
    assert found["p"].isna().all() and found.loc["auroc", ["pearson", "ridge"]].notna().all()


def test_the_universe_is_chosen_by_names(tmp_path):
    (tmp_path / "list.txt").write_text("A\nB\n")
    for names in (["A", "B"], str(tmp_path / "list.txt"), pd.Index(["A", "B"])):
        found = evaluate(NETWORK, TRUTH, genes=names)
        assert "1 regulators x 2 genes" in found.attrs["notes"][0]
    assert "3 regulators x 3 genes" in evaluate(NETWORK, TRUTH, regulators="all").attrs["notes"][0]
    assert "1 regulators x 3 genes" in evaluate(NETWORK, TRUTH, regulators=["A"]).attrs["notes"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"network": NETWORK.rename(columns={"weight": "w"})},
        {"network": NETWORK.assign(weight=float("nan"))},
        {"reference": TRUTH.drop(columns="Gene2")},
        {"network": NETWORK.replace({"A": "a", "B": "b", "C": "c", "Z": "z"})},
        {"genes": "data"},
        {"genes": "nowhere.txt"},
        {"cell_type": "x"},
    ],
)
def test_what_cannot_be_used_is_one_sentence(change):
    with pytest.raises((DataError, ConfigError)) as caught:
        evaluate(**{"network": NETWORK, "reference": TRUTH, **change})
    assert "\n" not in str(caught.value)
