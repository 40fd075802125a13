"""`grn init`: a configuration that trains as it is, with what was found in the cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData, read_h5ad

from grn.cli import main as cli
from grn.config.files import load_config


@pytest.fixture
def cells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts = np.random.default_rng(0).poisson(1.0, (60, 5)).astype(np.float32)
    ids = [f"ENSG0000000000{gene}" for gene in range(5)]
    var = pd.DataFrame({"feature_name": list("ABCDE")}, index=ids)
    obs = pd.DataFrame(
        {"donor": ["x", "y"] * 30, "cell_type": ["B", "T", "NK"] * 20, "age": range(60)}
    )
    obs.index = obs.index.map("c{}".format)
    adata = AnnData(np.log1p(counts / 3), obs=obs, var=var, layers={"umi": counts})
    adata.write_h5ad(tmp_path / "cells.h5ad")
    return tmp_path


def test_what_is_found_is_written_and_said(cells, capsys):
    assert cli.main(["init", "cells.h5ad"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for found in (
        "60 cells x 5 genes",
        "in layer:umi",
        "column 'feature_name' of var",
        "'cell_type' of obs",
        "'donor'",
    ):
        assert found in printed
    config = load_config("cells.yaml")
    data = config.data
    assert (data.path, data.counts, data.gene_key, data.label_key) == (
        "cells.h5ad",
        "layer:umi",
        "feature_name",
        "cell_type",
    )
    defaults = load_config("own_data.yaml", ["data.path=cells.h5ad"])
    changed = {"counts": "layer:umi", "gene_key": "feature_name", "label_key": "cell_type"}
    assert config == defaults.model_copy(update={"data": defaults.data.model_copy(update=changed)})


@pytest.mark.parametrize("column", ["seurat_annotations", "celltype_l1", "Author_Cell_Type"])
def test_cell_types_are_found_under_the_names_that_others_give_them(column, cells, capsys):
    adata = read_h5ad(cells / "cells.h5ad")
    adata.obs = adata.obs.rename(columns={"cell_type": column})
    adata.write_h5ad(cells / "cells.h5ad")
    assert cli.main(["init", "cells.h5ad"]) == 0
    assert load_config("cells.yaml").data.label_key == column, (
        "and not the donor, which is text as well"
    )


def test_nothing_is_overwritten_and_wrong_cells_leave_nothing(cells, capsys):
    (cells / "mine.yaml").write_text("mine")
    assert cli.main(["init", "cells.h5ad", "--output", "mine.yaml"]) == 2
    assert "mine.yaml" in capsys.readouterr().err
    assert cli.main(["init", "nowhere.h5ad"]) == 2
    assert sorted(path.name for path in cells.iterdir()) == ["cells.h5ad", "mine.yaml"]


def test_names_tell_the_orientation_of_a_text_file_or_the_user_is_asked(cells, capsys):
    lines = [f"{cell},{cell % 3}\n" for cell in range(9)]
    (cells / "m.csv").write_text(
        "cell,A,B\n" + "".join(f"{'ACGT'[n % 4] * 14}-{n},{line}" for n, line in enumerate(lines))
    )
    assert cli.main(["init", "m.csv"]) == 0
    assert load_config("m.yaml").data.orientation == "cells_by_genes"
    (cells / "n.csv").write_text(
        "cell,A,B\n" + "".join(f"c{n},{line}" for n, line in enumerate(lines))
    )
    assert cli.main(["init", "n.csv"]) == 2
    assert "grn train n.csv --orientation cells_by_genes" in " ".join(
        capsys.readouterr().err.split()
    )
    (cells / "twice.csv").write_text((cells / "m.csv").read_text() + f"{'A' * 14}-0,1,1\n")
    assert cli.main(["init", "twice.csv"]) == 2
    assert "it has 2 cells called" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda adata: setattr(adata, "var_names", ["A", "A", "B", "C", "D"]), "'A'"),
        (lambda adata: adata.layers.clear(), "data.values"),
    ],
)
def test_what_training_would_refuse_is_said(change, sentence, cells, capsys):
    adata = read_h5ad(cells / "cells.h5ad")
    adata.X = adata.layers["umi"] + 0.25
    change(adata)
    adata.write_h5ad(cells / "cells.h5ad")
    assert cli.main(["init", "cells.h5ad"]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_regulators_by_name_are_an_option_of_train(cells, monkeypatch, tmp_path):
    from grn.training import run as training

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tfs.txt").write_text("A\n")
    seen = {}
    monkeypatch.setattr(training, "train", lambda config, *_, **options: seen.update(config=config))
    for given, regulators in {
        "A,B": ["A", "B"],
        "[A, B]": ["A", "B"],
        "tfs.txt": "tfs.txt",
    }.items():
        assert cli.main(["train", "cells.h5ad", "--label", "cell_type", "--regulators", given]) == 0
        data = seen["config"].data
        assert (data.path, data.label_key, data.regulators) == (
            "cells.h5ad",
            "cell_type",
            regulators,
        )
