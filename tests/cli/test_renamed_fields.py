"""A run folder of an earlier version, whose config.yaml has the old name of a field, is refused with the new name."""

from __future__ import annotations

import shutil

import pytest

from grn.cli.main import main
from grn.config.files import load_config
from grn.training.resume import Start, fields


@pytest.fixture
def old_run(tiny_run, tmp_path):
    """A finished run, as an earlier version wrote its configuration."""
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    config = folder / "config.yaml"
    members = next(line for line in config.read_text().splitlines(keepends=True) if line.startswith("  members:"))
    text = config.read_text().replace(members, "").replace("network:\n", f"network:\n{members}")
    config.write_text(text)
    line = text.splitlines().index("network:") + 2
    return folder, f"error: {config}, line {line}: network.members is now called regulation.members; "


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--resume", "RUN"],
        ["export", "RUN", "--output", "OUT"],
        ["predict", "RUN", "cells.h5ad", "--output", "OUT.h5ad"],
        ["evaluate", "RUN", "RUN/truth.csv", "--data", "RUN"],
    ],
    ids=lambda command: command[0],
)
def test_a_run_folder_with_the_old_name_is_refused_with_the_new_one(old_run, tmp_path, capsys, command):
    folder, sentence = old_run
    before = sorted(tmp_path.rglob("*"))
    places = {"RUN": str(folder), "OUT": str(tmp_path / "out")}
    arguments = [part.replace("RUN", places["RUN"]).replace("OUT", places["OUT"]) for part in command]
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert printed == f"{sentence}set regulation.members instead.\n"
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written"


def test_a_run_that_was_started_under_the_old_name_goes_on_once_the_file_has_the_new_one(tiny_run):
    """Its checkpoints keep the fields as they were called at its start."""
    config = load_config(tiny_run / "config.yaml")
    started = {
        "network.members" if name == "regulation.members" else name: value for name, value in fields(config).items()
    }
    start = Start(tiny_run, origin={"fields": started, "processes": 1})
    start.refuse_another_configuration(config)
