"""A trained model as a folder of plain files: safetensors, configuration, vocabulary, labels. No
pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.numpy import save
from torch import Tensor, nn

from grn.model.folder import (
    CARD,
    FORMAT,
    STEP,
    WEIGHTS,
    damaged_model,
    hash_of,
    lines_of,
    packed,
    read_model_folder,
    tables_of,
)
from grn.model.reader import ReaderShape
from grn.model.regulation import Model
from grn.runtime.atomic import replacing_folder

MEASURES, SHARE = "measures_depth", "depth_share"


LARGE = 2**16  # numbers of a table, from which on it is kept as whole numbers of 7 bits and a sign
LEAST_EXPONENT = -100


@torch.no_grad()
def round_as_saved(model: nn.Module) -> None:
    """Rounds the parameters as a model folder keeps them: to half precision, and large tables to
    multiples of a step.

    Training ends with this, before anything is read, so that the saved model gives what the trained
    one gave. A step is about a hundredth of a row's largest number. With 612 regulators and 15
    states, weights change by a twentieth of the sd between members, and the error of test cells by
    a millionth.
    """
    for parameter in model.parameters():
        parameter.copy_(
            parameter.half() if parameter.numel() < LARGE else _whole(parameter) * _step(parameter)
        )


def _step(table: Tensor) -> Tensor:
    """Of each row, [.., 1]: the power of two of which all its numbers are fewer than 128 multiples,
    and the largest at least 64. Rows differ: those of genes that no regulator explains are small
    throughout.
    """
    largest = table.detach().abs().amax(-1, keepdim=True)
    # smaller numbers are 0: their step would be, too
    exponent = largest.frexp().exponent.clamp(min=LEAST_EXPONENT)
    return torch.ldexp(torch.ones_like(largest), exponent - 7)


def _whole(table: Tensor) -> Tensor:
    """Return a table as multiples of its step, -127 to 127: rounded once, it has the same step and
    the same multiples.
    """
    return (table / _step(table)).round().clamp(-127, 127)


def packed_parameters(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return parameters as a file holds them."""
    found = {}
    for name, parameter in parameters:
        large = parameter.numel() >= LARGE
        found[name] = _whole(parameter).to(torch.int8) if large else parameter.half()
        found |= {name + STEP: _step(parameter)} if large else {}
    return found


def unpacked_parameters(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of `packed_parameters` as floating-point numbers."""
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith(STEP)}
    for name in tables_of(tensors):
        step = tensors[name + STEP]
        found[name] = tensors[name].reshape(*step.shape[:-1], -1) * step  # whole numbers are flat
    return found


@dataclass(frozen=True)
class TrainedModel:
    """A model with all that is needed to read new cells with it.

    vocabulary: gene of each embedding row.
    classes: cell type of each logit.
    values, multiplicity: see DataConfig.
    target_total: to which counts are scaled (None: they are not).
    depth: mean and sd of the training cells' log totals, the scale of the basal gene's multiplicity
        (None: it is always 1).
    measures_depth: bool [V], the genes that these totals are over.
    depth_share [V]: the part of the totals in each gene.
    cells: digest of the training cells (grn/cells/cells.py), or None.
    keys: the number of guides' keys, which stand after the genes at the end of the vocabulary.
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
    cells: str | None = None
    keys: int = 0

    @property
    def regulators(self) -> np.ndarray:
        """Vocabulary positions of the regulators."""
        return np.flatnonzero(self.model.is_regulator.cpu().numpy())

    @property
    def hash(self) -> str:
        """Of all that the model folder holds; see `hash_of`."""
        return self._card_and_content()[0]["hash"]

    def save(self, folder: Path) -> None:
        """Write the model folder `folder`; an existing one is replaced as a whole."""
        card, content = self._card_and_content()
        with replacing_folder(folder) as beside:
            for name, whole in content.items():
                (beside / name).write_bytes(whole)
            (beside / CARD).write_text(json.dumps(card, indent=1))

    def _card_and_content(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the entries of card.json and the bytes of every other file."""
        card = {
            "format": FORMAT,
            "values": self.values,
            "multiplicity": self.multiplicity,
            "target_total": self.target_total,
            "depth": None if self.depth is None else list(self.depth),
            "states": len(self.model.share),
            "identity": vars(self.model.identity.shape),
            "genes_train": self.model.genes_train,
            "cells": self.cells,
            **({"keys": self.keys} if self.keys else {}),
        }
        with torch.no_grad():
            state = self.model.state_dict() | packed_parameters(self.model.named_parameters())
        tensors = {
            name: tensor.detach().cpu().contiguous().numpy() for name, tensor in state.items()
        }
        tensors |= {MEASURES: self.measures_depth, SHARE: self.depth_share}
        content = {
            "config.yaml": yaml.safe_dump(self.model.config.model_dump(), sort_keys=False).encode(),
            "vocabulary.txt": lines_of(self.vocabulary),
            "labels.json": json.dumps(self.classes, ensure_ascii=False, indent=1).encode(),
            WEIGHTS: save(packed(tensors)),
        }
        return card | {"hash": hash_of(card, content, tensors)}, content

    @staticmethod
    def load(folder: Path) -> TrainedModel:
        """Read a model folder, or the one in a run folder.

        Raises RunFolderError where it is missing or damaged, or a weight is not finite.
        """
        files = read_model_folder(folder)
        card = files.card
        with suppress(RuntimeError, KeyError, TypeError, ValueError):
            tensors = {name: torch.from_numpy(each.copy()) for name, each in files.tensors.items()}
            tensors = unpacked_parameters(tensors)
            if not all(tensor.isfinite().all() for tensor in tensors.values()):
                raise ValueError("a weight is not finite")
            if len(files.classes) != card["identity"]["classes"]:
                raise ValueError("another number of cell types")
            measures, share = tensors.pop(MEASURES).numpy(), tensors.pop(SHARE).numpy()
            model = Model(
                files.config,
                len(files.vocabulary),
                regulators=tensors["is_regulator"].nonzero()[:, 0],
                states=card["states"],
                identity=ReaderShape(**card["identity"]),
                genes_train=card["genes_train"],
            )
            model.load_state_dict(tensors)
            return TrainedModel(
                model.eval().requires_grad_(False),
                files.vocabulary,
                files.classes,
                measures_depth=measures,
                depth_share=share,
                depth=None if card["depth"] is None else tuple(card["depth"]),
                keys=card.get("keys", 0),
                **{
                    name: card[name] for name in ("values", "multiplicity", "target_total", "cells")
                },
            )
        raise damaged_model(folder)
