"""`grn export`:
what the command writes is what grn.export writes, and cells are those of the run.
"""

from __future__ import annotations

import shutil

import pytest

import grn
from grn.cli.main import main
from grn.config.files import change_config, dump_config, load_config


def test_the_command_writes_what_the_function_writes(tiny_run, tmp_path, capsys):
    table = grn.network(tiny_run, cell_type="type 2")
    gene = table.loc[table["weight"] > 0, "target"].iloc[0]
    options = {
        "format": "csv",
        "cell_type": "type 2",
        "top_k": 1,
        "targets": [gene],
        "certain": False,
        "quiet": True,
    }
    grn.export(tiny_run, tmp_path / "one.csv", **options)
    assert capsys.readouterr().out == ""
    options = ["--cell-type", "type 2", "--top-k", "1", "--targets", f"{gene}, nowhere", "--all"]
    output = ["--format", "csv", "--output", str(tmp_path / "two.csv")]
    assert main(["export", str(tiny_run), *output, *options]) == 0
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()


@pytest.mark.parametrize(
    ("changed", "value"),
    [("simulated.seed", 1), ("multiplicity", "log1p"), ("label_key", None), ("test_fraction", 0.3)],
)
def test_cells_that_the_run_was_not_trained_on_are_refused(
    changed, value, tiny_run, tmp_path, capsys
):
    """Another seed of the simulation is what another file at the same path is: the same genes,
    other counts.
    """
    shutil.copytree(tiny_run, tmp_path / "run")
    config = load_config(tiny_run / "config.yaml")
    (tmp_path / "run" / "config.yaml").write_text(
        dump_config(change_config(config, {f"data.{changed}": value}))
    )
    with pytest.raises(grn.errors.DataError, match="are not those that"):
        grn.read_network(tmp_path / "run", layer=1)
    assert main(["compare", str(tmp_path / "run"), "--by", "cell_type"]) == 2
    assert "are not those that" in " ".join(capsys.readouterr().err.split())
