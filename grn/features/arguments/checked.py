"""`checked` validates the arguments of a public function by their annotations, with pydantic.

Bounds stand in the annotations: `Share`, `Seed`, `Whole` and `Positive` here, or any
`Annotated[int, Ge(2)]`. pydantic's `validate_call` would import pandas and anndata to resolve them,
and has its own errors for unknown keywords.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ParamSpec, TypeVar, get_type_hints

from annotated_types import Ge, Interval

from grn.runtime.errors import ConfigError, called

P = ParamSpec("P")
R = TypeVar("R")

Share = Annotated[float, Interval(ge=0, le=1)]
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]
Whole = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]


def checked(arguments: Mapping[str, str] = {}) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Validates a function's arguments, and lets its UserErrors name fields as the caller sets
    them.

    arguments: field -> argument, as `network.false_discovery` -> `max_q_value`; a field whose last
        part is an argument's name needs no entry. A value that its annotation does not take is a
        ConfigError with that argument as its field. NumPy's numbers count as Python's, and any
        iterable of names as `Sequence[str]`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        # at the first call: pydantic takes its time
        validators = functools.cache(lambda: _validators(function))

        def name_of(field: str) -> str | None:
            argument = arguments.get(field, field.rpartition(".")[2])
            return f"{argument}=" if argument in signature.parameters else None

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                # Python's own error names the function and the argument
                return function(*args, **kwargs)
            with called(name_of):
                for name, validate in validators().items():
                    if name in bound.arguments:
                        bound.arguments[name] = _valid(name, validate, bound.arguments[name])
                return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def _valid(name: str, validate: Callable[[object], object], value: Any) -> object:
    from pydantic import ValidationError

    from grn.config.mistakes import must_be

    try:
        return validate(value.item() if getattr(value, "shape", None) == () else value)
    except ValidationError as error:
        raise ConfigError(f"{{field}} {must_be(error.errors(), value)}.", field=name) from None


def _validators(function: Callable[..., Any]) -> dict[str, Callable[[object], object]]:
    """The validator of each argument, from the function's annotations, without importing the types
    of large libraries.

    These are told by the names of a value's classes. `os.PathLike[str]` keeps a path as it was
    given.
    """
    from pydantic import AfterValidator, BeforeValidator, ConfigDict, Strict, TypeAdapter
    from pydantic_core import PydanticCustomError

    def named(name: str, words: str) -> Any:
        def accept(value: object) -> object:
            if name in (base.__name__ for base in type(value).__mro__):
                return value
            raise PydanticCustomError("instance", "Input should be " + words)

        return Annotated[Any, BeforeValidator(accept)]

    def listed(value: object) -> object:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            return value
        in_order = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [str(each) for each in in_order]  # AnnData calls genes 0, 1, ... that have no names

    types = {
        "AnnData": named("AnnData", "an AnnData"),
        "pd": SimpleNamespace(DataFrame=named("DataFrame", "a table (pandas.DataFrame)")),
        "Run": named("Run", "a run"),
        "Config": named("Config", "a configuration"),
        "Sequence": {str: Annotated[list[str], BeforeValidator(listed)]},
        "tuple": {(str, str): Annotated[tuple[str, str], Strict(False)]},
        "os": SimpleNamespace(PathLike={str: Annotated[os.PathLike, "kept"]}),
    }
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    hints = get_type_hints(function, localns=types, include_extras=True)
    del hints["return"]
    paths = {
        name for name, written in function.__annotations__.items() if "PathLike" in str(written)
    }
    return {
        name: TypeAdapter(
            Annotated[hint, AfterValidator(_expanded)] if name in paths else hint, config=config
        ).validate_python
        for name, hint in hints.items()
    }


def _expanded(value: object) -> object:
    """A path with the user's home in place of ~, as shells have it."""
    if isinstance(value, Path):
        return value.expanduser()
    return os.path.expanduser(value) if isinstance(value, str) else value
