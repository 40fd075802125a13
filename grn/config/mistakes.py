"""What is wrong with a configuration: one sentence for each mistake, which begins with where the value was written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from grn.config.fields import all_fields, subsection, unknown_field
from grn.config.schema import Config
from grn.config.strict_yaml import without_space

Origins = dict[str, str]  # dotted field -> where it was written, as the beginning of a sentence
OVERRIDE = ("--set ", "set ")  # how the origins begin of fields that were set on the command line or from Python


def sentences(error: ValidationError, origins: Origins, name: str) -> str:
    """One line for each mistake that pydantic found. name: of the configuration, for fields without an origin."""
    problems = dict(_problems(error))
    for field in [field for field, problem in problems.items() if problem.startswith(f"{field} is missing")]:
        if any(" is not a field; " in problem for problem in problems.values()):
            del problems[field]  # it may be there, under a wrong name
    lines = [f"{_origin(field, problem, origins, name)}{problem.rstrip('.')}" for field, problem in problems.items()]
    lines.sort(key=_line_number)
    return "\n".join(line if line.endswith("?") else f"{line}." for line in lines)


def _line_number(sentence: str) -> int:
    """The line of the file that a sentence begins with; 0 where it is of no line."""
    found = re.match(r"[^:]*, line (\d+): ", sentence)
    return int(found[1]) if found else 0


def shown(value: Any) -> str:
    """A value as messages show it: as Python writes it, null for None, cut after 60 characters."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]} …"


def _origin(field: str, problem: str, origins: Origins, name: str) -> str:
    """Where the mistake was made: in the overrides that the sentence names, else where `field` was written.

    Where `field` was not written: in an override of a field inside it, else in the innermost section around it.
    """
    prefix = f"{field}." if field else ""
    inside = {
        each.removeprefix(prefix): origin
        for each, origin in origins.items()
        if each.startswith(prefix) and origin.startswith(OVERRIDE)
    }
    named = [origin for each, origin in inside.items() if re.search(rf"\b{re.escape(each)}\b", problem)]
    if named:
        said = [origin.removesuffix(": ") for origin in named]
        if all(origin.startswith("set ") for origin in said):
            return f"set {', '.join(origin.removeprefix('set ') for origin in said)}: "
        return " ".join(said) + ": "
    if not field:
        return f"{name}: "
    last = list(inside.values())[-1:]
    return origins.get(field) or "".join(last) or _origin(field.rpartition(".")[0], problem, origins, name)


def _problems(error: ValidationError) -> Iterator[tuple[str, str]]:
    """(dotted field, sentence) of each mistake; the alternatives of a union share one sentence."""
    grouped: dict[str, list[Any]] = {}
    for each in error.errors(include_url=False):
        grouped.setdefault(_dotted(each["loc"]), []).append(each)
    for field, mistakes in grouped.items():
        yield field, _sentence(field, mistakes)


def _dotted(location: tuple[int | str, ...]) -> str:
    """The field at an error's location, without the names that pydantic adds for the alternatives of a union."""
    path: list[str] = []
    section: type[BaseModel] | None = Config
    for part in location:
        if section is None:
            break
        path.append(str(part))
        section = subsection(section, str(part))
    return ".".join(path)


def _sentence(field: str, mistakes: list[dict[str, Any]]) -> str:
    first = mistakes[0]
    match first["type"]:
        case "extra_forbidden":
            return unknown_field(field)
        case "missing":
            return f"{field} is missing; set it in the file or with --set {field}=VALUE"
        case "model_type" | "model_attributes_type":
            inside = [name for name in all_fields() if name.startswith(f"{field}.")]
            name, equals, value = str(first["input"]).partition("=")
            as_yaml = f"write `{name.strip()}: {value.strip()}`, with a colon" if equals else ""
            as_yaml = as_yaml or without_space(str(first["input"])) or ""
            return (
                f"{field} is a section, not {shown(first['input'])}; "
                f"{as_yaml or f'set its fields, for example {inside[0]}'}"
            )
        case "none_as_text":
            what = f"{shown(first['input'])}, which is a text like any other" if first["input"].strip() else "empty"
            return f"{field} is {what}; set it to null (None in Python) for none"
        case "value_error":
            problem = str(first["ctx"]["error"])
            return problem if not field or field in problem else f"{field}: {problem}"
    items = [each for each in mistakes if isinstance(each["loc"][-1], int)]
    if items:
        position = items[0]["loc"][-1] + 1
        return f"item {position} of {field} must be {_expected(items[0])}, not {shown(items[0]['input'])}"
    # Of the alternatives of a union, the one that accepts the value's type explains best what is wrong with the value.
    nearest = [each for each in mistakes if each["type"] in _BOUNDS or each["type"] == "int_from_float"] or mistakes
    return f"{field} must be {' or '.join(dict.fromkeys(map(_expected, nearest)))}, not {shown(nearest[0]['input'])}"


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text (in quotes, if it looks like something else)",
    "list": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def _expected(mistake: dict[str, Any]) -> str:
    """What a field takes, from pydantic's type of the error."""
    error_type = mistake["type"]
    if error_type in ("too_short", "too_long"):
        least, most = (mistake["ctx"].get(limit) for limit in ("min_length", "max_length"))
        return "a list that is not empty" if least == 1 else f"a list of {least or most} values"
    if error_type == "literal_error":
        return mistake["ctx"]["expected"].replace("'", "")
    if error_type in _BOUNDS:
        key, bound = _BOUNDS[error_type]
        limit = mistake["ctx"][key]
        return f"{bound} {limit if isinstance(limit, int) else format(limit, 'g')}"
    base = error_type.split("_")[0]
    if base in _TYPES and error_type.endswith(("_type", "_parsing", "_from_float")):
        return _TYPES[base]
    return mistake["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
