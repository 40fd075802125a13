"""Every read-out of one model over one set of cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import scipy.sparse as sp

from grn.network.attention import attention_network
from grn.network.jacobian import jacobian_network
from grn.network.knockout import knockout_network
from grn.network.readout import Network
from grn.network.sampling import Sample, sample_cells
from grn.trained import TrainedModel

READOUTS = {"knockout": knockout_network, "jacobian": jacobian_network, "attention": attention_network}
# Share of the regulators that are hidden at once to be targets: few, so that a target has all the others in sight.
HIDDEN = 0.1
QUIET_S = 15
SCORES = 2**26  # most scores of one layer in one batch of bags (256 MiB)


def read_networks(
    trained: TrainedModel,
    multiplicity: sp.csr_matrix,
    labels: np.ndarray,
    basal: np.ndarray | None = None,
    *,
    readout: str,
    cells: int,
    seed: int,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Network]:
    """The chosen read-out and `attention`, over the same bags.

    multiplicity: CSR [C, N] over the vocabulary.   labels [C]: cell type index, -1 where unknown.
    basal [C]: multiplicity of each cell's basal gene; None: 1.
    cells: about how many bags to read.
    say: hears now and then how far it is.
    """
    model = trained.model.eval()
    regulators = trained.regulators
    heads = model.config.query_heads * len(trained.vocabulary) * (len(regulators) + 1)
    batch = int(np.clip(SCORES // heads, 1, 64))
    kinds, counts = np.unique(labels, return_counts=True)
    members = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
    found = {}
    for name in dict.fromkeys([readout, "attention"]):
        sampled = list(sample_cells(labels, len(regulators), cells=cells, fraction=HIDDEN, batch=batch, seed=seed))
        samples = announced(sampled, f"reading the network ({name})", say)
        found[name] = READOUTS[name](model, multiplicity, samples, members, regulators, basal)
    return found


def announced(samples: Sequence[Sample], what: str, say: Callable[[str], None]) -> Iterator[Sample]:
    """The samples; one line every QUIET_S seconds."""
    last = time.monotonic()
    for number, sample in enumerate(samples):
        yield sample
        if time.monotonic() - last > QUIET_S:
            say(f"{what}: {100 * (number + 1) // len(samples)} %")
            last = time.monotonic()
