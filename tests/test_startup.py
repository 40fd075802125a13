"""Start-up stays quick because nothing heavy is imported: torch takes seconds, Lightning ten."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    *("torch", "lightning", "scanpy", "anndata", "matplotlib", "pandas", "numpy", "scipy"),
    *("sklearn", "triton"),
}
COMMANDS = [
    *([command, "--help"] for command in ("train", "predict", "export", "evaluate", "doctor")),
    ["--help"],
    ["data", "list"],
    ["train", "--config", "pbm.yaml"],
]
STEPS = [
    "import grn; dir(grn)",
    "import grn.plots; dir(grn.plots)",
    "import grn.config.schema, grn.config.files",
    "import grn.runtime.errors, grn.runtime.atomic, grn.runtime.messages, grn.runtime.run_folder",
    *(f"from grn.cli.main import main; main({command})" for command in COMMANDS),
]


def imported_by(*steps: str) -> list[set[str]]:
    """The packages that a new Python has imported after each step."""
    code = "\n".join(
        f"{step}\nprint('\\nmodules', *{{n.partition('.')[0] for n in sys.modules}})"
        for step in steps
    )
    command = [sys.executable, "-c", f"import sys\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [
        set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("modules ")
    ]


def test_nothing_heavy_is_imported():
    found = dict(zip(STEPS, imported_by(*STEPS), strict=True))
    assert {step: modules & HEAVY for step, modules in found.items() if modules & HEAVY} == {}


def test_importing_grn_imports_nothing_but_itself():
    before, after = imported_by("pass", "import grn")
    assert after - before == {"grn"}
