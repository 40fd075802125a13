"""`grn.evaluate`: what `grn evaluate` prints, as a table."""

from __future__ import annotations

import pandas as pd
import pytest

import grn
from grn.cli.main import main
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


def test_the_universe_is_chosen_by_names(tmp_path):
    (tmp_path / "list.txt").write_text("A\nB\n")
    listed = {"genes": str(tmp_path / "list.txt")}, {"genes": ["A", "B"]}
    for names, said in (
        *((each, "1 regulators x 2 genes") for each in listed),
        ({"regulators": "all"}, "3 regulators x 3 genes"),
        ({"regulators": ["A"]}, "1 regulators x 3 genes"),
    ):
        assert said in evaluate(NETWORK, TRUTH, **names).attrs["notes"][0]


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
def test_what_cannot_be_used_is_refused(change):
    with pytest.raises((DataError, ConfigError)):
        evaluate(**{"network": NETWORK, "reference": TRUTH, **change})
