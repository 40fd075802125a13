"""One block of the model, one of its heads or all: scores, effects, or normalised weights.

Block 0 has the regulators as its targets, block 1 all other genes. Signs mean up and down in each
of the three: amounts and gains are positive (grn/model/signed_block.py).

Letters: C cells, N genes, n targets of a block, R regulators, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from grn.cells.cells import Cells
from grn.edges.weights import without_self
from grn.evidence.states import States
from grn.model.regulation import Model
from grn.model.transformer import Transformer
from grn.networks.read import CELLS
from grn.runtime.errors import ConfigError

MEANING = {
    "score": "positive: the regulator raises the target; q_i.k_j for a multiplicity of 1",
    "weight": "positive: the regulator raises the target; the mean over cells of the score over "
    "its norm, -1 to 1",
    "effect": "positive: more of the regulator raises the target's predicted multiplicity (sds per "
    "sd, in this block)",
}


@dataclass(frozen=True)
class LayerChoice:
    """Which layer and head is read, and what of it.

    layer: number of a block, from 0.
    head: number of a query head; None: the sum of effects, or the mean of scores and weights, over
        all of them.
    value: score | weight | effect, see MEANING.
    """

    layer: int
    head: int | None = None
    value: str = "effect"

    @property
    def meaning(self) -> str:
        return MEANING[self.value]

    def check(self, model: Model) -> None:
        """Raise ConfigError where the model has no such layer or head."""
        counts = {"layer": len(model.blocks), "head": model.blocks[0].embedding.query.shape[1]}
        for field, count in counts.items():
            number = getattr(self, field)
            if number is not None and not 0 <= number < count:
                raise ConfigError(
                    "{field} is " + f"{number}, and this model has 0 to {count - 1}", field=field
                )

    def check_attention(self, reader: Transformer) -> None:
        """Raise ConfigError where the transformer has no such layer between genes, or more is asked
        for than a mean weight.
        """
        layers = len(reader.layers) - 1
        if not 0 <= self.layer < layers:
            has = f"0 to {layers - 1}" if layers else "none"
            raise ConfigError(
                "{field} is " + f"{self.layer}; genes read genes in layers {has}", field="layer"
            )
        if self.head is not None or self.value == "score":
            raise ConfigError(
                "Of the transformer, mean weights over heads are read; leave out {field}",
                field="head",
            )


@torch.no_grad()
def read_layer(
    model: Model, choice: LayerChoice, cells: Cells, states: States, chosen: Iterable[int]
) -> np.ndarray:
    """Return the values of a block, float32 [N, R], the mean over members and, by their cells, over
    the states `chosen`.
    """
    block = model.eval().blocks[choice.layer]
    device = model.mean.device
    regulators = model.regulators.cpu().numpy()
    heads = slice(None) if choice.head is None else slice(choice.head, choice.head + 1)
    genes = model.targets if choice.layer else model.regulators
    pick = torch.arange(len(genes), device=device)
    scores = block.scores(pick)
    total, share = torch.zeros(len(genes), len(regulators), device=device), 0.0
    for state in chosen:
        size = float(states.membership[:, state].sum())
        if choice.value == "score":
            found = scores[:, heads, state].mean((0, 1))
        else:
            rows = np.flatnonzero(states.membership[:, state] > 0)[:CELLS]
            measured = torch.as_tensor(
                cells.multiplicity[rows][:, regulators].toarray(), device=device
            )
            m = model.inputs(measured, torch.as_tensor(cells.basal[rows], device=device))
            of = m.new_zeros(len(rows), len(states))
            of[:, state] = 1
            if choice.layer:
                m = model.corrected(m, model.among(m, of) if model.layered else None, of)
            each = m.new_full((len(rows),), 1 / len(rows))
            if choice.value == "effect":
                found = block.derivatives(m, state, pick, scores, each, heads).mean(0)
            else:
                found = block.mean_weights(m, state, pick, scores, heads).mean((0, 1))
        total += size * found[:, :-1]
        share += size
    table = np.zeros((model.genes, len(regulators)), np.float32)
    table[genes.cpu().numpy()] = (total / max(share, 1e-9)).float().cpu().numpy()
    return without_self(table, regulators)
