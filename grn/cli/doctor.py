"""`grn doctor`: what is installed, what runs where and why, and what a run would take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from grn.cli.train import loaded_config

LIBRARIES = ("torch", "triton", "lightning", "anndata", "scanpy", "numpy", "scipy", "pandas", "pyarrow")


def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG|CELLS", help="A run to rehearse: what grn train would be given.", show_default=False
        ),
    ] = None,
) -> None:
    """Print what is installed, which kernels run here and why, and test them; of a run, estimate time and memory."""
    from grn.cli.console import console, plain

    config = loaded_config(path) if path else None
    if config is not None:
        from grn.training.machine import refuse_impossible_training
        from grn.training.run import checked_cells

        refuse_impossible_training(config.trainer)
        checked_cells(config)  # what is wrong with them is said at once, and not after the self-test
    say = plain(console())
    say("Installed")
    for name, version in _installed():
        say(f"  {name}: {version}")
    failed = _machine(say, config)
    if config is not None:
        _estimate(config, say)
    if failed:
        say(f"{failed} of the kernels compute wrongly on this machine; please report that, with all of the above.")
        raise typer.Exit(1)


def _installed() -> list[tuple[str, str]]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import grn

    found = [("grn", grn.__version__), ("python", f"{platform.python_version()} on {platform.platform()}")]
    for name in LIBRARIES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "not installed"))
    return found


def _machine(say: Callable[[str], None], config) -> int:
    """Prints the device, the kernels' paths and their self-test; returns how many failed."""
    import os

    import torch

    from flashsign.check import check_kernels
    from flashsign.dispatch import plan
    from grn.config.schema import ModelConfig

    say("Device")
    say(f"  CPU: {os.cpu_count()} cores, {torch.get_num_threads()} threads of torch")
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties("cuda")
        capability = f"compute capability {about.major}.{about.minor}"
        say(f"  GPU: {about.name}, {in_units(about.total_memory)}, {capability}; {torch.cuda.device_count()} in all")
    else:
        say("  GPU: none that torch can use; everything runs on the CPU")
    say("Attention: the model's own is over tables of scores, by matrix products; flashsign.spherical_attention takes")
    model = ModelConfig() if config is None else config.model
    width, dtype = model.width, torch.bfloat16 if torch.cuda.is_available() else torch.float32
    kernels = set()
    for genes in (500, 2000, 20_000):
        shapes = [(8, heads, genes, width) for heads in (model.query_heads, model.key_heads)]
        chosen = plan(*shapes, dtype=dtype, gradients=True)
        say(f"  {genes} genes in a bag: {chosen.kernel}" + (f" ({chosen.reason})" if chosen.reason else ""))
        kernels.add(chosen.kernel)
    failed = 0
    if any(kernel.startswith("triton") for kernel in kernels):
        say("Self-test: outputs and gradients of the kernels against float64")
        for test in check_kernels([dtype], [width]):
            say(f"  {test.name}: {f'WRONG: {test.problem}' if test.problem else 'ok'}")
            failed += bool(test.problem)
    return failed


def _estimate(config, say: Callable[[str], None]) -> None:
    from grn.training.rehearsal import rehearse

    found = rehearse(config, say)
    say(f"Estimate for {config.data.path}, from a rehearsal of {found.rehearsed:.0f} s")
    say(f"  until training begins: {found.before:.0f} s")
    say(f"  training: at most {found.training:.0f} s, {found.steps} steps of {1000 * found.per_step:.0f} ms")
    say(f"  after training: {found.after:.0f} s")
    say(f"  in all: at most {found.seconds:.0f} s; less where validation stops training earlier (trainer.patience)")
    for name, size in (("memory", found.memory), ("memory of the GPU", found.gpu_memory)):
        if size is not None:
            say(f"  {name}: {in_units(size)}")


def in_units(size: float) -> str:
    """A number of bytes as text: 512 bytes, 1.5 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
