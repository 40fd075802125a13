"""Imports point one way in both packages, libraries stay where they belong, and folders and names stay few.

A module may import its own group and the groups of lower levels, never a neighbour on the same level.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Groups on one level are separated by |. A group is a module or a whole folder of the package, and may hold several.
LEVELS = {
    "grn": (
        "__init__ errors nearest arguments messages bags files disk process_memory devices run_folder config",
        "data | model",
        "regulation",
        "network",
        "plots | analysis | training",
        "api",
        "cli __main__",
    ),
    "flashsign": (
        "errors | tensor_cache",
        "validation",
        "reference",
        "eager",
        "algebra | tuning",
        "call",
        "dispatch",
        "triton",
        "operators",
        "distributed",
        "edges",
        "attention | layers",
        "autotune | check",
        "__init__",
    ),
    "flashsign.triton": ("__init__", "common", "streaming | moments | folds", "small_bags | edge_sums"),
}
FOLDERS = {
    "grn": ROOT / "grn",
    "flashsign": ROOT / "kernels/flashsign",
    "flashsign.triton": ROOT / "kernels/flashsign/triton",
}

# Who alone may import it: paths from the root.
KEPT_TO = {
    "lightning": ("grn/training/", "grn/data/loading/module.py"),
    "typer": ("grn/cli/",),
    "matplotlib": ("grn/plots/",),
    "decoupler": ("grn/analysis/activity.py",),
    "flashsign": ("grn/model/", "grn/network/", "kernels/flashsign/"),
    "triton": ("kernels/flashsign/",),
    "grn": ("grn/", "train.py"),
}

MOST_FILES = 10
"""Of one folder, __init__.py not counted."""

SAME_NAME = {
    "activity.py": "what it computes, and its Python call",
    "attention.py": "the public call, and the template of kernels",
    "backward.py": "the stream's and the moments' kernels",
    "benchmark.py": "its Python call and its command",
    "calls.py": "the stream's and the moments' kernels",
    "cells.py": "cells as a caller has them in memory, and as the data set made of them",
    "compare.py": "what it computes, its Python call and its command",
    "edge_sums.py": "edge sums, and their kernel",
    "errors.py": "of either package",
    "evaluate.py": "what it computes, its Python call and its command",
    "explain.py": "what it computes, its Python call and its command",
    "export.py": "what it writes, its Python call and its command",
    "files.py": "files, and those of configurations",
    "forward.py": "the stream's and the moments' kernels",
    "gene_parallel.py": "gene parallelism of the data and of the training loop",
    "h5ad.py": "AnnData files of cells, and of a network",
    "layout.py": "tokens of the model, tensors of the operators, pointers of the kernels",
    "moments.py": "moments in one process, and over several",
    "perturb.py": "what it computes, its Python call and its command",
    "predict.py": "what it computes, its Python call and its command",
    "registry.py": "formats that are read, and formats that are written",
    "report.py": "the page, the page of a run with its pictures, and its command",
    "run.py": "the run, and the object that a Python call returns",
    "split_keys.py": "the plan, and the kernel that adds the splits",
    "sums.py": "sums as monoids, and sums of moments in kernels",
    "tables.py": "tables of results, tables of block sizes",
    "train.py": "its Python call, its command, and the script that torchrun starts",
}
"""File names that occur more than once, and what the one idea is at each level."""


def place_of(package: str, group: str) -> tuple[int, int]:
    """Level of a group, and which of the level's groups it belongs to; raises KeyError."""
    for level, groups in enumerate(LEVELS[package]):
        for number, names in enumerate(groups.split("|")):
            if group in names.split():
                return level, number
    raise KeyError(group)


def groups_of(package: str) -> set[str]:
    """Modules and folders with Python files on the first floor of a package."""
    folder = FOLDERS[package]
    modules = {path.stem for path in folder.glob("*.py")}
    return modules | {path.name for path in folder.iterdir() if any(path.rglob("*.py"))}


def imports(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Full names of what a file imports anywhere in it; package: the names of the folder that it lies in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = above + (node.module or "")
            yield from (f"{module.rstrip('.')}.{alias.name}" for alias in node.names)


def imports_of(path: Path) -> list[str]:
    source, parts = path.read_text("utf-8"), path.relative_to(ROOT).with_suffix("").parts[:-1]
    if path == ROOT / "grn/__init__.py":  # offers names of all levels, which it imports when they are asked for
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
    found = []
    for module in modules:
        if module != package and not module.startswith(f"{package}."):
            continue
        first = module.removeprefix(package).removeprefix(".").split(".")[0]
        other = first if first in groups_of(package) else "__init__"  # a name that the package itself offers
        other_level, other_number = place_of(package, other)
        if other_level > level or (other_level == level and other_number != number):
            found.append(f"{own} imports {module}, which is not below it")
    return found


FILES = [path for folder in ("grn", "kernels") for path in sorted((ROOT / folder).rglob("*.py"))] + [ROOT / "train.py"]
NAMES = [path.relative_to(ROOT).as_posix() for path in FILES]
OF_PACKAGES = [
    (package, path.relative_to(ROOT).as_posix())
    for package, folder in FOLDERS.items()
    for path in FILES
    if path.is_relative_to(folder)
]


@pytest.mark.parametrize("package", LEVELS)
def test_every_group_has_one_level(package):
    listed = [name for groups in LEVELS[package] for name in groups.replace("|", " ").split()]
    assert sorted(listed) == sorted(groups_of(package))


@pytest.mark.parametrize(("package", "name"), OF_PACKAGES)
def test_imports_point_downwards(package, name):
    own = (ROOT / name).relative_to(FOLDERS[package]).parts[0].removesuffix(".py")
    found = faults(package, own, imports_of(ROOT / name))
    assert not found, f"{name}: {'; '.join(found)}"


@pytest.mark.parametrize(
    ("package", "own", "module", "refused"),
    [
        ("grn", "data", "grn.model.transformer.Model", True),  # a neighbour
        ("grn", "network", "grn.training.run.train", True),  # above
        ("grn", "network", "grn.regulation.fit", False),
        ("grn", "bags", "grn.errors.UserError", False),  # the same level and group
        ("grn", "config", "grn.__version__", False),
        ("flashsign", "dispatch", "flashsign.triton.streaming", True),
        ("flashsign", "errors", "flashsign.reference.edge_weights", True),
        ("flashsign", "eager", "flashsign.fold", True),  # what __init__ offers is above everything
        ("flashsign", "eager", "torch.nn", False),
        ("flashsign.triton", "streaming", "flashsign.triton.moments.calls", True),
        ("flashsign.triton", "small_bags", "flashsign.triton.common.launch", False),
    ],
)
def test_an_import_that_points_upwards_is_found(package, own, module, refused):
    assert bool(faults(package, own, [module])) == refused


def test_relative_imports_and_those_inside_functions_are_seen():
    source = (
        "def f():\n    from ..moments import calls\n\nif x:\n    from . import launch\n    import triton.language as tl"
    )
    found = list(imports(source, ("flashsign", "triton", "streaming")))
    assert sorted(found) == ["flashsign.triton.moments.calls", "flashsign.triton.streaming.launch", "triton.language"]


@pytest.mark.parametrize("name", NAMES)
def test_libraries_stay_where_they_belong(name):
    for module in imports_of(ROOT / name):
        places = KEPT_TO.get(module.split(".")[0], ("",))
        assert name.startswith(places), f"{name} imports {module}, which belongs to {' or '.join(places)}"


@pytest.mark.parametrize("folder", sorted({path.parent.relative_to(ROOT).as_posix() for path in FILES} - {"."}))
def test_a_folder_has_ten_files_at_most(folder):
    files = [path.name for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= MOST_FILES, f"{folder} has {len(files)} files: {', '.join(sorted(files))}"


def test_files_of_one_name_are_one_idea_at_two_levels():
    names = Counter(path.name for path in FILES if path.name not in ("__init__.py", "__main__.py"))
    repeated = {name for name, times in names.items() if times > 1}
    assert sorted(repeated - set(SAME_NAME)) == [], "say in SAME_NAME what the one idea is, or rename one"
    assert sorted(set(SAME_NAME) - repeated) == [], "no longer there twice: take it out of SAME_NAME"
