"""Options that are in the wrong place, given twice, without their value, or called as other tools call them.

Typer takes the last of two values, and the next option as a value, without a word; its own suggestions go by letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from grn.errors import ConfigError, nearest

LIKE = 0.75  # how like an option's name must be to be the one that was meant

# Options that hold what a field of a configuration holds, where a command has them.
OF_FIELDS = {
    "data.label_key": ("--label", "--labels"),
    "data.counts": ("--counts",),
    "data.gene_key": ("--gene-key",),
    "data.orientation": ("--orientation",),
    "data.regulators": ("--regulators",),
    "network.top_k": ("--top-k",),
    "network.false_discovery": ("--max-q-value",),
    "trainer.seed": ("--seed",),
}


class Given(NamedTuple):
    """An argument as it was typed: of which option it is a value, and which one it stands behind."""

    text: str
    option: Any  # typer's; None for what is no option's value
    behind: Any  # the last option before it


def refuse_mistyped(program: Any, arguments: Sequence[str]) -> None:
    """Raises ConfigError for an option without its value, for one that is given twice, and for values behind it that
    belong to it. What else is wrong, typer finds. program: typer's group of commands."""
    command, rest = _command(program, arguments)
    if command is None:
        return
    given = list(_given(command, rest))
    _refuse_twice(given)
    takes = sum(1 for each in command.params if each.param_type_name == "argument")
    loose = [each for each in given if each.option is None]
    for each in loose if len(loose) > takes else []:
        if each.behind is not None:
            _refuse_behind(each, next(one.text for one in reversed(given) if one.option is each.behind))


def unknown_option(option: str, context: Any) -> str:
    """The sentence about an option that a command does not have, and what to do."""
    command = context.command
    help_ = f"see {context.command_path} --help"
    if not option.startswith("--"):
        return f"no such option: {option}, as all begin with two dashes (--); {help_}."
    below = getattr(command, "commands", {})
    if having := [name for name, each in below.items() if option in _options(each)]:
        return f"{option} is an option of a command and follows it, as in {context.command_path} {having[0]} {option}."
    own = _options(command)
    name = option.lstrip("-").replace("_", "-")
    names = [each.lstrip("-") for each in own]
    begun = [each for each in names if each.startswith(name)]
    near = begun[0] if len(begun) == 1 else nearest(name, names, LIKE)
    if near is None and not below:
        from grn.config.fields import meant_field  # the schema takes time to import

        field = meant_field(name.replace("-", "_"))
        near = next((each.lstrip("-") for each in OF_FIELDS.get(field or "", ()) if each in own), None)
        if near is None and field == "data.path":
            return f"no such option: {option}; cells are given without one; {help_}."
        if near is None and field and "--set" in own:
            return f"no such option: {option}, but there is a field, {field}: --set {field}=VALUE; {help_}."
    return f"no such option: {option}{f', did you mean --{near}' if near else ''}; {help_}."


def _command(program: Any, arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that is called, None where there is none, and what follows its name."""
    rest = list(arguments)
    while hasattr(program, "commands"):
        if not rest or rest[0] not in program.commands:
            return None, rest
        program = program.commands[rest.pop(0)]
    return program, rest


def _options(command: Any) -> dict[str, Any]:
    return {name: each for each in command.params if each.param_type_name == "option" for name in each.opts}


def _given(command: Any, rest: Sequence[str]) -> Iterator[Given]:
    """What was typed, read as typer reads it. Raises ConfigError for an option in the place of another one's value."""
    options = _options(command)
    left = list(rest)
    behind = None
    while left:
        text = left.pop(0)
        name, equals, value = text.partition("=")
        option = options.get(name)
        if text == "--":
            yield from (Given(each, None, None) for each in left)
            return
        if option is None and text.startswith("-") and text != "-":
            return  # typer knows no such option and says so; what follows it may be its value
        if option is None:
            yield Given(text, None, behind)
        elif option.is_flag:
            behind = None
        elif equals:
            behind = option
            yield Given(value, option, None)
        else:
            behind = option
            for value in left[: option.nargs]:
                if value in options or value == "--help":
                    raise ConfigError(
                        f"{name} takes a value, and the option {value} follows it; give the value, or leave {name} out."
                    )
            yield Given(" ".join(left[: option.nargs]), option, None)
            del left[: option.nargs]


def _refuse_twice(given: Sequence[Given]) -> None:
    seen: dict[str, str] = {}
    for each in given:
        if each.option is None or each.option.multiple:
            continue
        name = each.option.opts[0]
        if name in seen:
            raise ConfigError(f"{name} is given twice, as {seen[name]} and as {each.text}; leave one of them out.")
        seen[name] = each.text


def _refuse_behind(loose: Given, value: str) -> None:
    """Raises ConfigError for a value behind that of an option that takes one, where several can be given."""
    name, metavar = loose.behind.opts[0], loose.behind.metavar or ""
    if "=" in metavar and "=" not in value:
        raise ConfigError(
            f"{name} {value} {loose.text} has a space where none may be; write {name} {value}={loose.text}."
        )
    if "," in metavar:
        raise ConfigError(
            f"{name} takes one value, and {loose.text} stands behind {value}; put commas between names, and no spaces: "
            f"{name} {value.rstrip(',')},{loose.text}."
        )
    if loose.behind.multiple and not re.search(r"\s", value):
        raise ConfigError(
            f"{name} takes one value, and {loose.text} stands behind {value}; repeat the option: {name} {value} {name} "
            f"{loose.text}."
        )
