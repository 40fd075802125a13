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
BASES = {  # where a page may count its paths from, besides the root and its own folder
    "ARCHITECTURE.md": ("grn", "kernels/flashsign"),
    "kernels/README.md": ("kernels/flashsign", "kernels/flashsign/triton"),
}


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def prose(name: str) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", text(name))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    found: list[str] = []
    for heading in HEADING.findall(FENCED.sub("", page.read_text("utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return {*found}


@cache
def tracked_names() -> set[str]:
    folders = ("grn", "kernels", "tests", "benchmarks", "docs", "configs", "data", "notebooks")
    return {path.name for folder in folders for path in (ROOT / folder).rglob("*")} | TOPS


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name):
    page = ROOT / name
    for target in LINK.findall(prose(name)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists() and (not anchor or anchor in anchors(there)), target


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_is_named_exists(name):
    bases = [ROOT, (ROOT / name).parent, *(ROOT / base for base in BASES.get(name, ()))]
    for code in CODE.findall(prose(name)):
        for word in filter(A_FILE.fullmatch, code.split()):
            if "/" not in word:
                known = word.endswith((".py", ".md")) and "*" not in word and word == code
                assert not known or word in tracked_names(), word
            elif word.endswith(".py") or word.split("/")[0] in TOPS - {"runs"}:
                assert any(next(base.glob(word), None) for base in bases), word


@pytest.mark.parametrize("name", NAMES)
def test_no_page_names_a_folder_of_some_machine(name):
    assert not re.search(r"(?<![\w.])/(work|tmp|home|root)\b", text(name))


EXAMPLES = [code for language, code in FENCED.findall(text("README.md")) if language == "python"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_readme_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[number], f"README example {number}", "exec"), {})


def test_every_decision_has_a_page_that_is_listed():
    pages = {path.name for path in (ROOT / "docs/decisions").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([\w-]+\.md)\)", text("docs/decisions/README.md")))
    for page in pages:
        content = text(f"docs/decisions/{page}")
        assert "**Decided.**" in content and "**Why.**" in content, page


def test_every_benchmark_is_listed_with_its_question():
    page = text("benchmarks/README.md")
    for script in (ROOT / "benchmarks").glob("*.py"):
        run = "__main__" in script.read_text("utf-8")
        assert not run or f"benchmarks/{script.name}" in page, script.name
