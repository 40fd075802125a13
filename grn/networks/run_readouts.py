"""Runs the read-outs of one model over one set of cells: the chosen one, and the attention of every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch

from grn.bags import Bags
from grn.cells.cells import Cells
from grn.messages import Say, at_most_every, silent
from grn.model.saved import TrainedModel
from grn.model.transformer import Model
from grn.networks.in_context import network_in_context
from grn.networks.readouts.block_attention import TABLE, attention_layers, strongest_attention
from grn.networks.readouts.regulation_attention import attention_network
from grn.networks.readouts.sampling import Sample, even_rows, masked_bags, present_bags, sample_cells
from grn.networks.readouts.whole_model import whole_model_network
from grn.networks.weights import Network
from grn.regulation.states import States

WHOLE_MODEL = ("knockout", "jacobian")
# Share of the regulators that are masked at once, to be targets: few, so that a target can read nearly all the others.
MASKED = 0.1
MESSAGE_EVERY_S = 15
SCORES = 2**26  # most scores of one layer in one batch of bags (256 MiB)
ACTIVATIONS = 2**26  # most numbers of one layer in one batch of bags without scores


@dataclass(frozen=True)
class Networks:
    """chosen: network of the chosen read-out.   attention: of the regulation layer, None without one.
    layers: attention of each block [N, R], the mean of |w|; sparse where only the strongest were kept.
    mean: of the blocks, before weights were left out; None: pooled() computes it from all weights.
    """

    chosen: Network
    attention: Network | None
    layers: list[np.ndarray] | list[sp.csr_matrix]
    mean: np.ndarray | sp.csr_matrix | None = None

    def pooled(self) -> np.ndarray | sp.csr_matrix:
        """The mean of the blocks' attention, [N, R]."""
        return np.mean(self.layers, axis=0) if self.mean is None else self.mean


def read_networks(
    trained: TrainedModel,
    cells: Cells,
    states: States,
    *,
    readout: str,
    most_cells: int | Literal["all"],
    seed: int,
    top_k: int | None = None,
    packed: bool = False,
    say: Say = silent,
) -> Networks:
    """The chosen read-out and the attention of every layer, computed on the device of the model.

    cells: over the model's vocabulary.   states: of the cells, for the regulation layers.
    readout: effect | attention | knockout | jacobian.
    most_cells: about how many cells the blocks' attention and a read-out of the whole model read, evenly by type; those
    of the regulation layers read all cells.
    top_k: how many of the strongest regulators of each target are kept; where the blocks' tables would be large, no
    others are held in memory.
    packed: the blocks' attention is read from packed bags, as in training (knockout and jacobian read dense bags).
    say: gets a line of progress now and then.
    """
    model = trained.model.eval()
    multiplicity, labels, basal = cells.multiplicity, cells.labels, cells.basal
    regulators, regulation, device = trained.regulators, trained.model.regulation, trained.model.sd.device
    heads = model.config.query_heads * len(trained.vocabulary) * (len(regulators) + 1)
    batch = int(np.clip(SCORES // heads, 1, 64))

    most = len(cells) if most_cells == "all" else most_cells
    rows = even_rows(labels, most, seed)
    replay = partial(whole_bags, model, multiplicity, basal, rows, regulators, packed)
    mean: np.ndarray | sp.csr_matrix | None = None
    layers: list[np.ndarray] | list[sp.csr_matrix]
    large = 2 * len(model.blocks) * len(trained.vocabulary) * len(regulators) > TABLE
    if large and top_k is not None and top_k < len(regulators):
        *layers, mean = strongest_attention(model, replay, regulators, top_k)
    else:
        layers = attention_layers(model, replay(), regulators)
        mean = np.mean(layers, axis=0) if regulation is None else None
    attention, chosen = None, None
    if regulation is not None:
        measured = torch.as_tensor(multiplicity[:, regulators].toarray(), device=device)
        membership = torch.as_tensor(states.membership, device=device)
        attention = attention_network(regulation, measured, torch.as_tensor(basal, device=device), membership)
        attention = attention.with_names(states.names)
        if readout == "effect":
            chosen = network_in_context(regulation, cells, states, mean=model.mean, sd=model.sd, seed=seed)
    if readout == "attention":
        chosen = attention or Network(mean, {}, np.broadcast_to(np.float32(0.5), layers[0].shape))
    if readout in WHOLE_MODEL:
        sampled = list(sample_cells(labels, len(regulators), cells=most, fraction=MASKED, batch=batch, seed=seed))
        samples = with_progress(sampled, f"Reading the network ({readout})", say)
        cell_types, counts = np.unique(labels, return_counts=True)
        sizes = dict(zip(cell_types.tolist(), counts.tolist(), strict=True))
        chosen = whole_model_network(readout, model, multiplicity, samples, sizes, regulators, basal)
        chosen = chosen.with_names(cells.classes)
    assert chosen is not None, "the configuration refuses `effect` without a regulation layer"
    return Networks(chosen, attention, layers, mean)


def whole_bags(
    model: Model,
    multiplicity: sp.csr_matrix,
    basal: np.ndarray | None,
    rows: np.ndarray,
    regulators: np.ndarray,
    packed: bool,
) -> Iterator[Bags]:
    """The cells `rows` with nothing masked, in batches. packed: as packed bags.   Others: as for `masked_bags`."""
    batch = int(np.clip(ACTIVATIONS // (multiplicity.shape[1] * model.config.hidden), 1, 64))
    for part in (rows[start : start + batch] for start in range(0, len(rows), batch)):
        if packed:
            yield present_bags(model, multiplicity, basal, part)
        else:
            nothing = Sample(-1, part, np.zeros((len(part), len(regulators)), dtype=bool))
            yield masked_bags(model, multiplicity, basal, nothing, regulators)


def with_progress(samples: Sequence[Sample], what: str, say: Say) -> Iterator[Sample]:
    """The samples; progress is reported every MESSAGE_EVERY_S seconds."""
    progress = at_most_every(MESSAGE_EVERY_S, say)
    for number, sample in enumerate(samples, start=1):
        yield sample
        progress(f"{what}: {100 * number // len(samples)} % of the bags are read.")
