"""The site of the documentation: where links of the repository lead there, and what examples look
like.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def load(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "link, page, expected",
    [
        ("docs/usage.md", "index.md", "usage.md"),
        ("../README.md", "usage.md", "index.md"),
        ("../../ARCHITECTURE.md", "decisions/house.md", "../architecture.md"),
        ("../log.md", "decisions/house.md", "../log.md"),
        ("../docs/img/crossing.png", "kernels.md", "img/crossing.png"),
        (
            "../benchmarks/results/networks.csv",
            "evaluation.md",
            "files/benchmarks/results/networks.csv",
        ),
        ("../benchmarks/results", "kernels.md", "benchmarks.md"),
        ("docs/decisions", "architecture.md", "decisions/README.md"),
    ],
)
def test_links_of_the_repository_lead_to_pages_and_copies(link, page, expected):
    assert load("site_pages").relative(link, page) == expected


def test_the_api_has_every_public_name_with_a_module():
    import grn

    page = load("site_pages").grn_api()
    names = [*(name for name in grn.__all__ if name in grn._MODULES), *grn.plots.__all__]
    assert all(f".{name}\n" in page + "\n" for name in names)
