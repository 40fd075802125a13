"""Peers of our networks: one method a file, each a `PEER` (see `peers.peer`).

They need numpy, scipy, pandas, scikit-learn and joblib, and nothing of this project.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.peer import Peer

# The quick ones first.
NAMES = ("pearson", "spearman", "ridge", "partial_correlation", "grnboost2", "genie3", "regdiffusion")

# Methods that a reader may miss in the table, and why they are missing.
ABSENT = {
    "pidc": "not installable: there is no Python package of it on PyPI, its authors' implementation "
    "(Chan, Stumpf and Babtie 2017) is in Julia",
}


def load(name: str) -> Peer:
    """Imports one method alone, so that the memory that is measured is its own."""
    if name not in NAMES:
        raise SystemExit(f"No peer is called {name!r}; the peers are {', '.join(NAMES)}.")
    return importlib.import_module(f"peers.{name}").PEER


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
