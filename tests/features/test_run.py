"""A run as an object: from its folder, kept, moved, damaged and drawn."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile

import pandas as pd
import pytest

import grn
from grn.edges.signed_network import signed_network
from grn.runtime.errors import DataError, RunFolderError, UserError
from grn.training.run import train


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.fixture
def unkept(make_config, temporary):
    """A run in a temporary folder."""
    return grn.train(make_config())


@pytest.fixture
def copy(tiny_run, tmp_path):
    """The folder of a run that a test may damage."""
    return shutil.copytree(tiny_run, tmp_path / "first")


def test_a_loaded_run_has_what_training_found(make_config, tmp_path):
    found = train(make_config(), tmp_path / "run", say=lambda line: None)
    run = grn.load(tmp_path / "run")
    assert run.metrics == found.metrics and run.cell_types == found.trained.classes
    pd.testing.assert_frame_equal(run.edges, found.edges)
    pd.testing.assert_frame_equal(run.confusion, found.confusion, check_dtype=False)
    assert run.config == make_config()
    assert run.network.uns["grn"]["model_hash"] == found.trained.hash
    assert {"step", "train/loss", "validation/loss", "test/error"} <= set(run.history)


def test_a_saved_run_is_whole_and_its_temporary_folder_is_gone(
    unkept, temporary, tmp_path, tiny_run
):
    edges, target = unkept.edges, tmp_path / "deep" / "kept"
    assert unkept.save(target) == unkept.folder == target
    assert not list(temporary.iterdir())
    names = {path.name for path in tiny_run.iterdir()} - {"checkpoints"}  # complete, it needs none
    assert {path.name for path in target.iterdir()} == names | {"report.html", "certain.csv"}
    again = grn.load(target)
    pd.testing.assert_frame_equal(again.edges, edges)
    del unkept, again
    gc.collect()
    assert (target / "model" / "card.json").is_file()


@pytest.mark.parametrize(
    "make",
    [
        lambda target: target.mkdir(),
        lambda target: target.write_text("precious"),
        lambda target: target.symlink_to("nothing"),
    ],
    ids=["a folder", "a file", "a link to nothing"],
)
def test_nothing_is_saved_over(make, run, tmp_path):
    make(tmp_path / "target")
    with pytest.raises(RunFolderError, match="target already exists"):
        run.save(tmp_path / "target")
    assert os.listdir(tmp_path) == ["target"]


def test_a_run_is_not_saved_into_itself(copy):
    run = grn.load(copy)
    with pytest.raises(RunFolderError):
        run.save(run.folder / "deep" / "copy")
    assert (copy / "edges.parquet").is_file()


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_run_that_cannot_be_saved_whole_is_not_saved(problem, unkept, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(grn.Run, "_write_report", fail)
        with pytest.raises((RunFolderError, KeyboardInterrupt)):
            unkept.save(tmp_path / "kept")
    assert os.listdir(tmp_path) == ["temporary"]
    unkept.save(tmp_path / "kept")
    assert grn.load(tmp_path / "kept").metrics == unkept.metrics


def test_a_run_is_found_by_its_model_folder_and_from_another_working_folder(
    tiny_run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tiny_run.parent)
    run = grn.load(f"{tiny_run.name}/model")
    monkeypatch.chdir(tmp_path)
    assert run.folder.samefile(tiny_run) and len(run.edges)


def test_a_model_that_was_copied_out_of_its_run_has_cell_types_and_no_tables(copy):
    run = grn.load(shutil.move(copy / "model", copy.parent / "alone"))
    assert run.cell_types == ("type 1", "type 2")
    for name in ("edges", "network", "config", "metrics"):
        with pytest.raises(RunFolderError):
            getattr(run, name)


@pytest.mark.parametrize(
    ("missing", "word"),
    [("", "nowhere"), ("config.yaml", "config.yaml"), ("edges.parquet", "resume")],
)
def test_what_is_no_run_is_refused(missing, word, copy):
    if missing:
        (copy / missing).unlink()
    with pytest.raises(RunFolderError, match=word):
        grn.load(copy if missing else copy / "nowhere")


@pytest.mark.parametrize(
    "use", [lambda run: run.edges, lambda run: run.save("third"), grn.plots.network_graph]
)
def test_a_run_whose_folder_was_moved_says_so(use, copy):
    run = grn.load(copy)
    copy.rename(copy.with_name("second"))
    with pytest.raises(RunFolderError, match="first"):
        use(run)
    assert os.listdir(copy.parent) == ["second"]


TABLES = {
    "edges.parquet": lambda run: run.edges,
    "metrics.csv": lambda run: run.metrics,
    "confusion.csv": lambda run: run.confusion,
    "edges_by_type.parquet": lambda run: grn.network(run, cell_type="type 1"),
    "network.h5ad": lambda run: run.network,
}


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\xfe\x00 PAR1"], ids=["gone", "empty", "bytes"]
)
@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_table_is_named(name, content, copy):
    run = grn.load(copy)
    (copy / name).unlink() if content is None else (copy / name).write_bytes(content)
    with pytest.raises(DataError if content is not None else UserError, match=name):
        TABLES[name](run)


def test_edges_in_parquet_are_no_cells(run):
    for call in (grn.network, grn.train, lambda given: grn.predict(given, run)):
        with pytest.raises(DataError, match=r"edges\.parquet"):
            call(run.folder / "edges.parquet")


def test_every_plot_draws_a_run(run, adata):
    active = pd.DataFrame({"cell_type": ["B"], "regulator": "A", "effect": 1.0, "q_value": 0.01})
    arguments = {
        "activity_heatmap": (active.assign(low=0.5, high=1.5),),
        "attention_layers": (run.network,),
        "cell_type_genes": (grn.explain(adata, run, cell_type="type 1"),),
        "clustered_heatmap": (run,),
        "confusion_matrix": (run.confusion,),
        "network_graph": (run,),
        "perturbation_volcano": (grn.perturb(run, knock_out="R1"),),
        "precision_recall_curves": (
            {"ours": pd.DataFrame({"recall": [0.5, 1.0], "precision": [1.0, 0.5]})},
            0.1,
        ),
        "training_curves": (run.history,),
    }
    assert set(arguments) == set(grn.plots.__all__)
    for name, values in arguments.items():
        picture = getattr(grn.plots, name)(*values)
        assert picture.axes, name


def test_the_networks_of_some_types_are_theirs(run):
    whole = signed_network(run.network).by_type
    for name in run.network.obs_names:
        alone = signed_network(run.network[[name]]).by_type
        assert list(alone) == [name] and (alone[name] != whole[name]).nnz == 0
