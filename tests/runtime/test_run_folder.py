"""The folder of a run is new or empty, and its parts belong together."""

import datetime
import json
import shutil

import h5py
import pyarrow.parquet as pq
import pytest

from grn.features.run import load
from grn.runtime.errors import RunFolderError
from grn.runtime.run_folder import MODEL_HASH, WRITTEN, make_run_folder

OTHER = "0" * 16


def test_the_same_command_works_twice(tmp_path):
    name = f"pbmc-{datetime.date.today().isoformat()}"
    (tmp_path / f"{name}-2").touch()
    folders = [make_run_folder(None, "pbmc", tmp_path) for _ in range(3)]
    assert [folder.name for folder in folders] == [f"{name}-{number}" for number in (1, 3, 4)]
    assert all(list(folder.iterdir()) == [] for folder in folders)


def test_temporary_files_of_everything_that_a_run_writes_are_known(tiny_run):
    """A run that is killed while it writes one of these leaves nothing behind once it resumes."""
    there = {path.stem for path in (*tiny_run.iterdir(), *(tiny_run / "checkpoints").iterdir())}
    assert there <= {*WRITTEN, "log", "checkpoints"} and "edges_by_type" in there


def other_card(path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hash": OTHER}))


def other_network(path) -> None:
    with h5py.File(path, "r+") as file:
        file["uns/grn/model_hash"][()] = OTHER


def other_table(path) -> None:
    table = pq.read_table(path)
    about = {**table.schema.metadata, MODEL_HASH: OTHER.encode()}
    pq.write_table(table.replace_schema_metadata(about), path)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("model/card.json", other_card),
        ("network.h5ad", other_network),
        ("edges.parquet", other_table),
        ("edges_by_type.parquet", other_table),
    ],
)
def test_parts_of_different_runs_are_not_taken_for_one(part, change, tiny_run, tmp_path):
    """Each part is sound by itself, so that scores, pictures and predictions would be of two
    networks.
    """
    run = shutil.copytree(tiny_run, tmp_path / "run")
    change(run / part)
    with pytest.raises(RunFolderError, match=rf"{part} is of another run than"):
        load(run)


def test_parts_that_do_not_say_of_which_run_they_are_are_taken(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    load(run).edges.to_parquet(run / "edges.parquet", index=False)
    assert len(load(run).edges) == len(load(tiny_run).edges)
