"""Errors of configurations: one sentence for each field that pydantic refuses, with the field that
a misspelled name probably means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from grn.runtime.errors import Mistakes, nearest

LIKE = 0.7  # similarity above which a field is suggested; names of fields are often alike


def mistakes(
    error: ValidationError, schema: type[BaseModel], origins: Mapping[str, str], title: str
) -> Mistakes:
    """Return the error to raise, with one sentence for each wrong field.

    error: of pydantic.
    schema: of the whole configuration.
    origins: the place where each dotted field was written, for example `run.yaml, line 3`.
    title: the place of a field that `origins` does not have.
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
    """Return `must be a or b, not c`.

    problems: pydantic's, one for each kind of value that it tried.
    value: the one that was given.
    """
    wanted = dict.fromkeys(
        each["msg"].removeprefix("Input should be ").partition(", unable")[0] for each in problems
    )
    return f"must be {' or '.join(wanted)}, not {shown(value)}"


def shown(value: object) -> str:
    """Return a value as Python writes it or, where that is long, the name of its type."""
    text = repr(value)
    return (
        text
        if len(text) <= 60 and "\n" not in text
        else f"a value of the type {type(value).__name__}"
    )


def all_fields(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every field and section within a section.

    prefix: of these names, with a dot at its end.
    """
    for name in section.model_fields:
        yield f"{prefix}{name}"
        if inner := subsection(section, name):
            yield from all_fields(inner, f"{prefix}{name}.")


def subsection(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the section `name` within a section; None where that is a single field, or is not
    there.
    """
    field = section.model_fields.get(name)
    annotation = field.annotation if field else None
    return (
        annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    )


def _dotted(location: Sequence[int | str], schema: type[BaseModel]) -> str:
    """Return the dotted field of an error's location, without the names that pydantic adds for the
    alternatives of a union.
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
    """Return the place where a field, or else the section around it, was written, as the beginning
    of a sentence.
    """
    while field and field not in origins:
        field = field.rpartition(".")[0]
    where = origins.get(field, title)
    return f"{where}: " if where else ""


def _sentence(field: str, problems: list[Any], schema: type[BaseModel]) -> str:
    """Return the sentence about a field; `{field}` in it stands for the field's name."""
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
    """Suggest the field with the most similar name, in the same section or else in any; list the
    fields of the section where none is similar.
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
