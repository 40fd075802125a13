"""Strict YAML for configurations: a key may not be repeated, and texts such as `no` and `12:30` stay texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, SequenceNode

from grn.errors import ConfigError

Lines = dict[str, int]  # dotted key -> line number
MOST = 200_000  # values of a whole file: a list of genes may be long
DEEPEST = 20  # levels of sections and lists; ours has three
KEYS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")  # what a key may be: a name, or << for the keys of another

# Parts of PyYAML's messages, and what to do.
ADVICE = {
    "constructor for the tag": "write plain values, without tags (!)",
    "escape": "write \\ twice, or use single quotes",
    "<block end>": "indent the fields of a section alike",
    "<stream end>": "close its quotes and brackets",
    "expected ':'": "write each field as `name: value`",
    "mapping values": (
        "end the name of a section with a colon, indent the fields of a section alike, and put a text with a colon in "
        "quotes"
    ),
    "\\t": "indent with spaces, not with tabs",
    "document start": "write sections as `data:`, and their fields, indented, below",
    "end of stream": "close its quotes and brackets",
    "another document": "keep one configuration, without lines of ---",
}


# A field and its value without the space between them, which YAML reads as one text.
NO_SPACE = re.compile(r"\s*([a-z_]+):([^\s:/\\][^:]*?)\s*$")


def dump_yaml(values: dict[str, Any]) -> str:
    """YAML text that `parse_yaml`, and any other reader of YAML, reads as the same values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def parse_yaml(text: str, name: str) -> tuple[Any, Lines]:
    """The value of a YAML text and the line of each dotted key. Raises ConfigError, also where a key is repeated."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = dict(_keys(node, name, []))
        return loader.construct_document(node), lines
    except RecursionError:
        raise ConfigError(
            f"{name} is nested too deeply for a configuration; write sections and their fields."
        ) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number with thousands of digits
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = _line_of(problem, mark.line, text.splitlines()) if mark else 0
        where = f", line {line + 1}" if mark and "\n" in text else ""
        problem = "a number has thousands of digits" if problem.startswith("Exceeds the limit") else problem
        advice = next((advice for part, advice in ADVICE.items() if part in problem), "correct it")
        advice = without_space("".join(text.splitlines()[line : line + 1])) or advice
        raise ConfigError(f"{name}{where}: this is not valid YAML ({problem}); {advice}.") from error
    finally:
        if loader is not None:
            loader.dispose()


def without_space(line: str) -> str | None:
    """What to do about a field whose value follows the colon without a space; None for other lines."""
    found = NO_SPACE.match(line)
    return f"put a space after the colon, as `{found[1]}: {found[2]}`" if found else None


def _line_of(problem: str, line: int, lines: list[str]) -> int:
    """The line, from 0, that is to be mended, where PyYAML names `line`: a text without `: ` goes on into the next
    line, and only there is found to be no field."""
    if "mapping values" not in problem and "expected ':'" not in problem:
        return line
    above = next((each for each in range(line - 1, -1, -1) if lines[each].strip()), line)
    no_field = not re.search(r":(\s|$)|^\s*(-|#)", lines[above])
    return above if no_field else line


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads plain scalars as YAML 1.2 does.

    In YAML 1.1, PyYAML's default, `no` is false, `1e-3` is a text and `12:30` is the number 750: gene lists and
    learning rates would change their meaning silently.
    """


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else."""


# Texts of other classes, as the choices of an option, are written as the texts that they are.
_Dumper.add_multi_representer(str, lambda dumper, text: dumper.represent_str(str(text)))

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
# SafeLoader reads integers with a leading zero as octal.
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))


def _keys(node: Node, name: str, seen_nodes: list[None], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Each dotted key of a document with its line. Raises ConfigError for a key that is written twice."""
    if prefix.count(".") > DEEPEST:  # an anchor may hold itself
        raise RecursionError
    seen_nodes.append(None)
    if len(seen_nodes) > MOST:  # anchors of anchors make billions of nodes out of ten lines
        raise ConstructorError(
            problem=f"it has more than {MOST} values, anchors followed", problem_mark=node.start_mark
        )
    if isinstance(node, SequenceNode):
        for child in node.value:
            yield from _keys(child, name, seen_nodes, f"{prefix}.")
    if not isinstance(node, MappingNode):
        return
    seen: Lines = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key.value, str):
            raise ConstructorError(problem="a list or mapping cannot be a key", problem_mark=key.start_mark)
        if key.tag not in KEYS:
            raise ConstructorError(
                problem=f"the key {key.value or 'null'!r} is not the name of a field", problem_mark=key.start_mark
            )
        if not key.value.isprintable() or key.value != key.value.strip():
            raise ConfigError(f"{name}, line {line}: the key {key.value!a} has unusual spaces in it; type it again.")
        if "." in key.value and not prefix and name.endswith((".yaml", ".yml")):
            section, _, last = key.value.partition(".")
            raise ConfigError(
                f"{name}, line {line}: {key.value} has a dot in it; write a line `{section}:` and, indented below it, "
                f"`{last}: ...`."
            )
        field = f"{prefix}{key.value}"
        if field in seen:
            raise ConfigError(
                f"{name}, line {line}: {field} was already set in line {seen[field]}; keep one of the two."
            )
        seen[field] = line
        yield field, line
        yield from _keys(value, name, seen_nodes, f"{field}.")
