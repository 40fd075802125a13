"""Configurations: found by name, read strictly, changed field by field, written back whole."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grn.config.fields import LIKE, subsection
from grn.config.mistakes import Origins, sentences, shown
from grn.config.schema import Config
from grn.config.strict_yaml import dump_yaml, parse_yaml
from grn.errors import ConfigError, Mistakes, nearest, one_line

SIMULATED = "data.simulated."
FILES = ("data.path", "data.genes", "data.regulators", "network.prior")  # fields that may name a file or a folder


def shipped_configs() -> Path:
    """The folder of the configurations that come with grn: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def find_config(name: str | os.PathLike[str]) -> Path:
    """The file `name` in the working folder, else among the shipped configurations; `.yaml` may be left out.

    Raises ConfigError, which names the nearest shipped configuration.
    """
    wanted = Path(name)
    names = [wanted] if wanted.suffix in {".yaml", ".yml"} else [wanted, Path(f"{name}.yaml")]
    folders = [Path(), shipped_configs()]
    for candidate in (folder / each for folder in folders for each in names):
        if candidate.is_file():
            return candidate
    if os.path.lexists(wanted):
        what = "a folder" if wanted.is_dir() else "a link to nothing" if wanted.is_symlink() else "a pipe or device"
        raise ConfigError(f"{str(name)!r} is {what}, and a configuration is a text file (YAML); give one.")
    shipped = sorted(path.name for path in shipped_configs().glob("*.yaml"))
    known = {name: name for name in shipped} | {path.name: str(path) for path in wanted.parent.glob("*.y*ml")}
    near = nearest(wanted.name, known, LIKE) or nearest(f"{wanted.name}.yaml", known, LIKE)
    hint = f"did you mean {known[near]}?" if near else f"those are {', '.join(shipped)}."
    raise ConfigError(f"There is no configuration {str(name)!r} in this folder or among the shipped ones; {hint}")


def load_config(name: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """The configuration `name` with each override `section.field=value` applied. Raises ConfigError."""
    values, origins, title = _read_config(name)
    for override in overrides:
        field, value = parse_override(override)
        _set_field(values, origins, field, value, f"--set {_cut(override)}: ")
    return build_config(values, origins, title)


def change_config(base: Config | str | os.PathLike[str] | None, changes: Mapping[str, Any]) -> Config:
    """`base` with fields changed by their dotted names, `{"trainer.max_steps": 50}`. Raises ConfigError.

    base: a configuration, the name of one (see find_config), or None for the defaults.
    """
    values: dict[str, Any] = {}
    origins: Origins = {}
    title = "configuration"
    if isinstance(base, Config):
        values = base.model_dump()
    elif base is not None:
        values, origins, title = _read_config(base)
    for field, value in changes.items():
        _set_field(values, origins, field, value, f"set {field}={shown(value)}: ")
    changed = build_config(values, origins, title)
    refuse_unused(changed, changes)
    return changed


def refuse_unused(config: Config, fields: Iterable[str]) -> None:
    """Raises ConfigError where one of the fields that a user set is of simulated cells, and the cells are others."""
    own = [field for field in fields if f"{field}.".startswith(SIMULATED)]
    if own and not config.data.path.startswith("simulated:"):
        raise ConfigError(
            f"{own[0]} is of simulated cells, and other cells are given; leave it out, or give simulated: as the cells."
        )


def refuse_started_elsewhere(config: Config, name: str | os.PathLike[str], given: Container[str] = ()) -> None:
    """Raises ConfigError where the cells, or a list or table beside them, are not in the folder that a command was
    started in, but in that of the configuration `name`, or above it.

    given: fields that do not come from the configuration.
    """
    home = find_config(name).resolve().parent
    for field in (each for each in FILES if each not in given):
        section, _, last = field.partition(".")
        path = getattr(getattr(config, section), last)
        a_word = field != "data.path" and not (os.path.splitext(str(path))[1] or os.sep in str(path))
        if not isinstance(path, str) or ":" in path or a_word:
            continue
        if folder := folder_with(Path(path), home):
            raise ConfigError(
                f"{path} does not exist, seen from the folder in which this command was started; start it in {folder}, "
                f"or set {field} to {folder / path}."
            )


def folder_with(path: Path, start: Path) -> Path | None:
    """The folder, `start` or one above it, in which a relative path exists, for messages; None where none has it."""
    if path.is_absolute() or path.exists():
        return None
    return next((above for above in (start, *start.parents) if (above / path).exists()), None)


def _read_config(name: str | os.PathLike[str]) -> tuple[dict[str, Any], Origins, str]:
    """The values of a configuration file, where each was written, and the file's name in messages."""
    path = find_config(name)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8; save it as UTF-8, or give a YAML file.") from None
    except OSError as error:
        refused = error.strerror or one_line(error)
        raise ConfigError(
            f"{path} cannot be read ({refused.lower()}); change its permissions, or give another file."
        ) from error
    title = path.name if path.parent == shipped_configs() else str(path)
    values, lines = parse_yaml(text, title)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{title} holds a {_type_name(values)} where sections are expected; write `data:` and, indented below it, "
            "`path: ...`."
        )
    return values, {field: f"{title}, line {line}: " for field, line in lines.items()}, title


def build_config(values: dict[str, Any], origins: Origins | None = None, title: str = "configuration") -> Config:
    """A checked configuration from plain values. Raises Mistakes, with a line for each (see mistakes.py)."""
    try:
        return Config.model_validate(_fill_empty_sections(values, Config))
    except ValidationError as error:
        raise Mistakes(sentences(error, origins or {}, title)) from error


def dump_config(config: Config) -> str:
    """YAML with every field of `config`; reading it gives the same configuration."""
    return dump_yaml(config.model_dump())


def parse_override(override: str) -> tuple[str, Any]:
    """`trainer.max_epochs=5` as a dotted field and a value, which is read as YAML. Raises ConfigError."""
    field, equals, text = override.partition("=")
    field, text = field.strip(), text.strip()
    if not equals or not field.strip("."):
        raise ConfigError(f"--set {override} is not FIELD=VALUE; write for example --set trainer.max_epochs=5.")
    if (text.endswith(":") or ": " in text) and not text.startswith("{"):
        # `simulated:` is a source of cells; YAML would read a mapping.
        return field, text
    return field, parse_yaml(text, f"--set {_cut(override)}")[0]


def _cut(override: str) -> str:
    """As messages show it: a list of genes or a number may have thousands of letters."""
    return override if len(override) <= 200 else f"{override[:197]} …"


def _set_field(values: dict[str, Any], origins: Origins, field: str, value: Any, origin: str) -> None:
    """Sets `field` in `values`, and makes `origin` the place that messages about it name."""
    *sections, last = field.split(".")
    for inside in [each for each in origins if each == field or each.startswith(f"{field}.")]:
        del origins[inside]
    origins[field] = origin
    above: type[BaseModel] | None = Config
    for depth, section in enumerate(sections, start=1):
        above = subsection(above, section) if above and section in above.model_fields else None
        if values.get(section) is None:
            values[section] = {}
        values = values[section]
        if not isinstance(values, dict):
            if above is not None:  # the file has a value in the place of a section: its check names the file and line
                return
            raise ConfigError(f"{origin}{'.'.join(sections[:depth])} is not a section and has no fields; set it alone.")
    values[last] = value


def _fill_empty_sections(values: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """A section that is left out, or whose every line is commented out (null), means its defaults."""
    filled = dict(values)
    for name in section.model_fields:
        if inner := subsection(section, name):
            value = {} if filled.get(name) is None else filled[name]
            filled[name] = _fill_empty_sections(value, inner) if isinstance(value, dict) else value
    return filled


def _type_name(value: Any) -> str:
    return "list" if isinstance(value, list) else "text" if isinstance(value, str) else "single value"
