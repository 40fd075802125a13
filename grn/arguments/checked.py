"""`checked` reads from a function's annotations what its arguments are, and refuses anything else."""

from __future__ import annotations

import ast
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from grn.arguments.kinds import (
    NAMES,
    PATH,
    REFUSED,
    Bound,
    Kind,
    a_text,
    choices_of,
    is_folder,
    is_whole,
    is_word,
    kind_of,
    levels,
    listed,
    parts_of,
    plain,
    shown,
    too_long,
    writable,
)
from grn.errors import ConfigError, DataError, nearest

P = ParamSpec("P")
R = TypeVar("R")
Rule = Callable[[str, Any], Any]
"""The argument's name and a value of a kind that its annotation takes -> the value to hand on; raises a UserError."""


class ArgumentError(ConfigError, TypeError):
    """A call with an argument that a function does not have, without one that it needs, or with one given twice."""


def checked(**rules: Bound | Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose arguments are checked before it is called: by their annotations, and by rules by their names."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        name = _public_name(function)
        parameters = {key: each for key, each in signature.parameters.items() if key != "self"}
        if unknown := set(rules) - set(parameters):
            raise TypeError(f"{name} has rules for {sorted(unknown)}, and no such arguments")
        needed = [
            key for key, each in parameters.items() if each.default is each.empty and each.kind is not each.KEYWORD_ONLY
        ]
        order = f", as in {name}({', '.join(needed)})" if len(needed) > 1 else ""
        arguments = {
            key: Argument(key, str(each.annotation), rules.get(key), each.default, order if key in needed else "")
            for key, each in parameters.items()
        }

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as problem:
                raise ArgumentError(_misfit(name, str(problem), parameters, kwargs)) from None
            for key, value in bound.arguments.items():
                if key in arguments:
                    bound.arguments[key] = arguments[key].taken(value)
            return function(*bound.args, **bound.kwargs)

        call.arguments = arguments  # type: ignore[attr-defined]
        return call

    return decorate


class Argument:
    """One argument of a function: the kinds of its annotation, and its rule. order: how the needed ones are given."""

    def __init__(self, name: str, annotation: str, rule: Bound | Rule | None, default: object, order: str) -> None:
        self.name, self.rule, self.order = name, rule, order
        self.parts = [ast.unparse(part) for part in parts_of(ast.parse(annotation, mode="eval").body)]
        self.optional = "None" in self.parts
        bound = rule if isinstance(rule, Bound) else Bound()
        kinds = {part: kind_of(part, bound) for part in self.parts if part != "None"}
        if wanted := getattr(rule, "wanted", ""):
            for part in kinds:
                if part == "pd.DataFrame" or part.startswith("Mapping"):
                    kinds[part] = Kind(wanted, kinds[part].take)
        if PATH in kinds:  # a text is a path then
            kinds.pop("str", None)
        self.kinds = list(kinds.values())
        self.takes_cells = "AnnData" in self.parts and "pd.DataFrame" not in self.parts and name != "network"
        self.may_be_empty = isinstance(default, (str, tuple)) and not default

    def taken(self, value: object) -> object:
        """The value as the function has it. Raises DataError where cells, tables or files are taken, or ConfigError."""
        if value is None and self.optional:
            return None
        if isinstance(value, (str, list, tuple)) and not len(value) and self.may_be_empty:
            return value
        for kind in self.kinds:
            found = kind.take(value)
            if found is not REFUSED:
                return self.rule(self.name, found) if self.rule and not isinstance(self.rule, Bound) else found
        wanted = listed([kind.words for kind in self.kinds])
        error = DataError if {"AnnData", "Run", "pd.DataFrame", PATH} & set(self.parts) else ConfigError
        if wrong := self._no_names(value):
            raise error(f"{self.name} has {shown(wrong[0])}, which is no name; give a text in its place{self.order}.")
        raise error(f"{self.name} is {shown(value)}; it must be {wanted}{self._advice(value)}{self.order}.")

    def _no_names(self, value: object) -> list[object]:
        """What a dict has where a name belongs."""
        if not isinstance(value, Mapping) or not any(each.startswith("Mapping") for each in self.parts):
            return []
        wrong = [key for key in value if a_text(key) is REFUSED]
        return wrong or [each for each in value.values() if not is_word(plain(each))]

    def _advice(self, value: object) -> str:
        """What a caller may have meant, or which part of a value is wrong, for the end of the sentence."""
        if self.takes_cells and getattr(value, "ndim", 0) == 2:
            return " (make one of it: anndata.AnnData(counts), cells x genes)"
        if levels(value) > 1:
            return f" (its columns have {levels(value)} names each; give them one)"
        if "Axes" in self.parts and type(value).__name__ == "ndarray":
            return " (give one of these axes, as ax[0])"
        if PATH not in self.parts and {"Run", "RunLike"} & set(self.parts) and is_folder(value):
            return f" (open the run with grn.load({os.fspath(value)!r}))"  # type: ignore[call-overload]
        if isinstance(value, str):
            texts = [
                ast.literal_eval(text) for each in self.parts if each.startswith("Lit") for text in choices_of(each)
            ]
            near = nearest(value, texts)
            if near:
                return f" (did you mean {near!r}?)"
            if not value:
                return " that is not empty"
            if PATH in self.parts and too_long(value):
                return " whose names have at most 255 letters"
            return "" if writable(value) else " without null characters and halves of characters"
        if NAMES in self.parts and isinstance(value, Iterable) and getattr(value, "ndim", 1) == 1:
            wrong = [one for one in value if not is_whole(plain(one)) and a_text(one) is REFUSED]
            return f" (it holds {shown(wrong[0])})" if wrong else ""
        return ""


def _public_name(function: Callable[..., Any]) -> str:
    """As a caller writes it: grn.train, grn.plots.network_graph, Run.save."""
    if "." in function.__qualname__:
        return function.__qualname__.removesuffix(".__init__")
    return f"{'grn.plots' if '.plots.' in function.__module__ else 'grn'}.{function.__name__}"


def _misfit(name: str, problem: str, parameters: Mapping[str, inspect.Parameter], given: Mapping[str, object]) -> str:
    """A sentence about a call that does not fit its function. problem: what Python says of it."""
    unknown = [key for key in given if key not in parameters]
    if unknown:
        near = nearest(unknown[0], parameters)
        hint = f"did you mean {near}?" if near else f"it takes {', '.join(parameters)}."
        return f"{name} got an unexpected keyword argument {unknown[0]!r}; {hint}"
    if problem.startswith("missing"):
        return f"{name} is {problem}; give it."
    by_name = [key for key, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    if problem.startswith("too many") and by_name:
        without = [key for key in parameters if key not in by_name]
        words = ", ".join(f"{key}=..." for key in by_name)
        return f"{name} got {problem}; {', '.join(without)} may stand without a name, all else has one: {words}."
    return f"{name} got {problem}; it takes {', '.join(parameters)}."
