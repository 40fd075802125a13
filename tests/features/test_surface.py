"""What `import grn` offers: complete, typed, documented, and every example in it runs."""

from __future__ import annotations

import doctest
import inspect
import json
import re
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
OF_RUN = (
    "cell_types config confusion edges folder history metrics module network read_networks save"
)
FUNCTIONS = sorted({*grn.__all__} - {"Run", "__version__", "errors", "plots"})
RUN = {name: each for name, each in vars(grn.Run).items() if not name.startswith("_")}
METHODS = {f"Run.{name}": each for name, each in RUN.items() if inspect.isfunction(each)}
PICTURES = {f"plots.{name}": getattr(grn.plots, name) for name in grn.plots.__all__}
CALLED = {name: getattr(grn, name) for name in FUNCTIONS} | METHODS


def test_the_surface_is_what_is_documented():
    assert " ".join(sorted(grn.__all__)) == PUBLIC == " ".join(dir(grn))
    assert " ".join(sorted(grn.plots.__all__)) == PLOTS == " ".join(dir(grn.plots))
    assert " ".join(sorted(RUN)) == OF_RUN
    assert all(getattr(grn, name) is not None for name in grn.__all__)


@pytest.mark.parametrize("name", [*CALLED, *PICTURES])
def test_every_function_is_typed_and_documented(name):
    function = (CALLED | PICTURES)[name]
    signature = inspect.signature(function)
    typed = [each.annotation for each in signature.parameters.values() if each.name != "self"]
    assert inspect.Signature.empty not in [*typed, signature.return_annotation]
    text = inspect.getdoc(function)
    assert text and (name in PICTURES or ("\nExamples:\n" in text and ">>>" in text))
    if name in FUNCTIONS:
        assert "\nReturns:\n" in text and "\nRaises:\n" in text
        assert [each for each in signature.parameters if f"\n    {each}: " not in text] == []


@pytest.mark.parametrize("name", RUN)
def test_properties_of_a_run_say_what_they_are(name):
    assert RUN[name].__doc__


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
        'reveal_type(grn.train("simulated:", max_steps=5))\n'
        "reveal_type(grn.plots.confusion_matrix)\n"
        "grn.train(max_step=5)\n"
    )
    command = ["-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    said = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=280
    ).stdout
    assert 'Revealed type is "grn.features.run.Run"' in said, said
    assert "def (confusion: " in said and 'Unexpected keyword argument "max_step"' in said


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name
)
def test_a_notebook_imports_nothing_of_ours_but_one_package(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    ours = re.findall(r"^.*import.*(?:grn|flashsign).*$", code, re.MULTILINE)
    assert ours == (["import flashsign as fs"] if path.name == "folds.ipynb" else ["import grn"])
    assert any(cell.get("outputs") for cell in cells), "the notebook was saved without its outputs"
