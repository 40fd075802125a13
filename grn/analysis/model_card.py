"""A trained model as a folder for the Hugging Face Hub: the model folder, which has no pickle, and a card about it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from grn.config.files import load_config
from grn.config.schema import Config
from grn.io.atomic import refuse_used_folder, replacing_folder
from grn.io.run_folder import CONFIG, config_of
from grn.io.tables import table_of_run
from grn.messages import Say
from grn.model.folder import FILES
from grn.model.saved import TrainedModel

CARD = "README.md"
METRICS = {
    "accuracy": "accuracy of the cell types",
    "macro_f1": "macro F1 of the cell types",
    "r2": "R2 of masked multiplicities",
    "regulation_error": "error of the regulation layers (of each gene's mean: 1)",
    "ridge_error": "error of ridge on the same regulators",
}


def export_model(run: Path, output: Path, say: Say) -> None:
    """Makes the folder `output` from a finished run: its model's files, and README.md. Raises RunFolderError."""
    refuse_used_folder(output)
    config_of(run, (CONFIG, "metrics.csv"))
    trained = TrainedModel.load(run)
    with table_of_run(run / "metrics.csv"):
        last = pd.read_csv(run / "metrics.csv").iloc[-1]
        metrics = {name: float(last[f"test/{name}"]) for name in METRICS if f"test/{name}" in last}
    with replacing_folder(output) as beside:
        for name in FILES:
            shutil.copyfile(run / "model" / name, beside / name)
        card = card_of(trained, load_config(run / CONFIG), metrics, output.name)
        (beside / CARD).write_text(card, encoding="utf-8")
    say(f"The model and its card are in {output}; grn.load({str(output)!r}) opens it.")


def card_of(trained: TrainedModel, config: Config, metrics: dict[str, float], name: str) -> str:
    """The text of README.md. metrics: of the test cells, by their names in metrics.csv."""
    data = config.data
    source = data.path if data.path.startswith(("scanpy:", "simulated:")) else Path(data.path).name
    types = "\n".join(f"- {each}" for each in trained.classes) or "None: it was trained without labels."
    scores = "\n".join(f"| {METRICS[each]} | {value:.3f} |" for each, value in metrics.items() if value == value)
    return f"""---
library_name: grn
tags:
- single-cell
- gene-regulatory-network
- cell-type-annotation
---

# {name}

A signed gene regulatory network and cell types, trained by [grn](https://pypi.org/project/grn) on single-cell
expression with spherical attention. Hash of the model: `{trained.hash}`.

```python
import grn

cells = grn.predict("cells.h5ad", "{name}")  # obs["grn_cell_type"], obsm["X_grn"]
```

## Data

`{source}`: {len(trained.vocabulary)} genes, values: {data.values}, multiplicity: {data.multiplicity}. Cells are matched
by the names of genes (`vocabulary.txt`); at least half of them must be there.

## Cell types

{types}

## Metrics of held-out cells

| metric | value |
|---|---|
{scores}

## Limits

- Cells of types that are not in the list get one of its names, often with confidence.
- Confidences were fitted on cells of the same experiment; on another one they may be too high.
- Edges are associations: the sign says what the regulator's level does to the prediction. No experiment is behind it.

The weights are in `model.safetensors`; nothing in this folder is a pickle.
"""
