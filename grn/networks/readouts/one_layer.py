"""One layer of the transformer, one of its heads or all: scores, signed weights, their size, or effects.

Training does not identify the sign of a head's weights (block_attention.py). So scores and weights are of one head, and
their signs are right up to turning all of them. No turned sign changes the size |w|, which may be averaged over heads,
and the effect (layer_effect.py), whose sign is up or down.

Letters: C cells, N genes, R regulators, H query heads, K key heads, E head width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from grn.bags import Bags
from grn.errors import ConfigError
from grn.model.transformer import Block, Model
from grn.networks.readouts.block_attention import layer_sums
from grn.networks.readouts.layer_effect import layer_effects
from grn.networks.weights import without_self

OF_ONE_HEAD = "none: known up to turning all signs of the head; read which targets have the same sign, and sizes"
SIZES = "none: sizes of weights"
OF_EFFECTS = "positive = the message of the regulator raises the target's expected multiplicity, directly"
OF_SCORES = "none: how much a target reads a regulator, not whether it is raised or lowered"


def meaning_of_signs(model: Model, value: str) -> str:
    """What uns["grn"]["sign"] says of a value of this model's layers."""
    if value == "effect":
        return OF_EFFECTS
    if model.config.attention in ("softmax", "squared_relu"):  # no weight is negative, and turning q turns its message
        return OF_SCORES if value == "score" else SIZES
    return SIZES if value == "absolute" else OF_ONE_HEAD


@dataclass(frozen=True)
class LayerChoice:
    """layer: number of a block, from 0.   head: number of a query head; None: the mean over all of them.   value:
    score: q_i.k_j of the first layer, from the embeddings alone, for a multiplicity of 1;   weight: the mean
    normalised weight w_ij over cells;   absolute: the mean of |w_ij|;   effect: the mean of what the messages do to the
    predictions directly, of one head or the sum of all (layer_effect.py)."""

    layer: int
    head: int | None = None
    value: str = "absolute"

    def check(self, model: Model) -> None:
        """Raises ConfigError where the model has no such layer or head, or the value cannot be read of it."""
        counts = {"layer": len(model.blocks), "head": model.config.query_heads}
        for field, count in counts.items():
            number = getattr(self, field)
            if number is not None and not 0 <= number < count:
                raise ConfigError("{field} is " + f"{number}, and this model has 0 to {count - 1}", field=field)
        of_one_head = self.value in ("score", "weight")  # in a mean over heads, signs mean nothing
        if (of_one_head and self.head is None) or (self.value == "score" and self.layer):
            raise ConfigError(
                "{field} " + f"{self.value!r} is read of one head" + " of layer 0" * (self.value == "score"),
                field="value",
                advice="choose one, or the value 'absolute' or 'effect'",
            )


def read_layer(model: Model, choice: LayerChoice, bags: Iterable[Bags], regulators: np.ndarray) -> np.ndarray:
    """The values of a layer, float32 [N, R], 0 where a gene meets itself. bags: the cells that are averaged over.

    regulators [R]: positions among the genes. Raises ConfigError.
    """
    choice.check(model)
    if choice.value == "score":
        return without_self(first_scores(model, choice.head or 0, regulators), regulators)
    if choice.value == "effect":
        return without_self(layer_effects(model, bags, regulators, choice.layer, choice.head), regulators)
    signed = choice.value == "weight"
    genes = range(len(model.is_regulator))
    sums = layer_sums(model, bags, regulators, genes, layer=choice.layer, head=choice.head, absolute=not signed)
    means = sums[0].mean(over="targets")
    found = means.signed if signed else means.absolute
    assert found is not None
    return without_self(np.nan_to_num(found.cpu().numpy(), copy=False), regulators)


@torch.no_grad()
def first_scores(model: Model, head: int, regulators: np.ndarray) -> np.ndarray:
    """q_i.k_j of one head of the first layer, [N, R]: what a multiplicity of 1 gives; cells play no part in it."""
    block: Block = model.blocks[0]  # type: ignore[assignment]
    attention = block.attention
    width = attention.query.out_features // attention.query_heads
    key_head = head // (attention.query_heads // attention.key_heads)
    tokens = block.norm(model.embedding(torch.arange(len(model.is_regulator), device=model.sd.device)))
    q = attention.query(tokens)[:, head * width : (head + 1) * width]
    k = attention.key(tokens[torch.as_tensor(regulators, device=tokens.device)])
    return (q @ k[:, key_head * width : (key_head + 1) * width].mT).float().cpu().numpy()
