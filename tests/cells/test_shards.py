"""Many files of cells as one: every cell with its counts, genes by name, checked."""

import numpy as np
import pytest
from anndata import read_h5ad, read_zarr

import grn
from grn.cells.simulated.cells import simulate
from grn.cli.main import main
from grn.config.schema import Simulation
from grn.runtime import in_pieces
from grn.runtime.h5ad import write_anndata


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three files, in other formats, with their counts elsewhere, other orders of genes and the
    same names of cells.
    """
    monkeypatch.chdir(tmp_path)
    whole = simulate(Simulation(cells=1300, genes=40, regulators=8, cell_types=2, seed=3))
    whole.uns.clear()
    whole.var["symbol"] = [f"S{number}" for number in range(40)]
    write_anndata(tmp_path / "a.h5ad", whole[:500].copy())
    second = whole[500:1000, ::-1][:, :36].copy()  # without the first 4 genes
    second.layers["counts"], second.obs["donor"], second.obs["treated"] = second.X.copy(), "d", True
    second.X = np.log1p(second.X.toarray())
    write_anndata(tmp_path / "b.h5ad", second)
    third = whole[1000:].copy()
    third.obs_names, third.obs["donor"] = whole.obs_names[:300], 3
    third.write_zarr(tmp_path / "c.zarr")
    return whole


@pytest.mark.parametrize(("name", "read"), [("all.zarr", read_zarr), ("all.h5ad", read_h5ad)])
def test_all_cells_have_their_counts_of_the_genes_that_all_files_have(
    files, name, read, monkeypatch
):
    """A column of obs that holds numbers in one file and texts in another holds texts."""
    monkeypatch.setattr("grn.cells.shards.PIECE", 128)
    monkeypatch.setattr(in_pieces, "CHUNK", 64)
    monkeypatch.setattr(in_pieces, "SHARD", 1024)
    assert main(["data", "shard", "a.h5ad", "b.h5ad", "c.zarr", "--output", name]) == 0
    found = read(name)
    assert list(found.var_names) == list(files.var_names[4:])
    assert list(found.var["symbol"]) == list(files.var["symbol"][4:])
    np.testing.assert_array_equal(found.X.toarray(), files.X[:, 4:].toarray())
    assert found.obs_names.is_unique
    types = (each.obs["cell_type"].astype(str).tolist() for each in (found, files))
    assert next(types) == next(types)
    assert found.obs["file"].value_counts().to_dict() == {"a": 500, "b": 500, "c": 300}
    assert found.obs["donor"].value_counts().to_dict() == {"d": 500, "3": 300}
    assert found.obs["treated"].sum() == 500 and found.obs["treated"].isna().sum() == 800
    fields = {"data.sample": 1000, "trainer.max_steps": 3, "model.members": 2}
    options = {"label": "cell_type", "regulators": list(found.var_names[:3]), "quiet": True}
    run = grn.train(name, **options, set=fields | {"network.false_discovery": False})
    assert "Training reads" in (run.folder / "log.txt").read_text()
    assert main(["data", "shard", "a.h5ad", "--output", name]) == 2, "nothing is overwritten"


def test_what_cannot_be_joined_leaves_nothing(files, tmp_path, capsys):
    other = read_h5ad("a.h5ad")
    other.var_names = [f"ENSG{number:011}" for number in range(40)]
    write_anndata(tmp_path / "ids.h5ad", other)
    other.X = other.X * 0.5
    write_anndata(tmp_path / "halves.h5ad", other)
    of_path = read_h5ad("a.h5ad")
    of_path.obs["batch/day"] = 1
    write_anndata(tmp_path / "path.h5ad", of_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    refused = {
        "path.h5ad": "'batch/day'",
        "ids.h5ad": "have 0 genes by the same names",
        "halves.h5ad": "halves.h5ad does not hold counts",
    }
    refused |= {"no.h5ad": "no.h5ad does not exist", "a.h5ad": "twice"}
    for second, sentence in refused.items():
        assert main(["data", "shard", "a.h5ad", second, "--output", "all.zarr"]) == 2
        assert sentence in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
