"""The name that a user may have meant, for the end of a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[object], likeness: float = 0.6) -> str | None:
    """The name among the known ones that is most like this one, whatever its case; None where none is like it.

    likeness: the least that counts, 0 to 1, as difflib measures it.
    """
    of_folded = {str(each).casefold(): str(each) for each in known}
    near = difflib.get_close_matches(str(name).casefold(), list(of_folded), n=1, cutoff=likeness)
    return of_folded[near[0]] if near else None
