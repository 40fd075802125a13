"""Rows as printed lines, and the comparison with the published numbers."""

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
    "matmul_share": ("/ matmul", 9, ".2f"),
    "ratio_cudnn": ("x cuDNN", 8, ".2f"),
    "ratio_flash": ("x FA-2", 8, ".2f"),
    "ratio_eager": ("x eager", 8, ".2f"),
    "memory_mib": ("MiB", 9, ".1f"),
    "within_001": ("<=0.01 %", 9, ".3%"),
    "relative_error": ("rel. err", 9, ".1e"),
}
LEGEND = """\
ms: median. TFLOP/s: for every method 4 N M E operations per head forward, 10 backward and 14 both, so that rates
compare as times do; moments do far fewer and can exceed the chip's rate. / matmul: TFLOP/s over those of a large matrix
product. x cuDNN, x FA-2, x eager: the peer's time in this run over the method's; above 1 the method is faster. MiB:
extra memory at the peak (backward alone: without what forward saved). <=0.01 %: elements within 0.01 of float64, in per
cent, and rel. err: the relative error, both over 256 rows of one head and for spherical methods only. Multiplicities
get no gradient. Short calls are timed without the time in which the GPU waits for the host (--small measures that)."""


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
    """flashsign's stream against the published numbers of a CUDA kernel on an A100; table: the rows of the run."""
    where = f"N = {size}, E = {width}, {dtype}"
    at = table[(table["N"] == size) & (table["E"] == width) & (table["dtype"] == dtype)]
    ours = at[(at["method"] == METHODS["stream"].name) & (at["status"] == "ok")].set_index("direction")
    if ours.empty:
        return f"Published numbers: no comparison, because flashsign's stream was not measured at {where}."
    weights = at[(at["method"] == METHODS["weights"].name) & (at["status"] == "ok")].set_index("direction")
    ratios = {
        "x PyTorch (divided after the sum)": ("3.6", ours["ratio_eager"]),
        "x PyTorch (weights stored)": ("3.6", weights["ms"].reindex(ours.index) / ours["ms"]),
        "x FlashAttention-2": ("0.95", ours["ratio_flash"]),
        "x cuDNN": ("", ours["ratio_cudnn"]),
    }
    lines = [f"flashsign's stream at {where} beside the published CUDA kernel on an A100 (arXiv 2505.09326):"]
    lines.append(f"{'':<36}{'published':>10}" + "".join(f"{direction:>10}" for direction in ours.index))
    for title, (published, values) in ratios.items():
        numbers = "".join(f"{value:>10.2f}" for value in values).replace("nan", "  -")
        lines.append(f"{title:<36}{published:>10}{numbers}")
    near, error = ours["within_001"].iloc[0], ours["relative_error"].iloc[0]
    lines.append(f"{'elements within 0.01':<36}{'99.7 %':>10}{100 * near:>8.3f} %   (relative error {error:.1e})")
    return "\n".join(lines)
