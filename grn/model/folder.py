"""The files of a model folder: what they are called, what the card says, and the hash over all of them.

Nothing here needs torch, so that names and labels are read, and checked, in no time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grn.config.files import without_removed
from grn.config.schema import ModelConfig
from grn.config.strict_yaml import parse_yaml
from grn.errors import ConfigError, RunFolderError
from grn.io.run_folder import no_such_run, refuse_cut_off, refuse_mixed_parts, run_near

FORMAT = 7
READABLE = (6, FORMAT)  # 6 has no cell reader
CARD = "card.json"
CONTENT = ("config.yaml", "vocabulary.txt", "labels.json", "model.safetensors")
FILES = (CARD, *CONTENT)

Count = Annotated[int, Field(ge=1)]
Above0 = Annotated[float, Field(gt=0)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LayerShape(_Entry):
    """The shape of one regulation layer."""

    members: Count
    heads: Count
    width: Count
    states: Count
    deviates: bool


class RegulationCard(_Entry):
    """What the card says of the regulation layers; see grn/model/signed/regulation.py."""

    pooled: LayerShape
    by_state: LayerShape | None
    level_error: Annotated[float, Field(ge=0)] | None


class ReaderCard(_Entry):
    """What the card says of the cell reader; see ReaderShape in grn/model/cell_reader.py."""

    members: Count
    heads: Count
    width: Count
    rank: Count
    summary: Count
    hidden: Count
    embedding: Count
    held_out: Annotated[int, Field(ge=0)]


class Card(_Entry):
    """card.json: what TrainedModel holds beside its tensors and names, in the same words, and the hash of it all."""

    format: Literal[6, 7]
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    values: Literal["counts", "expression"]
    multiplicity: Literal["counts", "log1p", "log1p_normalised"]
    target_total: Above0 | None
    depth: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    regulation: RegulationCard | None
    reader: ReaderCard | None = None
    property_key: str | None
    cells: str | None

    @model_validator(mode="after")
    def _fits_itself(self):
        normalised = self.values == "counts" and self.multiplicity == "log1p_normalised"
        if normalised and self.target_total is None:
            raise ValueError("log1p_normalised needs a target_total")
        if self.depth is not None and self.depth[1] <= 0:
            raise ValueError("the sd of depth is not above 0")
        return self


class ModelFiles(BaseModel):
    """A model folder whose hash is right: the content of its files, parsed as far as that needs no torch."""

    card: Card
    config: ModelConfig
    vocabulary: tuple[str, ...]
    classes: tuple[str, ...]
    tensors: bytes


def read_model_folder(folder: Path) -> ModelFiles:
    """Reads a model folder, or the one in a run folder. Raises RunFolderError where it is missing or damaged."""
    if not folder.exists():
        raise RunFolderError(no_such_run(folder, "give a run folder or its model/."))
    if folder.is_file():
        raise RunFolderError(f"{folder} is a file, where a model is expected; give a run folder or its model/.")
    if (folder / "model").is_dir():
        refuse_mixed_parts(folder)
        folder = folder / "model"
    elif not (folder / CARD).exists():
        refuse_cut_off(folder, ("model",))
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing and set(FILES) - set(missing) - {"config.yaml"}:  # a folder with a configuration alone may be another
        raise RunFolderError(f"{folder} is damaged, as {missing[0]} is missing; restore it, or train again.")
    if missing:
        raise RunFolderError(
            f"{folder} is not a model: {missing[0]} is missing; give a run folder or its model/{run_near(folder)}."
        )
    content = {name: (folder / name).read_bytes() for name in FILES}
    try:
        card = json.loads(content.pop(CARD))
        if not isinstance(card, dict) or not {"format", "hash"} <= set(card):
            raise ValueError(f"{CARD} does not have the entries of a model")
        if card["format"] not in READABLE:
            raise RunFolderError(
                f"{folder} has format {card['format']!r} and this version reads {FORMAT}; "
                "train again, or use the version that wrote it."
            )
        if card["hash"] != hash_of(card, content):
            raise RunFolderError(
                f"{folder} is damaged: the hash of its files is not the one in {CARD}, so at least one of them is not "
                "as it was written; restore it."
            )
        vocabulary, classes = names_in(content["vocabulary.txt"]), json.loads(content["labels.json"])
        if not isinstance(classes, list) or not all(isinstance(label, str) for label in classes):
            raise ValueError("labels.json is not a list of texts")
        for name, names in (("vocabulary.txt", vocabulary), ("labels.json", classes)):
            if len(set(names)) < len(names):
                raise ValueError(f"{name} has a name twice")
        return ModelFiles(
            card=Card(**card),
            config=ModelConfig(
                **without_removed(parse_yaml(content["config.yaml"].decode(), "config.yaml")[0], "model.")
            ),
            vocabulary=vocabulary,
            classes=tuple(classes),
            tensors=content["model.safetensors"],
        )
    except (ValueError, TypeError, KeyError, RecursionError, ConfigError, ValidationError) as damage:
        reason = " ".join(f"{damage}".split())
        raise RunFolderError(f"{folder} is damaged ({reason:.200}); train again or restore it.") from None


def hash_of(card: Mapping[str, Any], content: Mapping[str, bytes]) -> str:
    """First 16 hex digits of the SHA-256 over the card, without its hash, and every other file, each with its length.

    card: the entries of card.json.   content: bytes of the files named in CONTENT.
    """
    entries = {name: value for name, value in card.items() if name != "hash"}
    found = hashlib.sha256()
    for part in (json.dumps(entries, sort_keys=True).encode(), *(content[name] for name in CONTENT)):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:16]


def lines_of(names: Sequence[str]) -> bytes:
    """One name a line, exactly: a line feed inside a name is written as \\n, a backslash as two."""
    return "".join(name.replace("\\", r"\\").replace("\n", r"\n") + "\n" for name in names).encode()


def names_in(lines: bytes) -> tuple[str, ...]:
    """The names that `lines_of` wrote."""
    # Bytes, because text mode turns every kind of line end into "\n"; not splitlines, which splits at even more
    # characters. Names may contain all of these, as those of a list with Windows' line ends do.
    return tuple(
        re.sub(r"\\(.)", lambda escaped: "\n" if escaped[1] == "n" else escaped[1], line)
        for line in lines.decode().split("\n")[:-1]
    )
