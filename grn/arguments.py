"""Arguments of public functions: `checked` reads what each takes from its annotation, and refuses anything else.

A new function gets the checks by its annotations; bounds of numbers and what a table must hold are rules by name:

    @checked(top=Bound(1), density=Bound(0, 1))
    def picture(table: pd.DataFrame, density: float, *, top: int = 10) -> Axes: ...

An annotation with a name that is not in KINDS fails when the module is imported. Values are handed on in one form,
whatever library they come from: numbers and texts of NumPy and pandas as those of Python, names as a list.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from grn.errors import ConfigError, DataError

P = ParamSpec("P")
R = TypeVar("R")
Rule = Callable[[str, Any], Any]
"""The argument's name and a value of a kind that its annotation takes -> the value to hand on; raises a UserError."""

REFUSED = object()
"""What a kind answers where a value is not of it."""
LARGEST = 2**63 - 1
NAMES, PATH = "Sequence[str]", "os.PathLike[str]"


class ArgumentError(ConfigError, TypeError):
    """A call with an argument that a function does not have, without one that it needs, or with one given twice."""


@dataclass(frozen=True)
class Bound:
    """Least and most of a number; None: no bound."""

    least: float | None = None
    most: float | None = None

    def words(self) -> str:
        if self.least is not None and self.most is not None:
            return f" from {self.least:.15g} to {self.most:.15g}"
        if self.least is not None:
            return f" of at least {self.least:.15g}"
        return "" if self.most is None else f" of at most {self.most:.15g}"

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


SEED = Bound(0, 2**32 - 1)


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
        self.parts = [ast.unparse(part) for part in _parts(ast.parse(annotation, mode="eval").body)]
        self.optional = "None" in self.parts
        bound = rule if isinstance(rule, Bound) else Bound()
        kinds = {part: _kind(part, bound) for part in self.parts if part != "None"}
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
        wanted = _listed([kind.words for kind in self.kinds])
        error = DataError if {"AnnData", "Run", "pd.DataFrame", PATH} & set(self.parts) else ConfigError
        raise error(f"{self.name} is {shown(value)}; it must be {wanted}{self._advice(value)}{self.order}.")

    def _advice(self, value: object) -> str:
        """What a caller may have meant, or which part of a value is wrong, for the end of the sentence."""
        if self.takes_cells and getattr(value, "ndim", 0) == 2:
            return " (make one of it: anndata.AnnData(counts), cells x genes)"
        if "Axes" in self.parts and type(value).__name__ == "ndarray":
            return " (give one of these axes, as ax[0])"
        if isinstance(value, str):
            texts = [ast.literal_eval(text) for each in self.parts if each.startswith("Lit") for text in _choices(each)]
            near = nearest(value, texts)
            if near:
                return f" (did you mean {near!r}?)"
            if not value:
                return " that is not empty"
            return "" if _writable(value) else " without null characters and halves of characters"
        if isinstance(value, Mapping) and any(each.startswith("Mapping") for each in self.parts):
            wrong = [key for key in value if _text(key) is REFUSED]
            wrong = wrong or [each for each in value.values() if not _is_word(_plain(each))]
            return f" (it has {shown(wrong[0])}, which is no name)" if wrong else ""
        if NAMES in self.parts and isinstance(value, Iterable) and getattr(value, "ndim", 1) == 1:
            wrong = [one for one in value if not _is_whole(_plain(one)) and _text(one) is REFUSED]
            return f" (it holds {shown(wrong[0])})" if wrong else ""
        return ""


@dataclass(frozen=True)
class Kind:
    """words: what it is called in a message.   take: a value -> the value in one form, or REFUSED."""

    words: str
    take: Callable[[object], object]


def shown(value: object) -> str:
    """A value in a sentence: as Python writes it, or by its type where that would be long."""
    value = _plain(value)
    of_its_type = f"of the type {type(value).__name__}"
    if value is not None and not isinstance(value, (str, bytes, Real, list, tuple, set, dict)):
        return of_its_type
    try:
        text = repr(value)
    except Exception:  # numbers of very many digits, and lists of what cannot be written
        return of_its_type
    if isinstance(value, str) and len(text) > 60:
        return f"a text of {len(value)} characters"
    return text if len(text) <= 60 and "\n" not in text and " at 0x" not in text else of_its_type


def nearest(name: object, known: Iterable[object]) -> str | None:
    """The name among the known ones that is most like this one, whatever its case; None where none is like it."""
    of_folded = {str(each).casefold(): str(each) for each in known}
    near = difflib.get_close_matches(str(name).casefold(), list(of_folded), n=1)
    return of_folded[near[0]] if near else None


def as_path(value: object, name: str) -> Path:
    """`value`, if it can be a path. name: of the argument, in messages. Raises DataError."""
    found = _path(value)
    if found is REFUSED:
        raise DataError(f"{name} is {shown(value)}; it must be a path.")
    return Path(str(found))


def _plain(value: object) -> object:
    """A number of NumPy, or an array without dimensions, as a number of Python; all else as it is."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        try:
            return value.item()
        except Exception:
            return value
    return value


def _text(value: object) -> object:
    value = _plain(value)
    return str(value) if isinstance(value, str) and value and _writable(value) else REFUSED


def _writable(text: str) -> bool:
    """Whether a text can be a name or a path: without null characters and halves of characters."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _path(value: object) -> object:
    if not isinstance(value, (str, os.PathLike)):
        return REFUSED
    text = os.fspath(value)
    # What is no text in a file's name, Python writes as halves of characters; such names are real.
    return value if isinstance(text, str) and text and "\0" not in text else REFUSED


def _whole(bound: Bound) -> Kind:
    limits = bound if bound.most is not None else Bound(bound.least, LARGEST)

    def take(value: object) -> object:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, Integral) or not limits.holds(int(value)):
            return REFUSED
        return int(value)

    return Kind(f"a whole number{bound.words()}", take)


def _number(bound: Bound) -> Kind:
    def take(value: object) -> object:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, Real):
            return REFUSED
        try:
            number = float(value)
        except OverflowError:
            return REFUSED
        return number if math.isfinite(number) and bound.holds(number) else REFUSED

    return Kind(f"a number{bound.words()}", take)


def _truth(value: object) -> object:
    value = _plain(value)
    return value if isinstance(value, bool) else REFUSED


def _names(value: object) -> object:
    """Names as a list. Whole numbers are names, too: AnnData calls genes 0, 1, ... that have none."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable) or hasattr(value, "obs"):
        return REFUSED
    if getattr(value, "ndim", 1) != 1:
        return REFUSED
    each = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
    names = [str(_plain(one)) if _is_whole(_plain(one)) else _text(one) for one in each]
    return names if names and REFUSED not in names else REFUSED


def _is_word(value: object) -> bool:
    """Whether a value is a text, true or false, or a number: what a label may be; nan is none."""
    return isinstance(value, (str, Real)) and value == value


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _two_names(value: object) -> object:
    names = REFUSED if isinstance(value, (set, frozenset)) else _names(value)
    return tuple(names) if isinstance(names, list) and len(set(names)) == len(names) == 2 else REFUSED


def _mapping(of_texts: bool) -> Callable[[object], object]:
    def take(value: object) -> object:
        if _is_a(value, "pandas", "Series"):
            value = value.to_dict()  # type: ignore[attr-defined]
        if not isinstance(value, Mapping) or any(_text(key) is REFUSED for key in value):
            return REFUSED
        if not of_texts:
            return {str(key): each for key, each in value.items()}
        if not all(_is_word(_plain(each)) for each in value.values()):
            return REFUSED
        return {str(key): str(_plain(each)) for key, each in value.items()}

    return take


def _is_a(value: object, module: str, name: str) -> bool:
    """Whether a value is of this class. A class whose module nobody has imported has no instances."""
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and isinstance(value, found)


def _instance(words: str, module: str, name: str) -> Kind:
    return Kind(words, lambda value: value if _is_a(value, module, name) else REFUSED)


def _run_like(value: object) -> object:
    return value if all(hasattr(type(value), name) for name in ("edges", "network", "folder")) else REFUSED


KINDS: dict[str, Kind] = {
    "str": Kind("a text", _text),
    "bool": Kind("True or False", _truth),
    PATH: Kind("a path", _path),
    NAMES: Kind("a list of one or more names", _names),
    "tuple[str, str]": Kind("two different names", _two_names),
    "AnnData": _instance("an AnnData", "anndata", "AnnData"),
    "pd.DataFrame": _instance("a table", "pandas", "DataFrame"),
    "Run": _instance("a run", "grn.api.run", "Run"),
    "RunLike": Kind("a run", _run_like),
    "SignedNetwork": _instance("a network (run.network)", "grn.network.signed_network", "SignedNetwork"),
    "Config": _instance("a configuration", "grn.config.schema", "Config"),
    "Axes": _instance("axes of matplotlib", "matplotlib.axes", "Axes"),
}


def _kind(part: str, bound: Bound) -> Kind:
    if part == "int":
        return _whole(bound)
    if part == "float":
        return _number(bound)
    if part.startswith("Literal["):
        texts = [ast.literal_eval(text) for text in _choices(part)]
        return Kind(_listed([repr(text) for text in texts]), lambda value: value if _text(value) in texts else REFUSED)
    if part.startswith("Mapping[str, "):
        return Kind("a dict", _mapping(part == "Mapping[str, str]"))
    if part not in KINDS:
        raise TypeError(f"an argument is annotated with {part}, which grn/arguments.py has no kind for")
    return KINDS[part]


def _parts(annotation: ast.expr) -> list[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        return [*_parts(annotation.left), *_parts(annotation.right)]
    return [annotation]


def _choices(literal: str) -> list[str]:
    """The choices of a Literal, as they are written in it."""
    node = ast.parse(literal, mode="eval").body
    assert isinstance(node, ast.Subscript)
    inner = node.slice
    return [ast.unparse(each) for each in (inner.elts if isinstance(inner, ast.Tuple) else [inner])]


def _listed(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _public_name(function: Callable[..., Any]) -> str:
    """As a caller writes it: grn.train, grn.plots.network_graph, Run.save."""
    if "." in function.__qualname__:
        return function.__qualname__.removesuffix(".__init__")
    return f"{'grn.plots' if '.plots.' in function.__module__ else 'grn'}.{function.__name__}"


def _misfit(name: str, problem: str, parameters: Mapping[str, object], given: Mapping[str, object]) -> str:
    """A sentence about a call that does not fit its function. problem: what Python says of it."""
    unknown = [key for key in given if key not in parameters]
    if unknown:
        near = nearest(unknown[0], parameters)
        hint = f"did you mean {near}?" if near else f"it takes {', '.join(parameters)}."
        return f"{name} got an unexpected keyword argument {unknown[0]!r}; {hint}"
    if problem.startswith("missing"):
        return f"{name} is {problem}; give it."
    return f"{name} got {problem}; it takes {', '.join(parameters)}."
