"""The numbers of texts that the chunks of a .zarr folder claim to hold.

A chunk of texts begins with their number, for which the decoder makes room before it reads the first: a damaged number
would take a minute, and the machine's memory.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from grn.errors import DataError

TEXTS = "OT"  # the kinds of NumPy's dtypes that hold them: objects, and texts of any length


def refuse_false_numbers(path: Path, store: Any) -> None:
    """Raises DataError where a chunk of texts in the opened .zarr folder `path` claims to hold more than it has place
    for. Whatever else is wrong with a chunk, the decoder finds."""
    import zarr

    for _, array in store.members(max_depth=None):
        if not isinstance(array, zarr.Array) or array.dtype.kind not in TEXTS:
            continue
        places = math.prod(array.chunks)
        for chunk in np.ndindex(*array.cdata_shape):
            file = path / array.path / array.metadata.encode_chunk_key(chunk)
            number = _number(file, array)
            if number is not None and number > places:
                raise DataError(
                    f"{path} has a damaged chunk of {array.path}: it has place for {places} texts, and claims to hold "
                    f"{number}; copy or write the folder again."
                )


def _number(file: Path, array: Any) -> int | None:
    """The number that a chunk begins with; None where there is no chunk, or it cannot be unpacked."""
    import numcodecs

    with suppress(Exception):  # of many types, by the codec
        content = file.read_bytes()
        for codec in reversed(array.compressors):
            name = getattr(codec, "codec_id", None) or codec.to_dict()["name"]  # of Zarr's formats 2 and 3
            content = bytes(numcodecs.get_codec({"id": name.removeprefix("numcodecs.")}).decode(content))
        return int.from_bytes(content[:4], "little") if len(content) >= 4 else None
    return None
