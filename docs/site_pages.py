"""Adds to the site what is not a page of docs/: other documents of the repository, files that they
name, and the API.

MkDocs calls these functions while it builds (mkdocs.yml). Links are written for readers of the
repository; here they are pointed at the pages of the site: a document of OUTSIDE at its page, any
other file of the repository at a copy. Examples of docstrings become blocks of code, because mkdocs
would take their `>>>` for quotations.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "data/README.md": "data.md",
    "kernels/README.md": "kernels.md",
}
SOURCES = {page: document for document, page in OUTSIDE.items()}
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for document, page in OUTSIDE.items():
        files.append(
            File.generated(config, page, content=(ROOT / document).read_text(encoding="utf-8"))
        )
    files.append(File.generated(config, "api.md", content=grn_api()))
    files.append(File.generated(config, "flashsign.md", content=flashsign_api()))
    for path in sorted(linked_files(files)):
        files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = page.file.src_uri
    return LINK.sub(lambda link: relative(link[1], source) + (link[2] or ""), markdown)


def linked_files(files: Files) -> set[str]:
    """The files outside of docs/ that pages link to and that are no pages themselves, as paths in
    the repository.
    """
    found = set()
    for page in files.documentation_pages():
        for link in LINK.finditer(page.content_string):
            path = in_repository(link[1], page.src_uri)
            if path not in OUTSIDE and not path.startswith("docs/") and (ROOT / path).is_file():
                found.add(path)
    return found


def in_repository(link: str, page: str) -> str:
    """A link of a page of the site, as a path in the repository."""
    folder = posixpath.dirname(SOURCES.get(page, f"docs/{page}"))
    return posixpath.normpath(posixpath.join(folder, link))


def site_path(path: str) -> str:
    """Where the site has a file of the repository."""
    if path == "docs/README.md" or path == "docs":
        return "index.md"
    if (ROOT / path).is_dir():  # a folder's page, or that of the folder that it is in
        while not (ROOT / path / "README.md").exists():
            path = posixpath.dirname(path)
        path = posixpath.join(path, "README.md")
    return OUTSIDE.get(path) or (
        path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
    )


def relative(link: str, page: str) -> str:
    return posixpath.relpath(site_path(in_repository(link, page)), posixpath.dirname(page) or ".")


def grn_api() -> str:
    """One entry for each name that `import grn` and `grn.plots` offer."""
    import grn

    entries = [f"::: {grn._MODULES[name]}.{name}" for name in grn.__all__ if name in grn._MODULES]
    pictures = [f"::: grn.plots.{grn.plots._FILES[name]}.{name}" for name in grn.plots.__all__]
    return "\n\n".join(
        ["# grn", *entries, "# grn.plots", "All of them: [gallery](gallery.md).", *pictures]
    )


def flashsign_api() -> str:
    """One entry for each function and class of flashsign."""
    import flashsign

    public = {name: getattr(flashsign, name) for name in flashsign.__all__}
    entries = [
        f"::: {value.__module__}.{name}" for name, value in public.items() if callable(value)
    ]
    return "\n\n".join(["# flashsign", "The algebra: [kernels](kernels.md).", *entries])


class FencedExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with a fence around each example: from a line that begins with `>>>` to the next
    empty line.
    """
    lines, inside = [], False
    for line in text.splitlines():
        example = line.lstrip().startswith(">>>")
        if example and not inside:
            lines += ["", "```pycon"]
            inside = True
        if inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line.lstrip() if inside else line)
    return "\n".join([*lines, "```"] if inside else lines)
