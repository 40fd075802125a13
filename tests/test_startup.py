"""Start-up stays quick because nothing heavy is imported: torch takes seconds, Lightning ten."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "lightning", "scanpy", "anndata", "matplotlib", "pandas", "numpy", "scipy", "sklearn", "triton"}


def imported_by(code: str) -> set[str]:
    listing = "import sys; print('\\nmodules', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, timeout=120, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import grn; dir(grn)",
        "import grn.plots; dir(grn.plots)",
        "import grn.config.schema, grn.config.files, grn.config.mistakes, grn.config.strict_yaml",
        "import grn.errors, grn.io.atomic, grn.messages, grn.io.run_folder",
        "from grn.cli.main import main; main(['--help'])",
        "from grn.cli.main import main; main(['train', '--help'])",
        "from grn.cli.main import main; main(['predict', '--help'])",
        "from grn.cli.main import main; main(['export', '--help'])",
        "from grn.cli.main import main; main(['evaluate', '--help'])",
        "from grn.cli.main import main; main(['data', 'list'])",
        "from grn.cli.main import main; main(['doctor', '--help'])",
        "from grn.cli.main import main; main(['benchmark', '--help'])",
        "from grn.cli.main import main; main(['train', '--config', 'pbm.yaml'])",
    ],
)
def test_nothing_heavy_is_imported(code):
    assert imported_by(code) & HEAVY == set()


def test_importing_grn_imports_nothing_but_itself():
    assert imported_by("import grn") - imported_by("pass") == {"grn"}
