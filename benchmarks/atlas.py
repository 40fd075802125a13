"""What does a run take whose cells stay in their file: time of each stage, cells a second, memory?

    # minutes on 16 cores
    python benchmarks/atlas.py make atlas.h5ad --cells 1000000 --genes 20000
    # all cells from the file
    python benchmarks/atlas.py run atlas.h5ad
    # all of them in memory
    python benchmarks/atlas.py run atlas.h5ad --sample 1000000
    # by torchrun
    python benchmarks/atlas.py run atlas.h5ad --processes 2 --set trainer.max_steps=400

`make` simulates 100 000 cells of 2000 genes (grn/cells/simulated/cells.py), whose counts every part
keeps
with a chance of .9 each, so that no two cells are equal, beside genes that nothing regulates; parts
are joined as anyone would join files. `run` is `grn train` in a process of its own; its log, its
time and its peak memory are printed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from scipy import sparse

SIMULATED, REGULATED = 100_000, 2000  # cells and genes of the simulation
SEEN = 0.03  # share of the cells that see a gene which nothing regulates
KEPT = 0.9  # of the counts


def part(number: int, folder: Path, base, genes: int) -> Path:
    """Some cells as a file."""
    from anndata import AnnData

    generator = np.random.default_rng([7, number])
    counts = base.X.copy()
    counts.data = generator.binomial(counts.data.astype(np.int64), KEPT).astype(np.float32)
    counts.eliminate_zeros()
    others = sparse.random(
        *(counts.shape[0], genes - REGULATED), SEEN, "csr", np.float32, generator
    )
    others.data[:] = 1
    adata = AnnData(sparse.hstack([counts, others], format="csr"), obs=base.obs.copy())
    adata.var_names = [*base.var_names, *(f"U{gene + 1}" for gene in range(genes - REGULATED))]
    adata.obs_names = [f"{number}-{name}" for name in base.obs_names]
    path = folder / f"part{number}.h5ad"
    adata.write_h5ad(path)
    return path


def make(path: Path, cells: int, genes: int, regulators: int, depth: float, processes: int) -> None:
    import anndata
    from anndata.experimental import concat_on_disk

    from grn.cells.simulated.cells import TRUTH, simulate
    from grn.config.schema import Simulation

    started = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    anndata.settings.allow_write_nullable_strings = True  # pandas 3 stores names so
    planted = {"regulators": regulators, "cell_types": 4, "depth": depth, "seed": 7}
    base = simulate(Simulation(cells=min(cells, SIMULATED), genes=REGULATED, **planted))
    base.uns.pop(TRUTH).to_csv(path.with_suffix(".truth.csv"), index=False)
    base.uns.clear()
    one = partial(part, folder=path.parent, base=base, genes=genes)
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        parts = list(pool.map(one, range(-(-cells // SIMULATED))))
    concat_on_disk(parts, path, max_loaded_elems=2**28)
    for each in parts:
        each.unlink()
    print(f"made {path}, {path.stat().st_size / 1e9:.1f} GB, in {time.monotonic() - started:.0f} s")


def run(path: Path, sample: int, regulators: int, processes: int, fields: list[str]) -> None:
    from anndata import read_h5ad

    # those that regulate come first
    names = ",".join(read_h5ad(path, backed="r").var_names[:regulators])
    output = path.with_name(f"{path.stem}-{sample}-{processes}-{int(time.time())}")
    options = ["--label", "cell_type", "--regulators", names, "--output", str(output)]
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        if processes > 1
        else []
    )
    command = [sys.executable, *launcher, "-m", "grn", "train", str(path), *options]
    fields = [f"data.sample={sample}", f"trainer.devices={processes}", *fields]
    started = time.monotonic()
    if subprocess.run(
        [*command, *(word for field in fields for word in ("--set", field))]
    ).returncode:
        raise SystemExit(1)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(
        f"sample {sample}, processes {processes}: {time.monotonic() - started:.0f} s, at most "
        f"{peak:.2f} GiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making, running = commands.add_parser("make"), commands.add_parser("run")
    for each in (making, running):
        each.add_argument("path", type=Path)
        each.add_argument(
            "--regulators", type=int, default=100, help="planted, or read: the file's first genes"
        )
    making.add_argument("--cells", type=int, default=1_000_000)
    making.add_argument("--genes", type=int, default=20_000)
    making.add_argument("--depth", type=float, default=0.2, help="mean count of a regulated gene")
    making.add_argument("--processes", type=int, default=8)
    running.add_argument("--sample", type=int, default=36_000)
    running.add_argument("--processes", type=int, default=1, help="one for each GPU")
    running.add_argument(
        "--set", action="append", default=[], dest="fields", help="further fields of grn train"
    )
    chosen = vars(parser.parse_args())
    {"make": make, "run": run}[chosen.pop("command")](**chosen)


if __name__ == "__main__":
    main()
