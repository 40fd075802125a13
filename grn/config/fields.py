"""Names of fields: all that there are, their old names, and the field that an unknown name probably means."""

from __future__ import annotations

from pydantic import BaseModel

from grn.config.schema import Config
from grn.nearest import nearest

LIKE = 0.7  # how like a name of a field must be to be the one that was meant: many are alike

# Names that fields had in earlier versions, and their names today.
RENAMED = {"network.members": "regulation.members"}


def all_fields(section: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """The dotted name of every field and section."""
    names = []
    for name in section.model_fields:
        names.append(f"{prefix}{name}")
        if inner := subsection(section, name):
            names += all_fields(inner, f"{prefix}{name}.")
    return names


def subsection(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The section called `name` in `section`; None where it is a single field, or nothing."""
    field = section.model_fields.get(name)
    annotation = field.annotation if field else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def unknown_field(field: str) -> str:
    """A sentence about a dotted name that is not a field: its new name, the nearest field, or the section's fields."""
    if field in RENAMED:
        return f"{field} is now called {RENAMED[field]}; set {RENAMED[field]} instead"
    return f"{field} is not a field; {_suggestion(field)}"


def _initials(name: str) -> str | None:
    """lr of learning_rate; None of a name of one word."""
    words = name.split("_")
    return "".join(word[0] for word in words if word) if len(words) > 1 else None


def _suggestion(unknown: str) -> str:
    """The nearest field in the same section, else in any other, else the fields of the section."""
    parent, _, last = unknown.rpartition(".")
    fields = all_fields()
    siblings = [name.rpartition(".")[2] for name in fields if name.rpartition(".")[0] == parent]
    if near := nearest(last, siblings, LIKE):
        return f"did you mean {parent}.{near}?" if parent else f"did you mean {near}?"
    if near := next((name for name in siblings if _initials(name) == last), None):
        return f"did you mean {parent}.{near}?" if parent else f"did you mean {near}?"
    elsewhere = {name.rpartition(".")[2]: name for name in reversed(fields)}
    # Names that share the section look alike for that alone.
    others = [name for name in fields if name != parent and (not parent or name.rpartition(".")[0] != parent)]
    if near := nearest(last, elsewhere, LIKE) or nearest(unknown, others, LIKE):
        return f"did you mean {elsewhere.get(near, near)}?"
    return f"{parent or 'a configuration'} has the fields {', '.join(siblings)}"
