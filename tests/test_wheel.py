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
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    call(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        ROOT,
        cwd=folder,
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel; its dependencies are those of the environment that runs
    the tests.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = next(
        path
        for path in (folder / "bin" / "python", folder / "Scripts" / "python.exe")
        if path.exists()
    )
    target = Path(
        call(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
        ).stdout.strip()
    )
    call(
        *(
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--no-deps",
            "--no-index",
            "--quiet",
            wheel,
        ),
        cwd=folder,
    )
    # A line in a .pth file adds a folder without reading the .pth files in it: the editable install
    # stays outside.
    (target / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_both_packages_the_configurations_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "grn",
        "flashsign",
        f"grn-{grn.__version__}.dist-info",
    }
    shipped = {path.name for path in (ROOT / "configs").glob("*.yaml")}
    assert {
        name.removeprefix("grn/configs/") for name in names if name.startswith("grn/configs/")
    } == shipped
    assert {"grn/py.typed", "flashsign/py.typed"} <= set(names)
    lists = {path.name for path in (ROOT / "grn/cells/genes/programme_lists").glob("*.txt")}
    assert lists and lists == {
        Path(name).name for name in names if name.startswith("grn/cells/genes/programme_lists/")
    }


def test_the_wheel_does_not_depend_on_triton(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(f"grn-{grn.__version__}.dist-info/METADATA").decode()
    required = [
        line
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    assert required and not any("triton" in line for line in required)


def test_the_installed_wheel_is_what_gets_imported(python, tmp_path):
    printed = call(
        python, "-c", "import grn, flashsign; print(grn.__file__, flashsign.__file__)", cwd=tmp_path
    ).stdout
    assert all(Path(path).is_relative_to(python.parents[1]) for path in printed.split())


def test_a_run_from_an_empty_folder_leaves_a_complete_run_folder(python, tmp_path):
    small = ["cells=120", "genes=20", "regulators=4", "cell_types=2"]
    fields = [f"data.simulated.{each}" for each in small] + [
        "trainer.max_steps=5",
        "model.members=2",
        "model.width=16",
    ]
    overrides = [part for field in fields for part in ("--set", field)]
    done = call(
        python, "-m", "grn", "train", "--config", "simulated.yaml", *overrides, cwd=tmp_path
    )

    assert done.stderr == "" and done.stdout.startswith("120 cells x 20 genes")
    for noise in ("available", "Tip", "weights_only", "stopped: `", "Warning"):
        assert noise not in done.stdout
    assert (
        "edges are certain over all cells" in done.stdout and "F1 of the cell types" in done.stdout
    )

    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 1 and runs[0].name.startswith("simulated-")
    files = [
        "config.yaml",
        "metrics.csv",
        "network.h5ad",
        "edges.parquet",
        "report.html",
        "log.txt",
    ]
    assert [name for name in files if not (runs[0] / name).is_file()] == []
    assert not (runs[0] / "checkpoints").exists() and list(
        (runs[0] / "model").glob("*.safetensors")
    )
    assert yaml.safe_load((runs[0] / "config.yaml").read_text())["trainer"]["max_steps"] == 5
