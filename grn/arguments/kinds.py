"""Kinds of arguments: what each is called in a message, and how a value of it is brought into one form."""

from __future__ import annotations

import ast
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from grn.errors import DataError

REFUSED = object()
"""What a kind answers where a value is not of it."""
LARGEST = 2**63 - 1
NAMES, PATH, TABLE = "Sequence[str]", "os.PathLike[str]", "pd.DataFrame"


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


@dataclass(frozen=True)
class Kind:
    """words: what it is called in a message.   take: a value -> the value in one form, or REFUSED."""

    words: str
    take: Callable[[object], object]


def shown(value: object) -> str:
    """A value in a sentence: as Python writes it, or by its type where that would be long."""
    value = plain(value)
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


def as_path(value: object, name: str) -> Path:
    """`value`, if it can be a path. name: of the argument, in messages. Raises DataError."""
    found = _path(value)
    if found is REFUSED:
        raise DataError(f"{name} is {shown(value)}; it must be a path.")
    return Path(str(found))


def plain(value: object) -> object:
    """A number of NumPy, or an array without dimensions, as a number of Python; all else as it is."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        try:
            return value.item()
        except Exception:
            return value
    return value


def a_text(value: object) -> object:
    value = plain(value)
    return str(value) if isinstance(value, str) and value and writable(value) else REFUSED


def writable(text: str) -> bool:
    """Whether a text can be a name or a path: without null characters and halves of characters."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _path(value: object) -> object:
    if not isinstance(value, (str, os.PathLike)):
        return REFUSED
    text = os.fspath(value)
    # What is no text in a file's name, Python writes as halves of characters; such names are real.
    return text if isinstance(text, str) and text and "\0" not in text and not too_long(text) else REFUSED


def is_folder(value: object) -> bool:
    """Whether a value is the path of a folder that exists."""
    path = _path(value)
    return path is not REFUSED and os.path.isdir(str(path))


def too_long(text: str) -> bool:
    """Whether a path has a name that no file system holds, or is one that the system refuses."""
    names = os.fsencode(text).split(b"/") if writable(text) else []
    return sum(map(len, names)) > 4000 or any(len(name) > 255 for name in names)


def _whole(bound: Bound) -> Kind:
    limits = bound if bound.most is not None else Bound(bound.least, LARGEST)

    def take(value: object) -> object:
        value = plain(value)
        if isinstance(value, bool) or not isinstance(value, Integral) or not limits.holds(int(value)):
            return REFUSED
        return int(value)

    return Kind(f"a whole number{bound.words()}", take)


def _number(bound: Bound) -> Kind:
    def take(value: object) -> object:
        value = plain(value)
        if isinstance(value, bool) or not isinstance(value, Real):
            return REFUSED
        try:
            number = float(value)
        except OverflowError:
            return REFUSED
        return number if math.isfinite(number) and bound.holds(number) else REFUSED

    return Kind(f"a number{bound.words()}", take)


def _truth(value: object) -> object:
    value = plain(value)
    return value if isinstance(value, bool) else REFUSED


def _names(value: object) -> object:
    """Names as a list. Whole numbers are names, too: AnnData calls genes 0, 1, ... that have none."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable) or hasattr(value, "obs"):
        return REFUSED
    if getattr(value, "ndim", 1) != 1:
        return REFUSED
    each = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
    names = [str(plain(one)) if is_whole(plain(one)) else a_text(one) for one in each]
    return names if names and REFUSED not in names else REFUSED


def is_word(value: object) -> bool:
    """Whether a value is a text, true or false, or a number: what a label may be; nan is none."""
    return isinstance(value, (str, Real)) and value == value


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _two_names(value: object) -> object:
    names = REFUSED if isinstance(value, (set, frozenset)) else _names(value)
    return tuple(names) if isinstance(names, list) and len(set(names)) == len(names) == 2 else REFUSED


def _mapping(of_texts: bool) -> Callable[[object], object]:
    def take(value: object) -> object:
        if _is_a(value, "pandas", "Series"):
            value = value.to_dict()  # type: ignore[attr-defined]
        if not isinstance(value, Mapping) or any(a_text(key) is REFUSED for key in value):
            return REFUSED
        if not of_texts:
            return {str(key): each for key, each in value.items()}
        if not all(is_word(plain(each)) for each in value.values()):
            return REFUSED
        return {str(key): str(plain(each)) for key, each in value.items()}

    return take


def _is_a(value: object, module: str, name: str) -> bool:
    """Whether a value is of this class. A class whose module nobody has imported has no instances."""
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and isinstance(value, found)


def _instance(words: str, module: str, name: str) -> Kind:
    return Kind(words, lambda value: value if _is_a(value, module, name) else REFUSED)


def _table(value: object) -> object:
    """Tables whose columns have one name each."""
    return value if _is_a(value, "pandas", "DataFrame") and levels(value) == 1 else REFUSED


def levels(table: object) -> int:
    """How many names each column of a table has; 0 of what is no table."""
    return getattr(getattr(table, "columns", None), "nlevels", 0)


def _run_like(value: object) -> object:
    return value if all(hasattr(type(value), name) for name in ("edges", "network", "folder")) else REFUSED


KINDS: dict[str, Kind] = {
    "str": Kind("a text", a_text),
    "bool": Kind("True or False", _truth),
    PATH: Kind("a path", _path),
    NAMES: Kind("a list of one or more names", _names),
    "tuple[str, str]": Kind("two different names", _two_names),
    "AnnData": _instance("an AnnData", "anndata", "AnnData"),
    TABLE: Kind("a table", _table),
    "Run": _instance("a run", "grn.verbs.run", "Run"),
    "RunLike": Kind("a run", _run_like),
    "SignedNetwork": _instance("a network (run.network)", "grn.networks.signed_network", "SignedNetwork"),
    "Config": _instance("a configuration", "grn.config.schema", "Config"),
    "Axes": _instance("axes of matplotlib", "matplotlib.axes", "Axes"),
}


def kind_of(part: str, bound: Bound) -> Kind:
    if part == "int":
        return _whole(bound)
    if part == "float":
        return _number(bound)
    if part.startswith("Literal["):
        texts = [ast.literal_eval(text) for text in choices_of(part)]
        return Kind(listed([repr(text) for text in texts]), lambda value: value if a_text(value) in texts else REFUSED)
    if part.startswith("Mapping[str, "):
        return Kind("a dict", _mapping(part == "Mapping[str, str]"))
    if part not in KINDS:
        raise TypeError(f"an argument is annotated with {part}, which grn/arguments/kinds.py has no kind for")
    return KINDS[part]


def parts_of(annotation: ast.expr) -> list[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        return [*parts_of(annotation.left), *parts_of(annotation.right)]
    return [annotation]


def choices_of(literal: str) -> list[str]:
    """The choices of a Literal, as they are written in it."""
    node = ast.parse(literal, mode="eval").body
    assert isinstance(node, ast.Subscript)
    inner = node.slice
    return [ast.unparse(each) for each in (inner.elts if isinstance(inner, ast.Tuple) else [inner])]


def listed(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
