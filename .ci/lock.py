"""Writes constraints.lock: the packages of constraints.txt with the SHA-256 of their wheels.

    make lock

The wheels are those that pip would install here.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCAL = "+"  # of a version that no index but PyTorch's has


def pinned() -> tuple[list[str], list[str]]:
    """The lines of constraints.txt that apply here: those that PyPI has, and the others."""
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    return [line for line in lines if LOCAL not in line], [line for line in lines if LOCAL in line]


def main() -> None:
    from_pypi, others = pinned()
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder) / "wanted.txt", Path(folder) / "report.json"
        wanted.write_text("\n".join(from_pypi))
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--dry-run",
        ]
        command += [
            "--ignore-installed",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--report",
            str(report),
        ]
        subprocess.run([*command, "-r", str(wanted)], check=True)
        found = json.loads(report.read_text())["install"]
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    lines = [
        "# Written by `make lock`: the packages of constraints.txt with the SHA-256 of their "
        f"wheels for {platform.system()}",
        f"# on {platform.machine()} with {python}, as the package index had them on "
        f"{time.strftime('%Y-%m-%d')}:",
        "#     pip install --require-hashes --no-deps -r constraints.lock",
        "# pip takes hashes of requirements only, so `-c` reads constraints.txt, which has none. "
        "Not here, as only the",
        f"# index of PyTorch has it: {', '.join(line.split(';')[0] for line in others)}.",
    ]
    for each in sorted(found, key=lambda each: each["metadata"]["name"].lower()):
        digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(
            f"{each['metadata']['name']}=={each['metadata']['version']} --hash=sha256:{digest}"
        )
    (ROOT / "constraints.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
