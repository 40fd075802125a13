"""Models on the Hugging Face Hub, hf://OWNER/NAME, as `grn export --format huggingface` writes
them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from grn.runtime.errors import RunFolderError, one_line

# a Path makes one slash of two
ADDRESS = re.compile(r"hf:/{1,2}(?P<name>[^/@\s]+/[^/@\s]+)(@(?P<revision>\S+))?")


def local_folder(run: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """A folder as it is; of an address hf://OWNER/NAME, or hf://OWNER/NAME@REVISION, the folder
    that the Hub's own library keeps of it on this machine. Raises RunFolderError.
    """
    address = ADDRESS.fullmatch(os.fspath(run))
    if address is None or Path(run).exists():
        return run
    name = f"hf://{address['name']}"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise RunFolderError(
            f"{name} is on the Hugging Face Hub, whose library is not installed",
            advice="pip install huggingface_hub",
        ) from None
    try:
        return str(snapshot_download(address["name"], revision=address["revision"]))
    except Exception as problem:  # no such model, no network, a private one
        raise RunFolderError(
            f"{name} cannot be downloaded ({one_line(problem)})",
            advice="look at the name and the connection, or give a folder",
        ) from problem
