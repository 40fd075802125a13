"""How do I run the other methods on a machine without this project?

    # where the data is
    python benchmarks/sets.py --export sets.npz
    # anywhere
    python benchmarks/run_peers.py --prepared sets.npz --jobs 14 --output networks
    # where the data is
    python benchmarks/networks.py --cache networks

Runs them on prepared sets and fills a cache. Takes about 11 minutes on 16 cores, and 20 more where
RegDiffusion is installed. It needs the folder `peers` beside it, numpy, scipy, pandas, scikit-learn
and joblib. Networks that are in the output folder already are not computed again, so that an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from peers import NAMES
from peers.cached import NotRun, load_prepared, run_peer
from peers.measure import CallFailed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--prepared", type=Path, required=True, metavar="FILE", help="from sets.py --export"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="the cache to fill"
    )
    parser.add_argument(
        "--sets", nargs="+", default=["*"], metavar="NAME", help="names or patterns (default: all)"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(NAMES),
        choices=NAMES,
        metavar="NAME",
        help="default: all",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="other settings, e.g. trees=10"
    )
    arguments = parser.parse_args()
    sets = load_prepared(arguments.prepared)
    sets = [
        one for one in sets if any(fnmatchcase(one.name, pattern) for pattern in arguments.sets)
    ]
    if not sets:
        parser.error(f"{arguments.prepared} has no set of that name")
    failures = 0
    for name in arguments.methods:
        for one in sets:
            try:
                network, notes = run_peer(
                    name,
                    one,
                    folder=arguments.output,
                    jobs=arguments.jobs,
                    seed=arguments.seed,
                    changes=arguments.set,
                )
            except NotRun as error:
                print(f"{name:<20} {one.name:<36} {error}", flush=True)
                continue
            except CallFailed as error:
                failures += 1
                print(f"{name} on {one.name} failed: {error}", file=sys.stderr, flush=True)
                continue
            origin = "cached" if notes["cached"] else f"on {notes['cores']} cores"
            print(
                f"{name:<20} {one.name:<36} {len(network):>7} pairs {notes['seconds']:>9.1f} s "
                f"{notes['peak_mb']:>7.0f} MB  {origin}",
                flush=True,
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
