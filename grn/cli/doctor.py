"""`grn doctor`: what is installed, what runs where and why."""

from __future__ import annotations

from collections.abc import Callable

import typer

LIBRARIES = (
    "torch",
    "triton",
    "lightning",
    "anndata",
    "scanpy",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
)


def command() -> None:
    """Print what is installed, which kernels run here and why, and test them."""
    from grn.cli.console import console, plain

    say = plain(console())
    say("Installed")
    for name, version in _installed():
        say(f"  {name}: {version}")
    failed = _machine(say)
    if failed:
        say(
            f"{failed} of the kernels compute wrongly on this machine; please report that, with "
            "all of the above."
        )
        raise typer.Exit(1)


def _installed() -> list[tuple[str, str]]:
    """Return the name and version of grn, Python and each of LIBRARIES."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import grn

    found = [
        ("grn", grn.__version__),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
    ]
    for name in LIBRARIES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "not installed"))
    return found


def _machine(say: Callable[[str], None]) -> int:
    """Print the device, the kernels that run on it and their self-test; return how many tests
    failed.
    """
    import os

    import torch

    from flashsign.attention.dispatch import plan
    from flashsign.check import check_kernels
    from grn.config.schema import ModelConfig

    say("Device")
    say(f"  CPU: {os.cpu_count()} cores, {torch.get_num_threads()} threads of torch")
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties("cuda")
        capability = f"compute capability {about.major}.{about.minor}"
        say(
            f"  GPU: {about.name}, {about.total_memory / 1e9:.3g} GB, {capability}; "
            f"{torch.cuda.device_count()} in all"
        )
    else:
        say("  GPU: none that torch can use; everything runs on the CPU")
    say(
        "Attention: the model's own is over tables of scores, by matrix products; "
        "flashsign.spherical_attention takes"
    )
    model = ModelConfig()
    width = model.width_of_cells
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    kernels = set()
    for genes in (500, 2000, 20_000):
        shapes = [(8, heads, genes, width) for heads in (model.query_heads, model.key_heads)]
        chosen = plan(*shapes, dtype=dtype, gradients=True)
        say(
            f"  {genes} genes in a bag: {chosen.kernel}"
            + (f" ({chosen.reason})" if chosen.reason else "")
        )
        kernels.add(chosen.kernel)
    failed = 0
    if any(kernel.startswith("triton") for kernel in kernels):
        say("Self-test: outputs and gradients of the kernels against float64")
        for test in check_kernels([dtype], [width]):
            say(f"  {test.name}: {f'WRONG: {test.problem}' if test.problem else 'ok'}")
            failed += bool(test.problem)
    return failed
