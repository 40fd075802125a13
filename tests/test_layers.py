"""Imports point one way in both packages, and libraries stay where they belong.

A module may import its own group and the groups of lower levels, never a neighbour on the same
level. A group is a module or a folder; a folder whose files stand on several levels is listed file
by file (attention.call).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Groups on one level are separated by |. A group may hold several modules and folders.
LEVELS = {
    "grn": (
        "__init__ runtime config",
        "bags",
        "cells | model",
        "edges",
        "evidence",
        "networks",
        "plots | training",
        "features",
        "cli __main__",
    ),
    "grn.features": (
        "__init__",
        "arguments | findings | hub",
        "report",
        "run",
        "given_networks",
        "activity | evaluate | export | predict | read_network",
        "compare | explain | perturb | train",
        "interventions | network",
    ),
    "flashsign": (
        "errors | tensor_cache",
        "attention.__init__ attention.validation attention.reference",
        "eager",
        "tuning attention.call",
        "attention.dispatch",
        "triton",
        "operators",
        "attention.spherical_attention | edges | tables | folds",
        "check",
        "__init__",
    ),
    "flashsign.folds": ("__init__", "algebra | kernels", "layers"),
    "flashsign.triton": (
        "__init__",
        "common",
        "streaming | moments",
        "small_bags | edge_sums | shared_scores | slope_penalty",
    ),
}
FOLDERS = {
    "grn": ROOT / "grn",
    "grn.features": ROOT / "grn/features",
    "flashsign": ROOT / "kernels/flashsign",
    "flashsign.folds": ROOT / "kernels/flashsign/folds",
    "flashsign.triton": ROOT / "kernels/flashsign/triton",
}

# Who alone may import it: paths from the root.
KEPT_TO = {
    "lightning": ("grn/training/", "grn/cells/loading/module.py"),
    "typer": ("grn/cli/",),
    "matplotlib": ("grn/plots/",),
    "decoupler": (),
    "flashsign": (
        "grn/model/",
        "grn/networks/",
        "grn/training/recorded.py",
        "grn/cli/doctor.py",
        "kernels/flashsign/",
    ),
    "triton": ("kernels/flashsign/",),
    "grn": ("grn/", "train.py"),
}


def place_of(package: str, module: str) -> tuple[int, int]:
    """Level of a module, named from the package on, and which of the level's groups it is in;
    raises KeyError.
    """
    parts = module.split(".")
    names = {".".join(parts[:count]) for count in range(1, len(parts) + 1)} | {f"{module}.__init__"}
    for level, groups in enumerate(LEVELS[package]):
        for number, listed in enumerate(groups.split("|")):
            if names & set(listed.split()):
                return level, number
    raise KeyError(module)


def groups_of(package: str) -> set[str]:
    """Modules and folders with Python files of a package, file by file where LEVELS lists a folder
    so.
    """
    folder = FOLDERS[package]
    split = {
        name.split(".")[0] for groups in LEVELS[package] for name in groups.split() if "." in name
    }
    modules = {path.stem for path in folder.glob("*.py")}
    folders = {path.name for path in folder.iterdir() if any(path.rglob("*.py"))} - split
    return (
        modules
        | folders
        | {f"{name}.{path.stem}" for name in split for path in (folder / name).glob("*.py")}
    )


def imports(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Full names of what a file imports anywhere in it; package: the names of the folder that it
    lies in.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = above + (node.module or "")
            yield from (f"{module.rstrip('.')}.{alias.name}" for alias in node.names)


def imports_of(path: Path) -> list[str]:
    source, parts = path.read_text("utf-8"), path.relative_to(ROOT).with_suffix("").parts[:-1]
    # offers names of all levels, which it imports when they are asked for
    if path == ROOT / "grn/__init__.py":
        source = ast.unparse(without_type_checking(ast.parse(source)))
    return list(imports(source, parts[1:] if parts[:1] == ("kernels",) else parts))


def without_type_checking(tree: ast.Module) -> ast.Module:
    def for_checkers(node: ast.stmt) -> bool:
        return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"

    tree.body = [node for node in tree.body if not for_checkers(node)]
    return tree


def faults(package: str, own: str, modules: Iterable[str]) -> list[str]:
    """Of the modules that group `own` imports, those that are not below it."""
    level, number = place_of(package, own)
    known = groups_of(package)
    found = []
    for module in modules:
        if module != package and not module.startswith(f"{package}."):
            continue
        parts = module.removeprefix(package).removeprefix(".").split(".")
        inside = {parts[0], ".".join(parts[:2]), f"{parts[0]}.__init__"} & known
        other = ".".join(parts) if inside else "__init__"  # a name that the package itself offers
        other_level, other_number = place_of(package, other)
        if other_level > level or (other_level == level and other_number != number):
            found.append(f"{own} imports {module}, which is not below it")
    return found


FILES = [
    path for folder in ("grn", "kernels") for path in sorted((ROOT / folder).rglob("*.py"))
] + [ROOT / "train.py"]


@pytest.mark.parametrize("package", LEVELS)
def test_every_group_has_one_level(package):
    listed = [name for groups in LEVELS[package] for name in groups.replace("|", " ").split()]
    assert sorted(listed) == sorted(groups_of(package))


@pytest.mark.parametrize("package", LEVELS)
def test_imports_point_downwards(package):
    found = []
    for path in FILES:
        if path.is_relative_to(FOLDERS[package]):
            own = ".".join(path.relative_to(FOLDERS[package]).with_suffix("").parts)
            found += [f"{path}: {fault}" for fault in faults(package, own, imports_of(path))]
    assert not found, "\n".join(found)


def test_libraries_stay_where_they_belong():
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        for module in imports_of(path):
            places = KEPT_TO.get(module.split(".")[0], ("",))
            assert name.startswith(places), (
                f"{name} imports {module}, which belongs to {' or '.join(places)}"
            )
