"""A run as an object: from its folder, kept, and printed."""

from __future__ import annotations

import gc
import shutil
import tempfile
from pathlib import Path

import pandas as pd
import pytest

import grn
from grn.edges.signed_network import signed_network
from grn.runtime.errors import DataError, RunFolderError
from grn.training.run import train


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.fixture
def run(make_config, temporary):
    return grn.train(make_config(), quiet=True)


def test_a_loaded_run_has_what_training_found(make_config, tmp_path):
    found = train(make_config(), tmp_path / "run", say=lambda line: None)
    run = grn.load(tmp_path / "run")
    assert run.metrics == found.metrics
    pd.testing.assert_frame_equal(run.edges, found.edges)
    pd.testing.assert_frame_equal(run.confusion, found.confusion, check_dtype=False)
    assert run.config == make_config() and run.cell_types == found.trained.classes
    assert (
        run.network.varp["grn"].shape == (16, 16)
        and run.network.uns["grn"]["model_hash"] == found.trained.hash
    )
    assert {"step", "train/loss", "validation/loss", "test/error", "test/ridge_error"} <= set(
        run.history
    )
    assert run.edges is run.edges, "read once"


def test_a_saved_run_is_whole_and_its_temporary_folder_is_gone(run, temporary, tmp_path, tiny_run):
    edges = run.edges
    assert run.save(tmp_path / "deep" / "kept") == run.folder == tmp_path / "deep" / "kept"
    assert not list(temporary.iterdir())
    # a complete run needs none
    names = {path.name for path in tiny_run.iterdir()} - {"checkpoints"}
    assert {path.name for path in run.folder.iterdir()} == names | {"report.html", "certain.csv"}
    assert "<title>kept" in (run.folder / "report.html").read_text("utf-8").replace("\n", "")
    again = grn.load(run.folder)
    pd.testing.assert_frame_equal(again.edges, edges)
    assert again.metrics == run.metrics
    del run, again
    gc.collect()
    assert (tmp_path / "deep" / "kept" / "model" / "card.json").is_file()


@pytest.mark.parametrize("there", ["an empty folder", "a folder", "a file", "a link to nothing"])
def test_nothing_is_saved_over(there, tiny_run, tmp_path):
    target = tmp_path / "target"
    if "folder" in there:
        target.mkdir()
    if there == "a folder":
        (target / "precious").touch()
    if there == "a file":
        target.write_text("precious")
    if there == "a link to nothing":
        target.symlink_to(tmp_path / "nothing")
    with pytest.raises(RunFolderError, match="target already exists"):
        grn.load(tiny_run).save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_run_is_not_saved_into_itself(tiny_run, tmp_path):
    run = grn.load(shutil.copytree(tiny_run, tmp_path / "run"))
    with pytest.raises(RunFolderError):
        run.save(run.folder / "deep" / "copy")
    assert (
        run.save(tmp_path / "x/../kept") == tmp_path / "kept"
        and (tmp_path / "run/edges.parquet").is_file()
    )


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_run_that_cannot_be_saved_whole_is_not_saved(
    problem, run, temporary, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(grn.Run, "_write_report", fail)
        with pytest.raises((RunFolderError, KeyboardInterrupt)):
            run.save(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]
    assert run.folder.is_dir() and run.folder.is_relative_to(temporary)
    run.save(tmp_path / "kept")
    assert grn.load(tmp_path / "kept").metrics == run.metrics


@pytest.mark.parametrize("inside", ["model", ""])
def test_a_run_is_found_by_its_model_folder_too(inside, tiny_run):
    assert grn.load(str(tiny_run / inside)).folder.samefile(tiny_run)


def test_a_model_that_was_copied_out_of_its_run_has_cell_types_and_no_tables(tiny_run, tmp_path):
    shutil.copytree(tiny_run / "model", tmp_path / "alone")
    run = grn.load(tmp_path / "alone")
    assert run.cell_types == ("type 1", "type 2")
    for name in ("edges", "network", "config", "metrics"):
        with pytest.raises(RunFolderError):
            getattr(run, name)


@pytest.mark.parametrize(
    ("missing", "word"),
    [("", "nowhere"), ("config.yaml", "config.yaml"), ("edges.parquet", "resume")],
)
def test_what_is_no_run_is_refused(missing, word, tiny_run, tmp_path):
    folder = tmp_path / "run" if missing else tmp_path / "nowhere"
    if missing:
        shutil.copytree(tiny_run, folder)
        (folder / missing).unlink()
    with pytest.raises(RunFolderError, match=word):
        grn.load(folder)


def test_every_plot_draws_a_run(tiny_run):
    from grn.plots.style import whole

    run = grn.load(tiny_run)
    curves = {"ours": pd.DataFrame({"recall": [0.5, 1.0], "precision": [1.0, 0.5]})}
    active = pd.DataFrame(
        {"cell_type": ["B"], "regulator": ["A"], "effect": [1.0], "low": [0.5], "high": [1.5]}
    )
    arguments = {
        "activity_heatmap": (active.assign(q_value=0.01),),
        "attention_layers": (run.network,),
        "cell_type_genes": (
            pd.DataFrame({"cell_type": ["B", "B"], "gene": ["x", "y"], "effect": [1.0, -0.5]}),
        ),
        "clustered_heatmap": (run,),
        "confusion_matrix": (run.confusion,),
        "network_graph": (run,),
        "perturbation_volcano": (grn.perturb(run, knock_out=run.edges["source"][0]),),
        "precision_recall_curves": (curves, 0.1),
        "training_curves": (run.history,),
    }
    assert set(arguments) == set(grn.plots.__all__)
    for name, values in arguments.items():
        picture = getattr(grn.plots, name)(*values)
        assert whole(picture).axes


TABLES = {
    "edges.parquet": lambda run: run.edges,
    "metrics.csv": lambda run: run.metrics,
    "confusion.csv": lambda run: run.confusion,
    "edges_by_type.parquet": lambda run: grn.network(run, cell_type="type 1"),
    "network.h5ad": lambda run: run.network,
}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00 PAR1"], ids=["empty", "bytes"])
@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_table_is_named(name, content, tiny_run, tmp_path):
    folder = Path(shutil.copytree(tiny_run, tmp_path / "copy"))
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        TABLES[name](grn.load(folder))


def test_the_networks_of_some_types_are_theirs(tiny_run):
    network = grn.load(tiny_run).network
    whole = signed_network(network).by_type
    for name in network.obs_names:
        alone = signed_network(network[[name]]).by_type
        assert list(alone) == [name] and (alone[name] != whole[name]).nnz == 0
