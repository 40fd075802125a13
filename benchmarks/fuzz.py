"""Damages files at random and reads them: none may end in a traceback, a crash or a hang, and no model or checkpoint
that is other than it was written may be accepted.

Each trial changes one file of a small run or of its cells, and reads it in a process of its own. What comes of it:

    refused   one sentence (of a configuration, one for each mistake), exit code 2
    same      read, and it says what it said before (a changed blank, a comment)
    other     read, and it says something else: allowed for cells and configurations, whose numbers nobody else knows
    fault, crash, hang     never allowed, except that HDF5 may not get to the end of a damaged .h5ad file

    python benchmarks/fuzz.py --trials 10000
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.io import mmwrite
from torch import Tensor
from torch.utils._pytree import tree_map

from grn.cells.load import load_cells
from grn.cli.exit_codes import USER_ERROR, explain
from grn.config.files import dump_config, load_config
from grn.config.schema import Config, DataConfig
from grn.errors import ConfigError
from grn.model.saved import TrainedModel
from grn.training.checkpoints import load_checkpoint
from grn.training.resume import find_start
from grn.training.run import train

SECONDS = 10  # after which a trial hangs
NEVER = ("fault", "crash", "hang")
OUTCOMES = ("refused", "same", "other", *NEVER)
UNCHANGED = ("model", "checkpoint")  # of these, no other content may be accepted
TEXTS = (b"", b"nan", b"-1", b"1e309", b"null", b"true", b"\xff\xfe", b"\x00", b"[", b"{", b'"', b"\n", b",", b"9" * 40)


def tiny(path: str) -> Config:
    """A run of a second."""
    return Config.model_validate(
        {
            "data": {"path": path, "genes": "all", "label_key": "type", "regulators": ["g0", "g1", "g2"]},
            "model": {"width": 8, "members": 2, "hidden": 16},
            "trainer": {"max_steps": 4, "validate_every": 2, "batch_size": 16, "accelerator": "cpu"},
        }
    )


def make_files(home: Path) -> None:
    """Cells in every format, a configuration, and a run whose report is missing, so that it may be resumed."""
    generator = np.random.default_rng(0)
    counts = generator.poisson(2.0, (60, 12)).astype(np.float32)
    genes, names = [f"g{gene}" for gene in range(12)], [f"c{cell}" for cell in range(60)]
    obs = pd.DataFrame({"type": pd.Categorical(["a", "b"] * 30)}, index=names)
    adata = AnnData(sparse.csr_matrix(counts), obs=obs, var=pd.DataFrame(index=genes))
    with warnings.catch_warnings(action="ignore"):
        adata.write_h5ad(home / "cells.h5ad")
        adata.write_zarr(home / "cells.zarr")
    (home / "mtx").mkdir()
    mmwrite(home / "mtx" / "matrix.mtx", sparse.coo_matrix(counts.T.astype(int)))
    (home / "mtx" / "barcodes.tsv").write_text("".join(f"{name}\n" for name in names))
    (home / "mtx" / "features.tsv").write_text("".join(f"{gene}\t{gene}\tGene Expression\n" for gene in genes))
    pd.DataFrame(counts.astype(int), index=names, columns=genes).to_csv(home / "cells.csv")
    config = tiny(str(home / "cells.h5ad"))
    (home / "config.yaml").write_text(dump_config(config))
    train(config, home / "run", say=lambda line: None)


def read_cells(path: str, **fields) -> Callable[[Path], str]:
    """Reads cells and returns a digest of them."""

    def read(home: Path) -> str:
        cells, _ = load_cells(DataConfig(path=str(home / path), genes="all", **fields))
        return cells.digest

    return read


def read_model(home: Path) -> str:
    return TrainedModel.load(home / "run" / "model").hash


def read_checkpoint(home: Path) -> str:
    """A digest of the content of both checkpoints, if they are accepted; nothing reads the padding of their files."""
    find_start(home / "run")
    saved = [load_checkpoint(home / "run" / "checkpoints" / f"{name}.ckpt") for name in ("last", "best")]
    plain = tree_map(lambda value: value.numpy().tobytes() if isinstance(value, Tensor) else value, saved)
    return hashlib.sha256(repr(plain).encode()).hexdigest()


# What is damaged (a file, or a folder of which each time one file is) and how it is read.
KINDS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "model": ("run/model", read_model),
    "checkpoint": ("run/checkpoints", read_checkpoint),
    "config": ("config.yaml", lambda home: dump_config(load_config(home / "config.yaml"))),
    "h5ad": ("cells.h5ad", read_cells("cells.h5ad", label_key="type")),
    "zarr": ("cells.zarr", read_cells("cells.zarr", label_key="type")),
    "mtx": ("mtx", read_cells("mtx")),
    "text": ("cells.csv", read_cells("cells.csv", orientation="cells_by_genes")),
}


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The content with one change: bits, bytes, a piece that is lost, moved, doubled or replaced, or a new end."""
    size = len(content)
    place = draw.randrange(size + 1)
    end = min(size, place + draw.choice((1, 2, 8, 64, 512)))
    match draw.randrange(8):
        case 0 if size:
            whole = bytearray(content)
            for _ in range(draw.choice((1, 1, 1, 5, 50))):
                whole[draw.randrange(size)] ^= 1 << draw.randrange(8)
            return bytes(whole)
        case 1:
            return content[:place]
        case 2:
            return content[:place] + content[end:]
        case 3:
            return content[:place] + content[place:end] * 2 + content[end:]
        case 4:
            return content[:place] + bytes(end - place) + content[end:]
        case 5:
            return content[:place] + draw.choice(TEXTS) + content[end:]
        case 6:
            return content + draw.choice(TEXTS) * draw.choice((1, 100))
        case _:
            lines = content.split(b"\n")
            one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            return b"\n".join(lines)


def outcome(action: Callable[[], str], expected: str) -> tuple[str, str]:
    """What comes of an action in a process of its own, and the sentence or error that it ends with."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                found = action()
                said = ("same" if found == expected else "other"), ""
            except Exception as error:
                code, sentence = explain(error)
                # A configuration has a line for each mistake; anything else has one.
                lines = 1 if not isinstance(error, ConfigError) else sentence.count("\n") + 1
                said = ("refused" if code == USER_ERROR and sentence.count("\n") < lines else "fault"), sentence
            os.write(writer, "\n".join(said).encode(errors="replace")[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        what, _, sentence = pipe.read().decode(errors="replace").partition("\n")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return ("hang", "") if os.WTERMSIG(status) == signal.SIGALRM else ("crash", f"signal {os.WTERMSIG(status)}")
    return what or "crash", sentence


def trial(kind: str, number: int, home: Path, expected: str) -> tuple[str, str]:
    """Damages one file of a kind, reads it, and restores it."""
    place, read = KINDS[kind]
    draw = random.Random(f"{kind} {number}")
    below = home / place
    files = sorted(path for path in below.rglob("*") if path.is_file()) if below.is_dir() else [below]
    path = draw.choice(files)
    whole = path.read_bytes()
    changed = damaged(whole, draw)
    try:
        path.write_bytes(changed)
        what, sentence = outcome(lambda: read(home), expected)
    finally:
        path.write_bytes(whole)
    return what, f"{path.relative_to(home)}: {sentence}"


def fuzz(home: Path, trials: int, first: int = 0, kinds: tuple[str, ...] = tuple(KINDS)) -> pd.DataFrame:
    """Columns kind, number, outcome, sentence: `trials` trials, as many of each kind, on new files in `home`."""
    make_files(home)
    rows = []
    for kind in kinds:
        expected = KINDS[kind][1](home)
        for number in range(first, first + -(-trials // len(kinds))):
            rows.append((kind, number, *trial(kind, number, home, expected)))
    return pd.DataFrame(rows, columns=["kind", "number", "outcome", "sentence"])


def wrong(found: pd.DataFrame) -> pd.DataFrame:
    """The trials that should not have ended as they did."""
    accepted = found["kind"].isin(UNCHANGED) & (found["outcome"] == "other")
    endless = (found["kind"] == "h5ad") & found["outcome"].isin(["hang", "crash"])
    return found[(found["outcome"].isin(NEVER) & ~endless) | accepted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="grn-fuzz-"))
    try:
        found = fuzz(home, options.trials, options.first, tuple(options.kinds))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    for kind, rows in found.groupby("kind", sort=False):
        counted = Counter(rows["outcome"])
        print(f"{kind:12}" + "".join(f"{name} {counted[name]:<8}" for name in OUTCOMES))
    bad = wrong(found)
    for row in bad.itertuples():
        print(f"WRONG {row.kind} {row.number}: {row.outcome}: {row.sentence}")
    print(f"{len(bad)} of {len(found)} trials were wrong.")
    return int(len(bad) > 0)


if __name__ == "__main__":
    sys.exit(main())
