"""Rows as lines that a person reads."""

from __future__ import annotations

from typing import Any

import pandas as pd

from attention_parts.methods import METHODS

# Title, width and format of each printed column; the CSV has more.
SHOWN = {
    "method": ("method", 38, "<"),
    "N": ("N", 6, ""),
    "E": ("E", 4, ""),
    "dtype": ("dtype", 6, ""),
    "direction": ("direction", 10, ""),
    "ms": ("ms", 9, ".3f"),
    "tflops": ("TFLOP/s", 8, ".0f"),
    "matmul_share": ("share", 6, ".2f"),
    "ratio_cudnn": ("x cuDNN", 8, ".2f"),
    "ratio_flash": ("x FA-2", 8, ".2f"),
    "ratio_eager": ("x eager", 8, ".2f"),
    "memory_mib": ("MiB", 9, ".1f"),
    "within_001": ("<=0.01 %", 9, ".3%"),
    "relative_error": ("rel. err", 9, ".1e"),
}
LEGEND = """\
ms: median. TFLOP/s: 4 N M E operations a head forward, 10 backward, 14 both, nominal for every method: times and rates
compare alike, and moments may pass the chip's rate. share: of a matrix product's rate. x: the other's time over the
method's, above 1 is faster. MiB: extra memory at the peak (backward alone: without what forward saved). <=0.01 %: share
of elements within 0.01 of float64, and relative error, of 256 rows of one head; spherical methods only. Multiplicities
are data: they want no gradient.
Short calls are timed behind a pause of the device, without the host's share (--small measures that)."""


def header() -> str:
    return "".join(f"{title:<{width}}" if how == "<" else f"{title:>{width}}" for title, width, how in SHOWN.values())


def line(row: dict[str, Any]) -> str:
    return "".join(_cell(column, row[column], row["status"]) for column in SHOWN)


def _cell(column: str, value: Any, status: str) -> str:
    _, width, how = SHOWN[column]
    if how == "<":
        return f"{value:<{width}}"
    if column == "ms" and status != "ok":
        return f"{status:>{width}}"
    if how and (pd.isna(value) or value is None):
        return " " * width
    if how == ".3%":
        return f"{100 * value:>{width}.3f}"
    return f"{value:>{width}{how}}"


def claims(table: pd.DataFrame, size: int = 41472, width: int = 128, dtype: str = "fp16") -> str:
    """Ours against what arXiv 2505.09326 says of its CUDA kernel for the A100; table: the rows of the run."""
    where = f"N = {size}, E = {width}, {dtype}"
    at = table[(table["N"] == size) & (table["E"] == width) & (table["dtype"] == dtype)]
    ours = at[(at["method"] == METHODS["stream"].name) & (at["status"] == "ok")].set_index("direction")
    if ours.empty:
        return f"Against the published claims: nothing of ours was measured at {where}."
    weights = at[(at["method"] == METHODS["weights"].name) & (at["status"] == "ok")].set_index("direction")
    ratios = {
        "x PyTorch (divided after the sum)": ("3.6", ours["ratio_eager"]),
        "x PyTorch (weights stored)": ("3.6", weights["ms"].reindex(ours.index) / ours["ms"]),
        "x FlashAttention-2": ("0.95", ours["ratio_flash"]),
        "x cuDNN": ("", ours["ratio_cudnn"]),
    }
    lines = [f"Against the published claims (a CUDA kernel for the A100, arXiv 2505.09326), ours at {where}:"]
    lines.append(f"{'':<36}{'claimed':>9}" + "".join(f"{direction:>10}" for direction in ours.index))
    for title, (claimed, values) in ratios.items():
        lines.append(f"{title:<36}{claimed:>9}" + "".join(f"{value:>10.2f}" for value in values).replace("nan", "  -"))
    near, error = ours["within_001"].iloc[0], ours["relative_error"].iloc[0]
    lines.append(f"{'elements within 0.01':<36}{'99.7 %':>9}{100 * near:>8.3f} %   (relative error {error:.1e})")
    return "\n".join(lines)
