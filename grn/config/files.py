"""Configuration files: found by name, read strictly, overridden field by field, written back whole."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, SequenceNode

from grn.config.schema import Config
from grn.errors import ConfigError

Lines = dict[str, int]
Origins = dict[str, str]  # where each dotted field was written, as the beginning of a sentence
CHANGED = ("--set ", "set ")  # how the origins of fields begin that were not written in a file


def shipped_configs() -> Path:
    """The folder of the configurations that come with grn: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def find_config(name: str | os.PathLike[str]) -> Path:
    """`name` in the working folder first, then among the shipped configurations; `.yaml` may be left out."""
    wanted = Path(name)
    names = [wanted] if wanted.suffix in {".yaml", ".yml"} else [wanted, Path(f"{name}.yaml")]
    folders = [Path(), shipped_configs()]
    for candidate in (folder / each for folder in folders for each in names):
        if candidate.is_file():
            return candidate
    shipped = sorted(path.name for path in shipped_configs().glob("*.yaml"))
    near = _nearest(wanted.name, shipped) or _nearest(f"{wanted.name}.yaml", shipped)
    hint = f"did you mean {near}?" if near else f"shipped are {', '.join(shipped)}."
    raise ConfigError(f"There is no configuration {str(name)!r} here or among the shipped ones; {hint}")


def load_config(name: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """The configuration `name` with each override `section.field=value` applied. Raises ConfigError."""
    values, origins, shown = _read_config(name)
    for override in overrides:
        field, value = parse_override(override)
        _set_field(values, origins, field, value, f"--set {override}: ")
    return build_config(values, origins, shown)


def change_config(base: Config | str | os.PathLike[str] | None, changes: Mapping[str, Any]) -> Config:
    """`base` with fields changed by their dotted names, `{"trainer.max_steps": 50}`. Raises ConfigError.

    base: a configuration, the name of one (see find_config), or None for the defaults.
    """
    values: dict[str, Any] = {}
    origins: Origins = {}
    shown = "configuration"
    if isinstance(base, Config):
        values = base.model_dump()
    elif base is not None:
        values, origins, shown = _read_config(base)
    for field, value in changes.items():
        _set_field(values, origins, field, value, f"set {field}={_show(value)}: ")
    return build_config(values, origins, shown)


def _read_config(name: str | os.PathLike[str]) -> tuple[dict[str, Any], Origins, str]:
    """The values of a configuration file, where each was written, and the file's name in messages."""
    path = find_config(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}.") from error
    shown = path.name if path.parent == shipped_configs() else str(path)
    values, lines = parse_yaml(text, shown)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{shown} holds a {_kind(values)} where sections such as `data:` are expected.")
    return values, {field: f"{shown}, line {line}: " for field, line in lines.items()}, shown


def build_config(values: dict[str, Any], origins: Origins | None = None, name: str = "configuration") -> Config:
    """Config from plain values; every mistake becomes one sentence, with where the value was written."""
    origins = origins or {}
    try:
        return Config.model_validate(_fill_empty_sections(values, Config))
    except ValidationError as error:
        sentences = [f"{_origin(field, origins, name)}{said.rstrip('.')}" for field, said in _sentences(error)]
        sentences = [said if said.endswith("?") else f"{said}." for said in sentences]
        raise ConfigError("\n".join(sentences)) from error


def dump_config(config: Config) -> str:
    """YAML with every field of `config`; reading it gives the same configuration."""
    return yaml.dump(config.model_dump(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def parse_override(override: str) -> tuple[str, Any]:
    """`trainer.max_epochs=5` as a dotted field and a value, the value read as YAML."""
    field, equals, text = override.partition("=")
    field, text = field.strip(), text.strip()
    if not equals or not field:
        raise ConfigError(f"--set {override} names no field and value; write for example --set trainer.max_epochs=5.")
    if (text.endswith(":") or ": " in text) and not text.startswith("{"):
        # `simulated:` is a source of cells; YAML alone would read a mapping.
        return field, text
    return field, parse_yaml(text, f"--set {override}")[0]


def parse_yaml(text: str, name: str) -> tuple[Any, Lines]:
    """The value of a YAML text and the line of each dotted key. Keys written twice are refused."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = dict(_keys(node, name))
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark and "\n" in text else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{name}{where}: this is not YAML, {problem}.") from error
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Safe YAML, with plain scalars read as YAML 1.2 reads them.

    By YAML 1.1, PyYAML's default, `no` is false, `1e-3` a text and `12:30` the number 750: a gene list or a learning
    rate would change its meaning silently.
    """


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either version of YAML would read as something else than the text it is."""


_PLAIN_SCALARS = [
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
]
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _PLAIN_SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list(_first))
# SafeLoader's own reader of integers takes a leading zero for octal.
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))


def _keys(node: Node, name: str, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Each dotted key of a document with its line; a key written twice is refused."""
    if isinstance(node, SequenceNode):
        for child in node.value:
            yield from _keys(child, name, prefix)
    if not isinstance(node, MappingNode):
        return
    seen: Lines = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key.value, str):
            raise ConstructorError(problem="a list or mapping cannot be a key", problem_mark=key.start_mark)
        field = f"{prefix}{key.value}"
        if field in seen:
            raise ConfigError(
                f"{name}, line {line}: {field} was set in line {seen[field]} before; keep one of the two."
            )
        seen[field] = line
        yield field, line
        yield from _keys(value, name, f"{field}.")


def _set_field(values: dict[str, Any], origins: Origins, field: str, value: Any, origin: str) -> None:
    """Sets `field` in `values`; what is wrong with it is then said of `origin`, not of where it was written before."""
    *sections, last = field.split(".")
    for inside in [each for each in origins if each == field or each.startswith(f"{field}.")]:
        del origins[inside]
    origins[field] = origin
    for depth, section in enumerate(sections, start=1):
        if values.get(section) is None:
            values[section] = {}
        values = values[section]
        if not isinstance(values, dict):
            raise ConfigError(f"{origin}{'.'.join(sections[:depth])} is not a section and has no fields.")
    values[last] = value


def _fill_empty_sections(values: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """A section that is left out, or whose every line is commented out (null), means its defaults."""
    filled = dict(values)
    for name in section.model_fields:
        if inner := _section(section, name):
            value = {} if filled.get(name) is None else filled[name]
            filled[name] = _fill_empty_sections(value, inner) if isinstance(value, dict) else value
    return filled


def _section(parent: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = parent.model_fields.get(name)
    annotation = field.annotation if field else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def all_fields(section: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """The dotted name of every field and section."""
    names = []
    for name in section.model_fields:
        names.append(f"{prefix}{name}")
        if inner := _section(section, name):
            names += all_fields(inner, f"{prefix}{name}.")
    return names


def _sentences(error: ValidationError) -> Iterator[tuple[str, str]]:
    """(dotted field, sentence) for each mistake; the branches of a union make one sentence together."""
    grouped: dict[str, list[Any]] = {}
    for each in error.errors(include_url=False):
        grouped.setdefault(_dotted(each["loc"]), []).append(each)
    for field, mistakes in grouped.items():
        yield field, _sentence(field, mistakes)


def _dotted(location: tuple[int | str, ...]) -> str:
    """The field of an error's location, without pydantic's names for a union's branches."""
    path: list[str] = []
    section: type[BaseModel] | None = Config
    for part in location:
        if section is None:
            break
        path.append(str(part))
        section = _section(section, str(part))
    return ".".join(path)


def _sentence(field: str, mistakes: list[dict[str, Any]]) -> str:
    first = mistakes[0]
    match first["type"]:
        case "extra_forbidden":
            return f"{field} is not a field; {_which_field(field)}"
        case "missing":
            return f"{field} is missing; set it in the file or with --set {field}=VALUE"
        case "model_type" | "model_attributes_type":
            inside = [name for name in all_fields() if name.startswith(f"{field}.")]
            return f"{field} is a section, not {_show(first['input'])}; set its fields, for example {inside[0]}"
        case "value_error":
            said = str(first["ctx"]["error"])
            return said if not field or field in said else f"{field}: {said}"
    items = [each for each in mistakes if isinstance(each["loc"][-1], int)]
    if items:
        position = items[0]["loc"][-1] + 1
        return f"item {position} of {field} must be {_want(items[0])}, not {_show(items[0]['input'])}"
    # A branch of a union that accepts the value's type says best what is wrong with the value.
    nearest = [each for each in mistakes if each["type"] in _BOUNDS or each["type"] == "int_from_float"] or mistakes
    return f"{field} must be {' or '.join(dict.fromkeys(map(_want, nearest)))}, not {_show(nearest[0]['input'])}"


_WANTS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text (in quotes, if it looks like something else)",
    "list": "a list",
}
_BOUNDS = {"greater_than_equal": ("ge", "at least"), "greater_than": ("gt", "above"), "less_than": ("lt", "below")}


def _want(mistake: dict[str, Any]) -> str:
    """What a field takes, from pydantic's name of the error."""
    kind = mistake["type"]
    if kind == "too_short":
        return "a list that is not empty"
    if kind == "literal_error":
        return mistake["ctx"]["expected"].replace("'", "")
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{words} {mistake['ctx'][key]:g}"
    base = kind.split("_")[0]
    if base in _WANTS and kind.endswith(("_type", "_parsing", "_from_float")):
        return _WANTS[base]
    return mistake["msg"].removeprefix("Input should be ").removeprefix("Value error, ")


RENAMED = {"network.members": "regulation.members"}
"""Fields of earlier versions, and what they are called now."""


def _which_field(unknown: str) -> str:
    """The field's new name, the nearest field in the same section, else in any, else the section's fields."""
    if unknown in RENAMED:
        return f"it is called {RENAMED[unknown]} now"
    parent, _, last = unknown.rpartition(".")
    fields = all_fields()
    siblings = [name.rpartition(".")[2] for name in fields if name.rpartition(".")[0] == parent]
    if near := _nearest(last, siblings):
        return f"did you mean {parent}.{near}?" if parent else f"did you mean {near}?"
    elsewhere = {name.rpartition(".")[2]: name for name in reversed(fields)}
    if near := _nearest(last, elsewhere) or _nearest(unknown, fields):
        return f"did you mean {elsewhere.get(near, near)}?"
    return f"{parent or 'a configuration'} has {', '.join(siblings)}"


def _nearest(word: str, words: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(word, list(words), n=1, cutoff=0.7)
    return near[0] if near else None


def _origin(field: str, origins: dict[str, str], name: str) -> str:
    """Where `field` was written: itself, an override inside it, or the innermost section around it."""
    if not field:
        return f"{name}: "
    inside = [said for name, said in origins.items() if name.startswith(f"{field}.") and said.startswith(CHANGED)]
    return origins.get(field) or "".join(inside[-1:]) or _origin(field.rpartition(".")[0], origins, name)


def _show(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "text" if isinstance(value, str) else "single value"
