"""The files in the wheel suffice: built, installed into a fresh environment, run from an empty
folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import grn

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / "pyproject.toml").is_file(), reason="there is no checkout to build from"
    ),
    pytest.mark.skipif(
        not all(map(find_spec, ("build", "hatchling"))),
        reason="build and hatchling are not installed",
    ),
]


def call(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"capture_output": True, "text": True, "timeout": 280}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    options = "--wheel", "--no-isolation", "--outdir", folder, ROOT
    call(sys.executable, "-m", "build", *options, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel; its dependencies are those of the environment that runs
    the tests.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    places = folder / "bin" / "python", folder / "Scripts" / "python.exe"
    python = next(path for path in places if path.exists())
    install = "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel
    call(sys.executable, "-m", "pip", *install, cwd=folder)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    target = Path(call(python, "-c", ask, cwd=folder).stdout.strip())
    # A line in a .pth file adds a folder without reading the .pth files in it: the editable install
    # stays outside.
    (target / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_both_packages_the_configurations_and_nothing_else(wheel):
    names = {*zipfile.ZipFile(wheel).namelist()}
    tops = {"grn", "flashsign", f"grn-{grn.__version__}.dist-info"}
    assert {name.split("/")[0] for name in names} == tops
    assert {"grn/py.typed", "flashsign/py.typed"} <= names
    lists = "grn/cells/genes/programme_lists"
    for there, pattern, here in (("grn/configs", "*.yaml", "configs"), (lists, "*.txt", lists)):
        files = {f"{there}/{path.name}" for path in (ROOT / here).glob(pattern)}
        assert files and files <= names


def test_the_installed_wheel_is_what_gets_imported(python, tmp_path):
    ask = "import grn, flashsign; print(grn.__file__, flashsign.__file__)"
    for path in call(python, "-c", ask, cwd=tmp_path).stdout.split():
        assert Path(path).is_relative_to(python.parents[1])


def test_a_run_from_an_empty_folder_leaves_a_complete_run_folder(python, tmp_path):
    simulated = {"cells": 120, "genes": 20, "regulators": 4, "cell_types": 2}
    fields = {f"data.simulated.{name}": value for name, value in simulated.items()}
    fields |= {"trainer.max_steps": 5, "model.members": 2, "model.width": 16}
    overrides = [part for field in fields.items() for part in ("--set", "{}={}".format(*field))]
    command = "grn", "train", "--config", "simulated.yaml", *overrides
    done = call(python, "-m", *command, cwd=tmp_path)
    assert done.stderr == "" and done.stdout.startswith("120 cells x 20 genes")
    for noise in ("available", "Tip", "weights_only", "stopped: `", "Warning"):
        assert noise not in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("simulated-")
    files = "config.yaml metrics.csv network.h5ad edges.parquet report.html log.txt"
    assert {*files.split(), "model"} <= {path.name for path in run.iterdir()}
    assert list((run / "model").glob("*.safetensors")) and not (run / "checkpoints").exists()
    assert yaml.safe_load((run / "config.yaml").read_text())["trainer"]["max_steps"] == 5
