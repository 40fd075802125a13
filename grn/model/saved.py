"""A trained model as a folder of plain files: safetensors, configuration, vocabulary, labels. No pickle."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from grn.config.schema import ModelConfig
from grn.errors import RunFolderError
from grn.files import replacing_folder
from grn.model.regulation import Regulation
from grn.model.regulation_layer import RegulationLayer
from grn.model.transformer import Model

FORMAT = 5
MEASURES, SHARE = "measures_depth", "depth_share"
FILES = ("card.json", "config.yaml", "vocabulary.txt", "labels.json", "model.safetensors")


@dataclass(frozen=True)
class TrainedModel:
    """A model with all that is needed to read new cells with it.

    vocabulary: gene of each embedding row.   classes: cell type of each logit.
    values: counts | expression.   multiplicity: the transform from counts to multiplicities, with `target_total`
    (None: not normalised).   depth: mean and sd of the training cells' log totals, the scale of the basal gene's
    multiplicity (None: it is always 1).   measures_depth: bool [V], the genes that these totals are over.
    depth_share [V]: the part of the totals in each gene.   property_key: obs column that the property head predicts, or
    None.
    """

    model: Model
    vocabulary: tuple[str, ...]
    classes: tuple[str, ...]
    values: str
    multiplicity: str
    target_total: float | None
    depth: tuple[float, float] | None
    measures_depth: np.ndarray
    depth_share: np.ndarray
    property_key: str | None = None

    @property
    def regulators(self) -> np.ndarray:
        """Vocabulary positions of the genes that other genes read."""
        return np.flatnonzero(self.model.is_regulator.cpu().numpy())

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the tensors."""
        return _hash(_tensors(self))

    def save(self, folder: Path) -> None:
        """Writes the model folder `folder`; an existing one is replaced as a whole."""
        card = {
            "format": FORMAT,
            "hash": self.hash,
            "values": self.values,
            "multiplicity": self.multiplicity,
            "target_total": self.target_total,
            "depth": self.depth,
            "regulation": _shapes(self.model.regulation),
            "property_key": self.property_key,
        }
        with replacing_folder(folder) as beside:
            (beside / "model.safetensors").write_bytes(save(_tensors(self)))
            (beside / "config.yaml").write_text(yaml.safe_dump(self.model.config.model_dump(), sort_keys=False))
            (beside / "vocabulary.txt").write_bytes(_lines(self.vocabulary))
            (beside / "labels.json").write_text(json.dumps(self.classes, ensure_ascii=False, indent=1), "utf-8")
            (beside / "card.json").write_text(json.dumps(card, indent=1))

    @staticmethod
    def load(folder: Path) -> TrainedModel:
        """Reads a model folder, or the one in a run folder. Raises RunFolderError where it is missing or damaged."""
        if not folder.exists():
            raise RunFolderError(f"{folder} does not exist; give a run folder or its model/.")
        folder = folder / "model" if (folder / "model").is_dir() else folder
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise RunFolderError(f"{folder} is not a model: {missing[0]} is missing; give a run folder or its model/.")
        try:
            card = json.loads((folder / "card.json").read_text("utf-8"))
            if card["format"] != FORMAT:
                raise RunFolderError(
                    f"{folder} has format {card['format']} and this version reads {FORMAT}; "
                    "train again, or use the version that wrote it."
                )
            config = ModelConfig(**yaml.safe_load((folder / "config.yaml").read_text("utf-8")))
            vocabulary = _names((folder / "vocabulary.txt").read_bytes())
            classes = tuple(json.loads((folder / "labels.json").read_text("utf-8")))
            tensors = load_file(folder / "model.safetensors")
            fields = {name: card[name] for name in ("values", "multiplicity", "target_total", "property_key")}
            fields["depth"] = None if card["depth"] is None else tuple(card["depth"])
            shapes = card["regulation"]
            undamaged = card["hash"] == _hash(tensors)
            measures, share = tensors.pop(MEASURES).numpy(), tensors.pop(SHARE).numpy()
        except (ValueError, TypeError, KeyError, yaml.YAMLError, SafetensorError) as damage:
            reason = " ".join(f"{type(damage).__name__}: {damage}".split())
            raise RunFolderError(f"{folder} is damaged ({reason:.200}); train again or restore it.") from None
        if not undamaged:
            raise RunFolderError(
                f"{folder} is damaged: the hash of its tensors is not the one in card.json; restore it."
            )
        try:
            model = Model(
                config,
                len(vocabulary),
                classes=len(classes),
                property=fields["property_key"] is not None,
                regulation=_regulation(shapes, tensors),
            )
            model.load_state_dict(tensors)
        except (RuntimeError, KeyError, TypeError):
            raise RunFolderError(
                f"{folder} is damaged: its tensors do not fit its configuration, genes or labels; restore it."
            ) from None
        return TrainedModel(model.eval(), vocabulary, classes, measures_depth=measures, depth_share=share, **fields)


def _lines(names: Sequence[str]) -> bytes:
    """One name a line, exactly: a line feed inside a name is written as \\n, a backslash as two."""
    return "".join(name.replace("\\", r"\\").replace("\n", r"\n") + "\n" for name in names).encode()


def _names(lines: bytes) -> tuple[str, ...]:
    """The names that `_lines` wrote."""
    # Bytes, because text mode turns every kind of line end into "\n"; not splitlines, which splits at even more
    # characters. Names may contain all of these, as those of a list with Windows' line ends do.
    return tuple(
        re.sub(r"\\(.)", lambda escaped: "\n" if escaped[1] == "n" else escaped[1], line)
        for line in lines.decode().split("\n")[:-1]
    )


def _shapes(regulation: Regulation | None) -> dict | None:
    """What the card says of the regulation layers."""
    if regulation is None:
        return None
    by_state = regulation.by_state
    return {
        "pooled": _shape(regulation.pooled),
        "by_state": None if by_state is None else _shape(by_state),
        "level_error": regulation.level_error,
        "within_share": regulation.within_share,
    }


def _shape(layer: RegulationLayer) -> dict[str, int | bool]:
    names = ("members", "heads", "width", "states", "deviates")
    return {name: getattr(layer, name) for name in names}


def _regulation(shapes: dict | None, tensors: dict[str, torch.Tensor]) -> Regulation | None:
    if shapes is None:
        return None
    regulators = tensors["is_regulator"].nonzero()[:, 0]
    pooled, by_state = (
        shape and RegulationLayer(genes=len(tensors["is_regulator"]), regulators=regulators, **shape)
        for shape in (shapes["pooled"], shapes["by_state"])
    )
    return Regulation(pooled, by_state, shapes["level_error"], shapes["within_share"]).requires_grad_(False)


def _hash(tensors: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(save(tensors)).hexdigest()[:16]


def _tensors(trained: TrainedModel) -> dict[str, torch.Tensor]:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in trained.model.state_dict().items()}
    return tensors | {
        MEASURES: torch.as_tensor(trained.measures_depth),
        SHARE: torch.as_tensor(trained.depth_share),
    }
