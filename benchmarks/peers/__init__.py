"""Peers of our networks: each method is a `Peer` (see `peers.peer`) in the module that MODULES
names.

They need numpy, scipy, pandas, scikit-learn and joblib, and nothing of this project.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.peer import Peer

# The quick ones first.
MODULES = {
    "pearson": "linear",
    "spearman": "linear",
    "ridge": "linear",
    "partial_correlation": "linear",
    "grnboost2": "trees",
    "genie3": "trees",
    "regdiffusion": "regdiffusion",
}
NAMES = tuple(MODULES)

# Methods that a reader may miss in the table, and why they are missing.
ABSENT = {
    "pidc": "not installable: there is no Python package of it on PyPI, its authors' "
    "implementation (Chan, Stumpf and Babtie 2017) is in Julia",
}


def load(name: str) -> Peer:
    """Imports the module of one method alone, so that the memory that is measured is its own."""
    if name not in NAMES:
        raise SystemExit(f"No peer is called {name!r}; the peers are {', '.join(NAMES)}.")
    return importlib.import_module(f"peers.{MODULES[name]}").PEERS[name]


def settings_of(peer: Peer, changes: Iterable[str] = ()) -> dict[str, float | str]:
    """The peer's settings with those `key=value` that it knows; the type is that of the default."""
    settings = dict(peer.settings)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise SystemExit(f"A setting is written key=value, not {change!r}.")
        if key in settings:
            settings[key] = type(settings[key])(value)
    return settings
