"""Configurations: found by name, read strictly, changed field by field, written back whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grn.config.mistakes import LIKE, mistakes, subsection
from grn.config.schema import Config
from grn.config.strict_yaml import dump_yaml, parse_yaml
from grn.runtime.errors import ConfigError, nearest


def shipped_configs() -> Path:
    """Return the folder of the configurations that come with grn: inside the wheel, or beside the
    package in a checkout.
    """
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def is_configuration(name: object) -> bool:
    """Return whether a name is the name of a configuration and not of cells: it ends in .yaml or
    .yml.
    """
    return isinstance(name, (str, os.PathLike)) and os.fspath(name).lower().endswith(
        (".yaml", ".yml")
    )


def find_config(name: str | os.PathLike[str]) -> Path:
    """Return the path of a configuration: in the working folder, else among the shipped ones.

    name: of the file; `.yaml` may be left out.
    Raises ConfigError, which names the nearest shipped configuration, where there is no such file.
    """
    wanted = Path(name)
    names = [wanted] if wanted.suffix in {".yaml", ".yml"} else [wanted, Path(f"{name}.yaml")]
    for candidate in (folder / each for folder in (Path(), shipped_configs()) for each in names):
        if candidate.is_file():
            return candidate
    shipped = sorted(path.name for path in shipped_configs().glob("*.yaml"))
    known = {name: name for name in shipped} | {
        path.name: str(path) for path in wanted.parent.glob("*.y*ml")
    }
    near = nearest(wanted.name, known, LIKE) or nearest(f"{wanted.name}.yaml", known, LIKE)
    hint = f"did you mean {known[near]}?" if near else f"those are {', '.join(shipped)}."
    raise ConfigError(
        f"There is no configuration {str(name)!r} in this folder or among the shipped ones; {hint}"
    )


def load_config(name: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Config:
    """Read a configuration, and change single fields of it.

    name: see find_config.
    overrides: texts of the form `section.field=value`.
    Raises ConfigError.
    """
    return change_config(name, dict(map(parse_override, overrides)))


def change_config(
    base: Config | str | os.PathLike[str] | None, changes: Mapping[str, Any]
) -> Config:
    """Return a configuration with some fields changed.

    base: a configuration, the name of one (see find_config), or None for the defaults. It is not
        changed itself.
    changes: new values by dotted name, for example `{"trainer.max_steps": 50}`.
    Raises ConfigError.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    title = ""
    if isinstance(base, Config):
        values = base.model_dump()
    elif base is not None:
        values, origins, title = _read_config(base)
    for field, value in changes.items():
        *sections, last = field.split(".")
        inside = values
        for section in sections:
            inner = inside.get(section)
            inside[section] = inner = inner if isinstance(inner, dict) else {}
            inside = inner
        inside[last] = value
        origins = {
            each: origin
            for each, origin in origins.items()
            if not f"{each}.".startswith(f"{field}.")
        }
        origins[field] = ""
    try:
        return Config.model_validate(_fill_empty_sections(values, Config))
    except ValidationError as error:
        raise mistakes(error, Config, origins, title) from error


def _read_config(name: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str], str]:
    """Return the values of a configuration file, the place where each was written (by dotted
    name, for example `run.yaml, line 3`), and the name of the file in messages.
    """
    path = find_config(name)
    title = path.name if path.parent == shipped_configs() else str(path)
    # YAML has no surrogates
    values, lines = parse_yaml(path.read_text("utf-8", errors="surrogateescape"), title)
    if not isinstance(values, dict | None):
        raise ConfigError(
            f"{title} has no sections; write `data:` and, indented below it, `path: ...`."
        )
    origins = {field: f"{title}, line {line}" for field, line in lines.items()}
    return values or {}, origins, title


def dump_config(config: Config) -> str:
    """Return YAML with every field; reading it gives an equal configuration."""
    return dump_yaml(config.model_dump())


def parse_override(override: str) -> tuple[str, Any]:
    """Split `trainer.max_epochs=5` into the dotted field and its value, which is read as YAML.

    Raises ConfigError.
    """
    field, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not field:
        raise ConfigError(
            f"--set {override} is not FIELD=VALUE; write for example --set trainer.max_epochs=5."
        )
    if (text.endswith(":") or ": " in text) and not text.startswith("{"):
        return field, text  # `simulated:` is a source of cells; YAML would read a mapping
    return field, parse_yaml(text, f"--set {override[:200]}")[0]


def _fill_empty_sections(values: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """Return the values with {} for each section that is missing or null, so that it gets its
    defaults. A section is null where every line of it is commented out.
    """
    filled = dict(values)
    for name in section.model_fields:
        if inner := subsection(section, name):
            value = {} if filled.get(name) is None else filled[name]
            filled[name] = _fill_empty_sections(value, inner) if isinstance(value, dict) else value
    return filled
