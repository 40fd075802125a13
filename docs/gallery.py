"""Draws every picture of grn.plots into docs/img/gallery: `python docs/gallery.py [FOLDER]`, less
than a minute.

It trains a small model on the 700 blood cells that scanpy ships, with fewer steps than the
defaults: the pictures show what they look like, not a result. CI runs it, so that each picture can
be drawn. Related pictures share a file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import scanpy as sc
from PIL import Image

import grn

FEW = {"model.members": 2, "trainer.validate_every": 25, "model.reader": "linear"}
COLOURS = 256  # of a picture, so that files stay small: one byte a pixel
TOGETHER = {
    "network_graph": ["network_graph", "network_graph_one"],
    "run": ["confusion_matrix", "training_curves", "precision_recall_curves"],
}
HERE = Path(__file__).parent


def pictures(run: grn.Run, cells) -> dict[str, object]:
    """Each picture by name, a Figure or Axes."""
    active = cells.raw.to_adata()
    # of all edges, as few are certain after a short run
    weights = run.edges[["source", "target", "weight"]]
    table = grn.activity(active, weights, by="bulk_labels", quiet=True)
    monocytes = "CD14+ Monocyte"
    certain = run.edges[run.edges["q_value"] <= 0.05]
    who, whom = (list(dict.fromkeys(certain[end])) for end in ("source", "target"))
    knocked_out = grn.perturb(run, knock_out="SPI1", cell_type=monocytes, data=cells)
    found = np.linspace(0.02, 1, 50)
    curves = {
        "network": pd.DataFrame({"recall": found, "precision": 0.1 + 0.7 * np.exp(-3 * found)})
    }
    curves["ridge"] = pd.DataFrame({"recall": found, "precision": 0.1 + 0.5 * np.exp(-3 * found)})
    plots = grn.plots
    return {
        "network_graph": plots.network_graph(run),
        "network_graph_one": plots.network_graph(run, certain["source"].mode()[0]),
        "clustered_heatmap": plots.clustered_heatmap(run, regulators=who, targets=whom),
        "activity_heatmap": plots.activity_heatmap(table),
        "attention_layers": plots.attention_layers(run),
        "perturbation_volcano": plots.perturbation_volcano(knocked_out),
        "cell_type_genes": plots.cell_type_genes(grn.explain(cells, run, quiet=True), "CD19+ B"),
        "confusion_matrix": plots.confusion_matrix(run.confusion),
        "training_curves": plots.training_curves(run.history),
        # invented: there is no truth here
        "precision_recall_curves": plots.precision_recall_curves(curves, 0.1),
    }


def reduced(picture: Image.Image) -> Image.Image:
    """The picture in COLOURS colours, of which rare ones keep theirs.

    By number of pixels, as Pillow chooses where nothing is said, the dark reds of a colour bar
    would become brown.
    """
    return picture.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def below_each_other(pictures: list[Image.Image]) -> Image.Image:
    """One picture, as wide as the widest."""
    sheet = Image.new(
        "RGB",
        (max(each.width for each in pictures), sum(each.height for each in pictures)),
        "white",
    )
    top = 0
    for each in pictures:
        sheet.paste(each, (0, top))
        top += each.height
    return sheet


def main(folder: Path) -> None:
    from grn.plots.style import save

    cells = sc.datasets.pbmc68k_reduced()
    started = time.monotonic()
    run = grn.train(cells, config="pbmc.yaml", max_steps=200, set=FEW, quiet=True)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, picture in pictures(run, cells).items():
            path = Path(scratch) / f"{name}.png"
            save(picture, path)
            drawn[name] = Image.open(path).convert("RGB")
    for name, parts in TOGETHER.items():
        drawn[name] = below_each_other([drawn.pop(part) for part in parts])
    for name, picture in drawn.items():
        reduced(picture).save(folder / f"{name}.png", optimize=True)
    print(f"wrote {len(drawn)} pictures to {folder} in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "img" / "gallery")
