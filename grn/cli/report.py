"""`grn report`: writes the report of a finished run again."""

from __future__ import annotations

from grn.cli.options import RunFolder


def command(run: RunFolder) -> None:
    """Write report.html of a finished run again, as this version writes it."""
    from grn.cli.console import console, plain
    from grn.verbs.run import load

    opened = load(run)
    plain(console())(f"Report: {opened._write_report(opened.folder)}")
