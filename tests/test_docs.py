"""The pages: short where they must be, without dead links, and their examples run."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "kernels", "benchmarks", "data")
PAGES = sorted(ROOT.glob("*.md")) + sorted(
    page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
A_FILE = re.compile(r"[\w.*/-]+\.(?:py|md|ya?ml|toml|ipynb|cff)|[\w.*/-]+/[\w.*-]*")
TOPS = {path.name for path in ROOT.iterdir()}
# Where a page may count its paths from, besides the root and its own folder.
BASES = {
    "ARCHITECTURE.md": ("grn", "kernels/flashsign"),
    "kernels/README.md": ("kernels/flashsign", "kernels/flashsign/triton"),
}


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def prose(name: str) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", text(name))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub names them."""
    found: list[str] = []
    for heading in HEADING.findall(FENCED.sub("", page.read_text("utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


@cache
def tracked_names() -> frozenset[str]:
    folders = ("grn", "kernels", "tests", "benchmarks", "docs", "configs", "data", "notebooks")
    return frozenset(path.name for folder in folders for path in (ROOT / folder).rglob("*")) | TOPS


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name):
    page = ROOT / name
    for target in LINK.findall(prose(name)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(there), (
                f"{name} links to {target}, and that page has no such heading"
            )


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_is_named_exists(name):
    bases = [ROOT, (ROOT / name).parent, *(ROOT / base for base in BASES.get(name, ()))]
    for code in CODE.findall(prose(name)):
        for word in code.split():
            if not A_FILE.fullmatch(word) or word.startswith("-"):
                continue
            if "/" not in word:
                known = word.endswith((".py", ".md")) and "*" not in word and word == code
                assert not known or word in tracked_names(), (
                    f"{name} names {word}, and no file is called that"
                )
            elif word.endswith(".py") or word.split("/")[0] in TOPS - {"runs"}:
                assert any(next(base.glob(word), None) for base in bases), (
                    f"{name} names {word}, which does not exist"
                )


@pytest.mark.parametrize("name", NAMES)
def test_no_page_names_a_folder_of_some_machine(name):
    assert not re.search(r"(?<![\w.])/(work|tmp|home|root)\b", text(name))


def readme_examples() -> list[str]:
    return [block for language, block in FENCED.findall(text("README.md")) if language == "python"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(readme_examples())))
def test_the_examples_of_the_readme_run(number, tmp_path, monkeypatch):
    pytest.importorskip("scanpy")
    monkeypatch.chdir(tmp_path)
    exec(compile(readme_examples()[number], f"README example {number}", "exec"), {})


def test_every_decision_has_a_page_that_is_listed():
    folder = ROOT / "docs/decisions"
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([\w-]+\.md)\)", text("docs/decisions/README.md")))
    for page in pages:
        content = (folder / page).read_text("utf-8")
        assert "**Decided.**" in content and "**Why.**" in content, (
            f"{page} does not say what was decided, and why"
        )


def test_every_benchmark_is_listed_with_its_question():
    scripts = {
        path.name
        for path in (ROOT / "benchmarks").glob("*.py")
        if "__main__" in path.read_text("utf-8")
    }
    page = text("benchmarks/README.md")
    assert scripts and not {name for name in scripts if f"benchmarks/{name}" not in page}
