"""The public names of flashsign: complete, documented with shapes, with examples that run, and
without Triton.
"""

import doctest
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import flashsign

FUNCTIONS = [name for name in flashsign.__all__ if inspect.isroutine(getattr(flashsign, name))]
CLASSES = [name for name in flashsign.__all__ if inspect.isclass(getattr(flashsign, name))]
FOLDS = [
    name for name in flashsign.__all__ if isinstance(getattr(flashsign, name), flashsign.Monoid)
]


def test_every_public_name_is_listed_and_can_be_imported():
    modules = {module.name for module in pkgutil.iter_modules(flashsign.__path__)}
    names = {name for name in vars(flashsign) if not name.startswith("_")}
    assert names - modules - set(flashsign.__all__) == set()
    assert set(flashsign.__all__) == {*FUNCTIONS, *CLASSES, *FOLDS}
    # `import *` is what __all__ is for.
    scope = {}
    exec("from flashsign import *", scope)
    assert set(flashsign.__all__) <= scope.keys()


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_examples_run(name):
    thing = getattr(flashsign, name)
    tests = doctest.DocTestFinder(recurse=False).find(thing, name, module=False, globs={})
    assert len(tests) == 1 and tests[0].examples, "a docstring has an example"
    torch.manual_seed(0)
    failed = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    runner.run(tests[0], out=failed.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(failed)


def test_the_examples_of_the_algebras_page_run():
    page = Path(__file__).parents[2].joinpath("kernels/README.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "kernels/README.md", "exec"), {})


def test_it_imports_neither_triton_nor_the_application_and_works_without_triton():
    code = """
import sys
import torch
import flashsign
assert not {name.split(".")[0] for name in sys.modules} & {"triton", "grn", "lightning", "scanpy"}
sys.modules["triton"] = None
q = torch.ones(1, 1, 2, 4)
flashsign.spherical_attention(q, q, q)
flashsign.EdgeSums(2, 2).add(q, q)
"""
    without = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], check=True, env=without)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(find_spec, ("build", "hatchling"))), reason="build and hatchling are not installed"
)
def test_it_builds_as_a_wheel_of_its_own_that_needs_torch_alone(tmp_path):
    source = Path(flashsign.__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        tmp_path,
        source,
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("flashsign-*.whl")
    archive = zipfile.ZipFile(wheel)
    names = {name for name in archive.namelist() if name.startswith("flashsign/")}
    assert names == {
        path.relative_to(source).as_posix() for path in source.rglob("flashsign/**/*.py")
    } | {"flashsign/py.typed"}
    archive.extractall(tmp_path / "site")
    metadata = next(
        archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")
    )
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    assert required == ["Requires-Dist: torch>=2.11"]
    code = (
        "import flashsign, torch; q = torch.ones(1, 1, 3, 4); flashsign.spherical_attention(q, q, "
        "q)"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
    )
