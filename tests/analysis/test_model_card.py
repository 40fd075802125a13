"""A model for the Hugging Face Hub: it loads and predicts as the run does, and its card says what it is."""

from __future__ import annotations

import numpy as np
import yaml

import grn
from grn.cells.simulated import simulate
from grn.cli.main import main


def test_the_exported_folder_loads_and_predicts_as_the_run_and_has_a_card(tiny_run, tmp_path, capsys):
    folder = tmp_path / "blood"
    assert main(["export", str(tiny_run), "--format", "huggingface", "--output", str(folder)]) == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "card.json", "config.yaml", "labels.json", "model.safetensors", "vocabulary.txt"]
    run = grn.load(tiny_run)
    adata = simulate(run.config.data.simulated)
    own, exported = (grn.predict(adata, each, copy=True, quiet=True) for each in (run, grn.load(folder)))
    np.testing.assert_array_equal(own.obsm["grn_probabilities"], exported.obsm["grn_probabilities"])

    head, text = (folder / "README.md").read_text().split("---\n", 2)[1:]
    assert yaml.safe_load(head)["library_name"] == "grn"
    assert f"| accuracy of the cell types | {run.metrics['accuracy']:.3f} |" in text
    assert all(f"- {name}\n" in text for name in run.cell_types) and own.uns["grn"]["model_hash"] in text
    assert main(["export", str(tiny_run), "--format", "huggingface", "--output", str(folder)]) == 2
    command = ["export", str(tiny_run), "--format", "huggingface", "--output", str(tmp_path / "b"), "--top-k", "3"]
    assert main(command) == 2 and not (tmp_path / "b").exists()
    assert "--top-k" in capsys.readouterr().err
