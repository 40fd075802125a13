"""Options of the scripts, from their defaults; words that several scripts share mean the same in
each.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, PICTURES = HERE / "results", HERE.parent / "docs/img"


@dataclass(frozen=True)
class Option:
    """default: False makes a switch, a list takes several values; kind: the type if it is None."""

    default: Any = None
    help: str = ""
    choices: Iterable[str] | None = None
    kind: type = str
    several: bool = False

    def added_to(self, parser: argparse.ArgumentParser, name: str) -> None:
        flag, default = f"--{name.replace('_', '-')}", self.default
        if default is False:
            parser.add_argument(flag, action="store_true", help=self.help)
            return
        several = self.several or isinstance(default, (list, tuple))
        first = (default or [None])[0] if several else default
        kind = self.kind if first is None else Path if isinstance(first, Path) else type(first)
        parser.add_argument(
            flag,
            type=kind,
            default=default,
            choices=self.choices,
            nargs="+" if several else None,
            help=self.help,
        )


def all_of(choices: Iterable[str]) -> Option:
    """Return an option that takes some of them, and all where it is not given."""
    return Option(list(choices), choices=list(choices))


PATTERNS = Option(["*"], "names or patterns (default: all)")
SMOKE = Option(False, "tiny sizes, to see that everything runs")
OUTPUT = Option(help="default: benchmarks/results; --smoke: a new folder", kind=Path)


def read_options(text: str | None, argv: Sequence[str] | None = None, **options: Any) -> Any:
    """Return the options of a script whose docstring is `text`: an Option, or its default alone."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, option in options.items():
        (option if isinstance(option, Option) else Option(option)).added_to(parser, name)
    return parser.parse_args(argv)


def settle_places(arguments: argparse.Namespace, name: str) -> None:
    """Fill in where a benchmark of kernels writes, as far as it was not given: the folder `output`
    and, where it draws, the file `picture`; with --smoke, in a new folder.
    """
    if arguments.smoke and not arguments.output:
        arguments.output = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    arguments.output = arguments.output or RESULTS
    if "picture" in arguments and not arguments.picture:
        folder = arguments.output if arguments.smoke else PICTURES
        arguments.picture = folder / f"{name}.png"


def refuse_full_sizes_without_a_gpu(arguments: argparse.Namespace) -> None:
    if not arguments.smoke and not arguments.device.startswith("cuda"):
        raise SystemExit(
            f"Full sizes need a GPU, and --device is {arguments.device}; --smoke runs tiny ones "
            "anywhere."
        )
