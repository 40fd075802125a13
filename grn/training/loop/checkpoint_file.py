"""A checkpoint with a digest of its own content, so that a single flipped bit is found before it trains on.

A checkpoint of torch is a zip file, and torch reads damaged numbers without complaint. The digest is the comment with
which a zip file may end: torch and every other reader of zip files skip it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, Any, cast

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from grn.errors import RunFolderError
from grn.io.h5ad import RememberingFile

END = b"PK\x05\x06"  # how the last record of a zip file begins
LENGTH = 22  # of that record; its last two bytes are the length of the comment
MARK = b"sha256:"
COMMENT = len(MARK) + 64
BLOCK = 1 << 20


class StreamedCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint straight into its file. Lightning's own way has all its bytes in memory first."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        with open(path, "wb", buffering=0) as plain:
            # torch's own error would not say what the system did.
            remembering = RememberingFile(plain)
            torch.save(checkpoint, cast(IO[bytes], remembering))
            if remembering.problem is not None:
                raise remembering.problem


class DamagedCheckpoint(RunFolderError):
    """A checkpoint that is not as it was written."""


def seal(path: Path) -> None:
    """Adds the digest to a checkpoint that was just written, and flushes it to the disk."""
    with path.open("r+b") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - LENGTH, 0))
        if file.read(4) != END:  # as where the disk was full and nobody said so
            raise DamagedCheckpoint(f"{path} does not end as a checkpoint of torch does; check the disk.")
        file.seek(-2, os.SEEK_END)
        file.write(COMMENT.to_bytes(2, "little"))
        digest = _digest(file, file.tell())
        file.write(MARK + digest)
        file.flush()
        os.fsync(file.fileno())


def refuse_damage(path: Path) -> None:
    """Raises DamagedCheckpoint where a checkpoint is not as `seal` left it, OSError where it cannot be read at all."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END) - COMMENT
        if length >= LENGTH:
            file.seek(length)
            if file.read() == MARK + _digest(file, length):
                return
    raise DamagedCheckpoint(f"{path} is damaged: its digest is missing, or is not that of its content; restore it.")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The content of an undamaged checkpoint, on the CPU. Raises DamagedCheckpoint, OSError."""
    refuse_damage(path)
    # Mapped: what nobody uses of it is never in memory.
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _digest(file: Any, length: int) -> bytes:
    """SHA-256 of the first `length` bytes, in hex digits; the file is left at their end."""
    found, left = hashlib.sha256(), length
    file.seek(0)
    while left:
        block = file.read(min(BLOCK, left))
        if not block:
            break
        found.update(block)
        left -= len(block)
    return found.hexdigest().encode()
