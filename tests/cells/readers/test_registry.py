"""data.path: what opens, and the sentence for what does not."""

import errno
import os
import re
import sys
import types
from pathlib import Path
from urllib.error import URLError

import h5py
import numpy as np
import pytest

from grn.cells.load import load_cells
from grn.cells.readers import registry
from grn.cells.readers.registry import open_source
from grn.cells.size import size_of_source
from grn.cli.exit_codes import explain
from grn.config.schema import DataConfig, SimulatedConfig
from grn.errors import DataError, UserError
from grn.io import atomic as files


def test_a_missing_file_names_the_nearest(adata, write, tmp_path):
    write(adata, "blood.h5ad")
    with pytest.raises(DataError, match=r"does not exist; did you mean .*blood\.h5ad\?"):
        open_source(DataConfig(path=str(tmp_path / "blod.h5ad")))


def test_an_unknown_format_names_the_known(tmp_path):
    (tmp_path / "cells.dat").write_text("")
    with pytest.raises(DataError, match=r"cells\.dat has no format that grn reads; use \.h5ad"):
        open_source(DataConfig(path=str(tmp_path / "cells.dat")))


@pytest.mark.parametrize(("name", "advice"), [("c.xlsx", "as .csv"), ("c.rds", "from R"), ("c.h5ad.gz", "unpack")])
def test_an_unread_format_says_how_to_convert_it(name, advice, tmp_path):
    (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=advice):
        open_source(DataConfig(path=str(tmp_path / name)))


def test_an_unknown_scanpy_set_names_the_known():
    with pytest.raises(DataError, match=r"scanpy:pbmc68k is not known.*scanpy:pbmc68k_reduced"):
        open_source(DataConfig(path="scanpy:pbmc68k"))


@pytest.mark.parametrize("kept", [0, 100, 3000])
@pytest.mark.parametrize("backed", [False, True])
def test_a_truncated_file_is_one_sentence(adata, write, tmp_path, kept, backed):
    whole = Path(write(adata)).read_bytes()
    assert len(whole) > 2 * kept
    (tmp_path / "cut.h5ad").write_bytes(whole[:kept])
    with pytest.raises(DataError, match=r"cut\.h5ad (cannot be read as \.h5ad|is empty; copy)") as caught:
        open_source(DataConfig(path=str(tmp_path / "cut.h5ad"), backed=backed))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "sentence_start"),
    [
        (MemoryError("Unable to allocate 9 TiB"), "memory ran out (Unable to allocate 9 TiB)"),
        (PermissionError(errno.EACCES, "Permission denied", "cells.h5ad"), "cells.h5ad: permission denied; "),
    ],
)
def test_what_the_machine_refuses_is_not_reported_as_damage(adata, write, monkeypatch, problem, sentence_start):
    """Wherever in the file it fails: AnnData adds to the exception what it was reading."""

    def refuse(*arguments, **options):
        raise problem

    path = write(adata)
    monkeypatch.setattr(h5py.Dataset, "__getitem__", refuse)
    with pytest.raises(type(problem)) as caught:
        open_source(DataConfig(path=path))
    code, sentence = explain(caught.value)
    assert code == 2 and sentence.startswith(sentence_start)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
@pytest.mark.parametrize("backed", [False, True])
def test_a_file_that_may_not_be_read_is_named(adata, write, backed):
    path = Path(write(adata))
    path.chmod(0)
    with pytest.raises(PermissionError) as caught:
        open_source(DataConfig(path=str(path), backed=backed))
    assert explain(caught.value)[1].startswith(f"{path}: permission denied; ")


def test_simulated_is_seeded_by_its_own_fields():
    one, same, other = (
        open_source(
            DataConfig(path="simulated:", simulated=SimulatedConfig(cells=20, genes=15, regulators=4, seed=seed))
        )
        for seed in (1, 1, 2)
    )
    assert (one.X != same.X).nnz == 0
    assert (one.X != other.X).nnz > 0


def test_pbmc3k_keeps_labelled_cells_in_the_order_of_the_counts(adata, monkeypatch):
    processed = adata[["cell7", "cell3", "cell20"]].copy()
    processed.obs["louvain"] = ["B", "NK", "T"]
    _stub_scanpy(monkeypatch, pbmc3k=lambda: adata, pbmc3k_processed=lambda: processed)
    cells = open_source(DataConfig(path="scanpy:pbmc3k"))
    assert list(cells.obs_names) == ["cell3", "cell7", "cell20"]
    assert list(cells.obs["louvain"]) == ["NK", "B", "T"]
    np.testing.assert_array_equal(cells.X.toarray(), adata[["cell3", "cell7", "cell20"]].X.toarray())


@pytest.mark.parametrize("problem", [URLError("no route to host"), ImportError("No module named 'certifi'")])
def test_pbmc3k_without_network_says_what_to_do_and_leaves_nothing(problem, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def offline():
        assert sys.modules["scanpy"].settings.verbosity == "error", "its own warning would stand before ours"
        (tmp_path / "data").mkdir(exist_ok=True)
        raise problem

    _stub_scanpy(monkeypatch, pbmc3k=offline)
    reason = str(getattr(problem, "reason", problem))
    with pytest.raises(DataError, match=rf"downloaded when it is first used.*{reason}.*pbmc68k_reduced"):
        open_source(DataConfig(path="scanpy:pbmc3k"))
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").touch()
    with pytest.raises(DataError):
        open_source(DataConfig(path="scanpy:pbmc3k"))
    assert (tmp_path / "data" / "mine.txt").exists()
    assert sys.modules["scanpy"].settings.verbosity == 1


def test_pipes_and_links_to_nowhere_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.h5ad")
    (tmp_path / "loop.h5ad").symlink_to("loop.h5ad")
    (tmp_path / "loop2.h5ad").touch()
    with pytest.raises(DataError, match="neither a file nor a folder but a pipe or device"):
        open_source(DataConfig(path=str(tmp_path / "pipe.h5ad")))
    with pytest.raises(DataError, match="a symbolic link that leads nowhere or to itself"):
        open_source(DataConfig(path=str(tmp_path / "loop.h5ad")))


def test_a_new_format_is_one_entry(adata, monkeypatch, tmp_path):
    monkeypatch.setitem(registry.READERS, ".mine", lambda path, config: adata)
    (tmp_path / "cells.mine").touch()
    assert open_source(DataConfig(path=str(tmp_path / "cells.mine"))) is adata


def _stub_scanpy(monkeypatch, **datasets):
    stub = types.ModuleType("scanpy")
    stub.datasets = types.SimpleNamespace(**datasets)
    stub.settings = types.SimpleNamespace(datasetdir="data", verbosity=1)
    monkeypatch.setitem(sys.modules, "scanpy", stub)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"path": "simulated:", "backed": True}, "only .h5ad files are read piece by piece, not simulated:; set"),
        ({"path": " "}, "data.path is empty; set data.path to a file"),
        ({"path": "https://example.org/cells.h5ad"}, "is an address, and grn reads files; download it first"),
    ],
)
def test_what_is_no_file_is_one_sentence(fields, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        open_source(DataConfig(**fields))


def test_a_file_without_names_of_genes_is_damaged(adata, write):
    path = write(adata)
    with h5py.File(path, "r+") as file:
        del file["var"]
    with pytest.raises(DataError, match="has no table var, which names the genes; it is damaged"):
        open_source(DataConfig(path=path))


@pytest.mark.parametrize("backed", [False, True])
def test_a_file_without_x_names_the_other_matrices(adata, write, backed):
    adata.layers["umi"] = adata.X
    adata.X = None
    config = DataConfig(path=write(adata), backed=backed)
    with pytest.raises(DataError, match=r"The AnnData has no X; set data\.counts to one of: layer:umi\."):
        load_cells(config)
    assert len(load_cells(config.model_copy(update={"counts": "layer:umi"}))[0]) == 40


def test_hdf5_files_are_read_apart_once(adata, write, monkeypatch):
    read = []
    monkeypatch.setattr(files, "_read_apart", lambda path, seconds: bool(read.append(path)) or True)
    config = DataConfig(path=write(adata), backed=True)
    size_of_source(config)
    open_source(config).file.close()
    load_cells(config)
    assert len(read) == (sys.platform == "linux")


def test_a_single_value_is_no_column(adata, write):
    """AnnData would repeat it for every cell."""
    path = write(adata)
    with h5py.File(path, "r+") as file:
        del file["obs/label"]
        file["obs/label"] = 3
    with pytest.raises(DataError, match="has a single value in /obs/label; it is damaged"):
        open_source(DataConfig(path=path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.filterwarnings("ignore:Writing zarr")
def test_a_pipe_in_a_zarr_folder_is_not_waited_for(adata, tmp_path):
    adata.write_zarr(tmp_path / "cells.zarr")
    os.mkfifo(tmp_path / "cells.zarr" / "pipe")
    with pytest.raises(DataError, match="holds pipe, which is no file; copy or write the folder again"):
        open_source(DataConfig(path=str(tmp_path / "cells.zarr")))
