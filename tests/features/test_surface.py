"""What `import grn` offers: complete, typed, documented, and every example in it runs."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import grn

ROOT = Path(__file__).parents[2]
PUBLIC = (
    "Run __version__ activity compare errors evaluate evaluate_interventions explain export load "
    "network perturb plots predict read_network screen train"
)
PLOTS = (
    "activity_heatmap attention_layers cell_type_genes clustered_heatmap confusion_matrix "
    "network_graph perturbation_volcano precision_recall_curves training_curves"
)
FUNCTIONS = [
    name for name in sorted(grn.__all__) if name not in ("Run", "__version__", "errors", "plots")
]
RUN = [
    "cell_types",
    "config",
    "confusion",
    "edges",
    "folder",
    "history",
    "metrics",
    "module",
    "network",
]
RUN += ["read_networks", "save"]


def documented() -> list:
    """The functions, and the class with its public members, as (name, object)."""
    yield from ((name, getattr(grn, name)) for name in FUNCTIONS)
    yield "Run", grn.Run
    yield "Run.read_networks", grn.Run.read_networks
    yield "Run.save", grn.Run.save


def test_the_surface_is_what_is_documented():
    assert " ".join(sorted(grn.__all__)) == PUBLIC == " ".join(dir(grn))
    assert " ".join(sorted(grn.plots.__all__)) == PLOTS == " ".join(dir(grn.plots))
    assert sorted(name for name in vars(grn.Run) if not name.startswith("_")) == RUN
    for name in grn.__all__:
        assert getattr(grn, name) is not None
    assert isinstance(grn.__version__, str)
    assert issubclass(grn.errors.DataError, grn.errors.UserError)


@pytest.mark.parametrize(
    ("name", "value"), list(documented()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_name_has_annotations_and_an_example(name, value):
    signature = inspect.signature(value)
    for parameter in signature.parameters.values():
        if parameter.name != "self":
            assert parameter.annotation is not inspect.Parameter.empty, (
                f"{name}({parameter.name}) has no annotation"
            )
    assert signature.return_annotation is not inspect.Signature.empty, (
        f"{name} says nothing of what it returns"
    )
    assert "Examples:" in value.__doc__ and ">>>" in value.__doc__, f"{name} has no example"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_parameter_and_the_result_are_explained(name):
    text = inspect.getdoc(getattr(grn, name))
    for parameter in inspect.signature(getattr(grn, name)).parameters:
        assert f"\n    {parameter}: " in text, f"grn.{name} does not explain {parameter}"
    assert "\nReturns:\n" in text and "\nRaises:\n" in text


@pytest.mark.parametrize("name", [*RUN, *grn.plots.__all__])
def test_properties_and_plots_say_what_they_are(name):
    value = vars(grn.Run)[name] if name in RUN else getattr(grn.plots, name)
    assert value.__doc__
    if name not in RUN:
        signature = inspect.signature(value)
        annotations = [each.annotation for each in signature.parameters.values()] + [
            signature.return_annotation
        ]
        assert inspect.Signature.empty not in annotations


@pytest.mark.parametrize("name", [*sorted({*FUNCTIONS} - {"load", "screen"}), "Run"])
def test_the_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, attempted = doctest.testmod(import_module(grn._MODULES[name]), optionflags=flags)
    assert attempted and not failed
    assert not list(tmp_path.iterdir()), "an example leaves files behind"


@pytest.mark.slow
def test_the_annotations_hold_for_a_type_checker(tmp_path):
    """mypy sees the functions through the lazy module, and their mistakes."""
    script = tmp_path / "script.py"
    script.write_text(
        "import grn\n"
        'run = grn.train("simulated:", max_steps=5)\n'
        "reveal_type(run)\n"
        "reveal_type(grn.plots.confusion_matrix)\n"
        "reveal_type(grn.network)\n"
        "grn.train(max_step=5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert 'Revealed type is "grn.features.run.Run"' in done.stdout, done.stdout
    assert "def (confusion: " in done.stdout
    assert "cell_type: str | None" in done.stdout or "cell_type: Union[str, None]" in done.stdout
    assert 'Unexpected keyword argument "max_step"' in done.stdout


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name
)
def test_a_notebook_imports_nothing_of_ours_but_one_package(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    ours = [
        line.strip()
        for line in code.splitlines()
        if "import" in line and ("grn" in line or "flashsign" in line)
    ]
    assert ours == (["import flashsign as fs"] if path.name == "folds.ipynb" else ["import grn"])
    assert any(cell.get("outputs") for cell in cells), "the notebook was saved without its outputs"
    assert path.stat().st_size < 400_000
