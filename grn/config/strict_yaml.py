"""Strict YAML for configurations: a repeated key is an error, and texts such as `no` and `12:30`
stay texts.

ruamel.yaml reads YAML 1.2 and refuses repeated keys, too; it is no dependency yet, and reads
aliases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.error import Mark, MarkedYAMLError
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node

from grn.runtime.errors import ConfigError

Lines = dict[str, int]  # dotted key -> line number


def dump_yaml(values: dict[str, Any]) -> str:
    """Return YAML text that `parse_yaml` and every other reader of YAML read as these values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def parse_yaml(text: str, name: str) -> tuple[Any, Lines]:
    """Return the value of a YAML text, and the line number of each dotted key.

    name: of the text in messages.
    Raises ConfigError, also where a key is repeated.
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = dict(_keys(node))
        return loader.construct_document(node), lines
    # ValueError: a number with thousands of digits
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark and "\n" in text else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        advice = (
            "; write fields as `name: value`, indented alike"
            if isinstance(error, MarkedYAMLError)
            else ""
        )
        raise ConfigError(
            f"{name}{where}: this is not the YAML of a configuration ({problem}){advice}."
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


class _Refused(yaml.YAMLError):
    """The error for valid YAML that a configuration may not hold."""

    def __init__(self, problem: str, mark: Mark) -> None:
        self.problem, self.problem_mark = problem, mark


class _Loader(yaml.SafeLoader):
    """Reads plain scalars as YAML 1.2 does, and refuses aliases: ten lines of them make billions of
    values.

    In YAML 1.1, PyYAML's default, `no` is false, `1e-3` is a text and `12:30` is the number 750:
    gene lists and learning rates would change their meaning silently.
    """

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(AliasEvent):
            mark = self.peek_event().start_mark
            raise _Refused("aliases (*) are not read; write the values out", mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else, and writes no
    aliases.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Texts of other classes, as the choices of an option, are written as the texts that they are.
_Dumper.add_multi_representer(str, lambda dumper, text: dumper.represent_str(str(text)))

_PLAIN_SCALARS = [
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
]
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _PLAIN_SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list(_first))
# SafeLoader reads integers with a leading zero as octal.
_Loader.add_constructor(
    "tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node))
)


def _keys(node: Node, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield each dotted key of a document with its line number. Raises _Refused for a key that is
    no text, or is repeated.
    """
    seen: Lines = {}
    for key, value in node.value if isinstance(node, MappingNode) else []:
        line = key.start_mark.line + 1
        problem = None
        if key.tag != "tag:yaml.org,2002:str":
            problem = "a key is the name of a field"
        elif key.value in seen:
            problem = f"{prefix}{key.value} was already set in line {seen[key.value]}"
        if problem:
            raise _Refused(problem, key.start_mark)
        seen[key.value] = line
        yield f"{prefix}{key.value}", line
        yield from _keys(value, f"{prefix}{key.value}.")
