"""What pydantic found wrong, in one sentence for each field, and the field that an unknown name
means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from grn.runtime.errors import Mistakes, nearest

LIKE = 0.7  # how like a name of a field must be to be the one that was meant: many are alike


def mistakes(
    error: ValidationError, schema: type[BaseModel], origins: Mapping[str, str], title: str
) -> Mistakes:
    """An error of one sentence for each field. origins: dotted field -> where it was written, as
    `run.yaml, line 3`.
    """
    grouped: dict[str, list[Any]] = {}
    for each in error.errors(include_url=False):
        grouped.setdefault(_dotted(each["loc"], schema), []).append(each)
    # what is missing may be there, misspelled
    if any(of[0]["type"] == "extra_forbidden" for of in grouped.values()):
        grouped = {field: of for field, of in grouped.items() if of[0]["type"] != "missing"}
    in_order = {field: place for place, field in enumerate(origins)}
    ordered = sorted(grouped, key=lambda field: in_order.get(field, -1))
    lines = [
        f"{_where(field, origins, title)}{_sentence(field, grouped[field], schema)}"
        for field in ordered
    ]
    if len(lines) == 1:
        return Mistakes(lines[0], field=ordered[0])
    return Mistakes(
        "\n".join(
            line.replace("{field}", field) for line, field in zip(lines, ordered, strict=True)
        )
    )


def must_be(problems: Sequence[Any], value: object) -> str:
    """`must be a or b, not c`, of the alternatives that pydantic tried."""
    wanted = dict.fromkeys(
        each["msg"].removeprefix("Input should be ").partition(", unable")[0] for each in problems
    )
    return f"must be {' or '.join(wanted)}, not {shown(value)}"


def shown(value: object) -> str:
    """A value in a sentence: as Python writes it, or by its type where that is long."""
    text = repr(value)
    return (
        text
        if len(text) <= 60 and "\n" not in text
        else f"a value of the type {type(value).__name__}"
    )


def all_fields(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted name of every field and section."""
    for name in section.model_fields:
        yield f"{prefix}{name}"
        if inner := subsection(section, name):
            yield from all_fields(inner, f"{prefix}{name}.")


def subsection(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The section called `name` in `section`; None where it is a single field, or nothing."""
    field = section.model_fields.get(name)
    annotation = field.annotation if field else None
    return (
        annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    )


def _dotted(location: Sequence[int | str], schema: type[BaseModel]) -> str:
    """The field at an error's location, without the names that pydantic adds for the alternatives
    of a union.
    """
    path: list[str] = []
    section: type[BaseModel] | None = schema
    for part in location:
        if section is None:
            break
        path.append(str(part))
        section = subsection(section, str(part))
    return ".".join(path)


def _where(field: str, origins: Mapping[str, str], title: str) -> str:
    while field and field not in origins:
        field = field.rpartition(".")[0]
    where = origins.get(field, title)
    return f"{where}: " if where else ""


def _sentence(field: str, problems: list[Any], schema: type[BaseModel]) -> str:
    first = problems[0]
    match first["type"]:
        case "extra_forbidden":
            return f"{field} is not a field; {_suggestion(field, list(all_fields(schema)))}"
        case "missing":
            return "{field} is missing; give it."
        case "value_error":
            return f"{str(first['ctx']['error']).rstrip('.')}."
        case "model_type" | "model_attributes_type":
            return f"{field} is a section and must hold fields, not {shown(first['input'])}."
    return f"{{field}} {must_be(problems, first['input'])}."


def _suggestion(unknown: str, fields: list[str]) -> str:
    """The field of that name, nearly, in the same section; else in all of them; else the fields of
    the section.
    """
    parent, _, last = unknown.rpartition(".")
    siblings = {
        name.rpartition(".")[2]: name for name in fields if name.rpartition(".")[0] == parent
    }
    every = {name.rpartition(".")[2]: name for name in reversed(fields)}
    for known in (siblings, every):
        if near := nearest(last, known, LIKE):
            return f"did you mean {known[near]}?"
    return f"{parent or 'a configuration'} has the fields {', '.join(siblings)}."
