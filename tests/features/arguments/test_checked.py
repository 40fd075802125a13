"""Arguments of public functions: taken in any library's form, refused by name, and fields shown as
arguments.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.features.arguments.checked import Positive, Share, checked
from grn.runtime.errors import ConfigError, DataError, UserError

if TYPE_CHECKING:
    from anndata import AnnData


@checked({"network.false_discovery": "share"})
def public(
    cells: AnnData | pd.DataFrame | str | os.PathLike[str] = "cells.h5ad",
    *,
    count: Positive | None = None,
    share: Share = 0.5,
    label_key: Sequence[str] | str | None = None,
    pair: tuple[str, str] = ("a", "b"),
    kind: Literal["up", "down"] = "up",
    quiet: bool = False,
    set: Mapping[str, Any] | None = None,
    refuse: str | None = None,
) -> dict[str, Any]:
    if refuse:
        raise DataError("{field} is wrong", field=refuse, advice="correct {field}")
    return {"cells": cells, "count": count, "share": share, "label_key": label_key} | {
        "pair": pair,
        "quiet": quiet,
    }


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("count", np.int64(3), 3),
        ("share", np.float32(0.25), 0.25),
        ("quiet", np.bool_(True), True),
        *(("label_key", kind("AB"), [*"AB"]) for kind in (list, tuple)),
        *(("label_key", kind([*"AB"]), [*"AB"]) for kind in (pd.Index, np.array, pd.Series)),
        ("label_key", "~/A", "~/A"),
        ("label_key", [0, 1], ["0", "1"]),
        ("pair", ["u", "v"], ("u", "v")),
        ("cells", Path("x.h5ad"), Path("x.h5ad")),
    ],
)
def test_values_of_any_library_are_taken(name, given, expected):
    found = public(**{name: given})[name]
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("count", value) for value in (0, True, 1.5, "3")),
        *(("share", value) for value in (1.1, None, float("nan"), np.ones((2, 3)))),
        *(("label_key", value) for value in (5, b"x")),
        *(("pair", value) for value in ("ab", ["a"])),
        ("kind", "left"),
        ("set", ["a"]),
    ],
)
def test_another_value_is_refused_in_one_sentence_under_its_name(name, value):
    with pytest.raises(ConfigError, match=f"^{name}= must be") as refused:
        public(**{name: value})
    assert refused.value.field == name and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "shown"),
    [("data.label_key", "label_key="), ("network.false_discovery", "share="), ("a.b", "a.b")],
)
def test_a_field_is_shown_as_the_argument_that_sets_it(field, shown):
    with pytest.raises(UserError, match=f"^{shown} is wrong; correct {shown}\\.$"):
        public(refuse=field)


@pytest.mark.parametrize("name", [name for name in grn.__all__ if callable(getattr(grn, name))])
def test_every_public_function_checks_its_arguments(name):
    """No argument takes an object, whatever the others are."""
    function, needed = getattr(grn, name), {}
    parameters = inspect.signature(function).parameters.values()
    for each in parameters:
        if each.default is each.empty:
            of_cells = "AnnData" in str(each.annotation)
            needed[each.name] = anndata.AnnData(np.ones((2, 2))) if of_cells else "nothing"
    for each in parameters:
        with pytest.raises(ConfigError) as refused:
            function(**(needed | {each.name: object()}))
        assert refused.value.field == each.name


@pytest.mark.parametrize("kind", [str, Path])
def test_a_tilde_is_the_home_of_the_user(kind, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert public(kind("~/cells.h5ad"))["cells"] == kind(tmp_path / "cells.h5ad")
    assert public(kind("cells~.h5ad"))["cells"] == kind("cells~.h5ad")
