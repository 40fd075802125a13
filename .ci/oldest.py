"""Write the oldest release of every dependency that pyproject.toml allows, as constraints for pip.

    python .ci/oldest.py > oldest.txt

Runtime dependencies alone: development tools come in their newest releases.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def oldest(requirement: str) -> str:
    """Return `name==version` for the lower bound of a requirement such as `scanpy>=1.11,<2`."""
    bound = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,<[\w.]+)?", requirement.replace(" ", ""))
    if bound is None:
        raise SystemExit(f"error: {requirement!r} has no lower bound")
    return f"{bound[1]}=={bound[2]}"


if __name__ == "__main__":
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    print("\n".join(map(oldest, project["dependencies"])))
