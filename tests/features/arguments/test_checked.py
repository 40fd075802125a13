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
    return dict(
        cells=cells,
        count=count,
        share=share,
        label_key=label_key,
        pair=pair,
        kind=kind,
        quiet=quiet,
        set=set,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": np.int64(3)}, 3),
        ({"share": np.float32(0.25)}, 0.25),
        ({"share": 1}, 1.0),
        ({"quiet": np.bool_(True)}, True),
        *(
            ({"label_key": kind(["A", "B"])}, ["A", "B"])
            for kind in (list, tuple, pd.Index, np.array, pd.Series, set)
        ),
        ({"label_key": "A"}, "A"),
        ({"label_key": [0, 1]}, ["0", "1"]),
        ({"pair": ["u", "v"]}, ("u", "v")),
        ({"cells": Path("x.h5ad")}, Path("x.h5ad")),
        ({"set": {"a": 1}}, {"a": 1}),
    ],
)
def test_values_of_any_library_are_taken(given, expected):
    (name,) = given
    found = public(**given)[name]
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"count": value} for value in (0, True, 1.5, "3")),
        *({"share": value} for value in (1.1, True, None, float("nan"), np.ones((2, 3)))),
        *({"label_key": value} for value in (5, b"x")),
        *({"pair": value} for value in ("ab", ["a"], None)),
        *(
            {name: value}
            for name, value in (("kind", "left"), ("quiet", 1), ("cells", 5), ("set", ["a"]))
        ),
    ],
    ids=str,
)
def test_another_value_is_refused_in_one_sentence_under_its_name(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"^{name}= must be") as refused:
        public(**wrong)
    assert refused.value.field == name and "\n" not in str(refused.value)


def test_a_field_is_shown_as_the_argument_that_sets_it():
    for field, shown in (
        ("data.label_key", "label_key="),
        ("network.false_discovery", "share="),
        ("a.b", "a.b"),
    ):
        with pytest.raises(UserError, match=f"^{shown} is wrong; correct {shown}\\.$"):
            public(refuse=field)


@pytest.mark.parametrize("name", [name for name in grn.__all__ if callable(getattr(grn, name))])
def test_every_public_function_checks_its_arguments(name):
    """No argument takes an object, whatever the others are."""
    function = getattr(grn, name)
    parameters = inspect.signature(function).parameters.values()
    needed = {
        each.name: anndata.AnnData(np.ones((2, 2)))
        if "AnnData" in str(each.annotation)
        else "nothing"
        for each in parameters
        if each.default is each.empty
    }
    for each in parameters:
        with pytest.raises(ConfigError) as refused:
            function(**(needed | {each.name: object()}))
        assert refused.value.field == each.name


def test_a_tilde_is_the_home_of_the_user(monkeypatch, tmp_path):
    """In paths alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, expected in {
        "~/cells.h5ad": str(tmp_path / "cells.h5ad"),
        Path("~/cells.h5ad"): tmp_path / "cells.h5ad",
        "cells~.h5ad": "cells~.h5ad",
    }.items():
        assert public(given)["cells"] == expected
    assert public(label_key="~/A")["label_key"] == "~/A"
