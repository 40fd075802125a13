"""`grn network`: the edges of cells, printed with the certain ones first, and written."""

import pandas as pd

import grn
from grn.cli import main as cli


def test_the_network_of_cells_is_that_of_python(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(
        'data: {path: "simulated:", simulated: {cells: 300, genes: 20, regulators: 4, cell_types: '
        "2}}\n"
        "model: {members: 2}\ntrainer: {max_steps: 20}\n"
    )
    output = tmp_path / "edges.csv"
    assert (
        cli.main(
            [
                "network",
                str(config),
                "--label",
                "cell_type",
                "--regulators",
                "R1,R2,R3,R4",
                "--output",
                str(output),
            ]
        )
        == 0
    )
    expected = grn.network(
        config, label="cell_type", regulators=["R1", "R2", "R3", "R4"], quiet=True
    )
    written = pd.read_csv(output, keep_default_na=False)  # no programme is an empty text
    pd.testing.assert_frame_equal(written, expected, rtol=1e-5, check_dtype=False)
    assert cli.main(["network", str(config), "--output", str(output)]) == 2, (
        "files are never replaced"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "tiny.yaml"], (
        "no run folder"
    )
