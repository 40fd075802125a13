"""Examples of docstrings as blocks of code on the site: mkdocs would take their `>>>` for quotations."""

from __future__ import annotations

from typing import Any

import griffe


class FencedExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with a fence around each example: from a line that begins with `>>>` to the next empty line."""
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
