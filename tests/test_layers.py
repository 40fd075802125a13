"""Imports point one way: cli -> (plots, analysis, training) -> network -> (data, model) -> (bags, config, errors).

A module may import what is in its own group and in lower levels, not its neighbours on the same level.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Groups by level, from the bottom. A group is named by the first part of its modules' names below grn.
LEVELS = [
    [{"__init__", "errors", "config", "bags", "files", "configfile"}],
    [{"data"}, {"model", "fusing", "regulation", "objectives", "trained"}],
    [{"network"}],
    [{"plots"}, {"analysis"}, {"training"}],
    [{"cli", "__main__"}],
]
PLACE = {
    name: (level, neighbours)
    for level, groups in enumerate(LEVELS)
    for neighbours, names in enumerate(groups)
    for name in names
}

# Who alone may import it (paths from the root).
KEPT_TO = {
    "lightning": ("grn/training/", "grn/data/loading/module.py"),
    "typer": ("grn/cli/",),
    "matplotlib": ("grn/plots/",),
    "flashsign": ("grn/model/transformer.py", "grn/network/", "kernels/flashsign/"),
    "triton": ("kernels/flashsign/",),
    "grn": ("grn/", "train.py"),
}


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports anywhere in it, type-checking blocks included."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = above + (node.module or "")
            yield from (f"{module.rstrip('.')}.{alias.name}" for alias in node.names)


def group(module: str) -> str:
    """grn.network.file_formats.x -> network; grn.__version__ and grn itself -> __init__."""
    first = [*module.split("."), "__init__"][1]
    return first if first in PLACE else "__init__" if first.startswith("__") else first


FILES = [path for folder in ("grn", "kernels") for path in sorted((ROOT / folder).rglob("*.py"))] + [ROOT / "train.py"]
NAMES = [str(path.relative_to(ROOT)) for path in FILES]


@pytest.mark.parametrize("name", NAMES)
def test_imports_point_downwards(name):
    path = ROOT / name
    if path.parts[len(ROOT.parts)] != "grn":
        return
    own = path.relative_to(ROOT / "grn").parts[0].removesuffix(".py")
    assert own in PLACE, f"{name} has no level: add it to LEVELS"
    level, neighbours = PLACE[own]
    for module in imports(path):
        if module.split(".")[0] != "grn":
            continue
        other_level, other_group = PLACE[group(module)]
        allowed = other_level < level or (other_level, other_group) == (level, neighbours)
        assert allowed, f"{name} imports {module}, which is not below it"


@pytest.mark.parametrize("name", NAMES)
def test_libraries_stay_where_they_belong(name):
    for module in imports(ROOT / name):
        places = KEPT_TO.get(module.split(".")[0], ("",))
        assert name.startswith(places), f"{name} imports {module}, which belongs to {' or '.join(places)}"
