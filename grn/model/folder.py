"""The files of a model folder and the hash over all of them, without torch, which takes seconds to
import.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from grn.config.schema import ModelConfig
from grn.config.strict_yaml import parse_yaml
from grn.runtime.errors import ConfigError, RunFolderError
from grn.runtime.run_folder import no_such_run, refuse_cut_off, refuse_mixed_parts

FORMAT = 15
CARD = "card.json"
WEIGHTS = "model.safetensors"
STEP = ".step"  # after the name of a table of whole numbers, int8: what these are multiples of
CONTENT = ("config.yaml", "vocabulary.txt", "labels.json", WEIGHTS)
FILES = (CARD, *CONTENT)


@dataclass(frozen=True)
class ModelFiles:
    """The content of a model folder whose hash is right. card: the fields of TrainedModel that no
    other file has. tensors: tables of whole numbers are flat.
    """

    card: dict[str, Any]
    config: ModelConfig
    vocabulary: tuple[str, ...]
    classes: tuple[str, ...]
    tensors: dict[str, np.ndarray]


def read_model_folder(folder: Path) -> ModelFiles:
    """Read a model folder, or the one in a run folder.

    Raises RunFolderError where it is missing or damaged.
    """
    if (folder / "model").is_dir():
        refuse_mixed_parts(folder)
        folder = folder / "model"
    elif not (folder / CARD).exists():
        refuse_cut_off(folder, ("model",))
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise RunFolderError(
            f"{folder} is not a whole model: {missing[0]} is missing; give a run folder or its "
            "model/."
            if folder.exists()
            else no_such_run(folder, "give a run folder or its model/.")
        )
    content = {name: (folder / name).read_bytes() for name in FILES}
    error = damaged_model(folder)
    with suppress(ValueError, TypeError, KeyError, ConfigError, SafetensorError, zlib.error):
        card = json.loads(content.pop(CARD))
        if card["format"] != FORMAT:
            error = RunFolderError(
                f"{folder} has format {card['format']!r}, and this version reads {FORMAT}",
                advice="train again, or use the version that wrote it",
            )
        elif card["hash"] == hash_of(card, content, tensors := unpacked(load(content[WEIGHTS]))):
            values, _ = parse_yaml(content["config.yaml"].decode(), "config.yaml")
            return ModelFiles(
                card=card,
                config=ModelConfig(**dict(values)),
                vocabulary=names_in(content["vocabulary.txt"]),
                classes=tuple(json.loads(content["labels.json"])),
                tensors=tensors,
            )
    raise error


def damaged_model(folder: Path) -> RunFolderError:
    return RunFolderError(
        f"{folder} is damaged: its files are not as they were written",
        advice="restore it, or train again",
    )


def hash_of(
    card: Mapping[str, Any], content: Mapping[str, bytes], tensors: Mapping[str, np.ndarray]
) -> str:
    """First 16 hex digits of the SHA-256 over the card, without its hash, the files in CONTENT, and
    the tensors, with lengths.

    tensors: in place of their file, in which another zlib may pack the same numbers into other
        bytes.
    """
    entries = {name: value for name, value in card.items() if name != "hash"}
    found = hashlib.sha256()
    names = sorted(tensors)
    parts = [
        json.dumps(entries, sort_keys=True).encode(),
        *(content[name] for name in CONTENT if name != WEIGHTS),
    ]
    parts += [
        part
        for name in names
        for part in (name.encode(), np.ascontiguousarray(tensors[name]).tobytes())
    ]
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:16]


def packed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors as their file holds them: tables of whole numbers as bytes that zlib has packed,
    uint8.

    Numbers hardly repeat each other, so that codes of single bytes (Huffman's) pack them best.
    """
    found = dict(tensors)
    for name in tables_of(tensors):
        by_bytes = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
        found[name] = np.frombuffer(
            by_bytes.compress(tensors[name].tobytes()) + by_bytes.flush(), np.uint8
        )
    return found


def unpacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors that `packed` was given; tables of whole numbers are flat."""
    tables = {
        name: np.frombuffer(zlib.decompress(tensors[name].tobytes()), np.int8)
        for name in tables_of(tensors)
    }
    return {**tensors, **tables}


def tables_of(tensors: Iterable[str]) -> list[str]:
    """Return the names of the tables of whole numbers."""
    return [name.removesuffix(STEP) for name in tensors if name.endswith(STEP)]


def lines_of(names: Sequence[str]) -> bytes:
    """One name a line, exactly: a line feed inside a name is written as \\n, a backslash as two."""
    return "".join(name.replace("\\", r"\\").replace("\n", r"\n") + "\n" for name in names).encode()


def names_in(lines: bytes) -> tuple[str, ...]:
    """Return the names that `lines_of` wrote."""
    # Names may contain other line ends, at which text mode or splitlines would split, too.
    return tuple(
        re.sub(r"\\(.)", lambda escaped: "\n" if escaped[1] == "n" else escaped[1], line)
        for line in lines.decode().split("\n")[:-1]
    )
