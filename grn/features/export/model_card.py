"""A trained model as a folder for the Hugging Face Hub: the model folder, which has no pickle, and
a card about it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from grn.config.files import load_config
from grn.config.schema import DataConfig
from grn.model.folder import FILES
from grn.model.saved import TrainedModel
from grn.runtime.atomic import refuse_used_folder, replacing_folder
from grn.runtime.messages import Say
from grn.runtime.run_folder import CONFIG

CARD = "README.md"
METRICS = {
    "accuracy": "accuracy of the cell types",
    "macro_f1": "macro F1 of the cell types",
    "r2": "R2 of the genes, from their regulators",
    "error": "error of the genes, in their variances",
    "ridge_error": "error of ridge within types on the same regulators",
    "means_error": "error of the means of the types",
}


def export_model(run: Path, metrics: Mapping[str, float], output: Path, say: Say) -> None:
    """Make the folder `output` from a finished run: its model's files, and README.md. Raises
    RunFolderError.

    metrics: of the run's test cells.
    """
    refuse_used_folder(output)
    trained = TrainedModel.load(run)
    with replacing_folder(output) as beside:
        for name in FILES:
            shutil.copyfile(run / "model" / name, beside / name)
        card = card_of(trained, load_config(run / CONFIG).data, metrics, output.name)
        (beside / CARD).write_text(card, encoding="utf-8")
    say(f"The model and its card are in {output}; grn.load({str(output)!r}) opens it.")


def card_of(
    trained: TrainedModel, data: DataConfig, metrics: Mapping[str, float], name: str
) -> str:
    """The text of README.md. metrics: of the test cells, by their names in metrics.csv."""
    source = data.path if data.path.startswith(("scanpy:", "simulated:")) else Path(data.path).name
    types = (
        "\n".join(f"- {each}" for each in trained.classes) or "None: it was trained without labels."
    )
    scores = "\n".join(
        f"| {METRICS[each]} | {metrics[each]:.3f} |" for each in METRICS if each in metrics
    )
    return Template(
        files("grn.features.export").joinpath("model_card.md").read_text("utf-8")
    ).substitute(
        name=name,
        hash=trained.hash,
        source=source,
        genes=len(trained.vocabulary),
        values=data.values,
        multiplicity=data.multiplicity,
        types=types,
        scores=scores,
    )
