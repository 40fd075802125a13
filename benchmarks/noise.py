"""Which labels stay where a part of a trained reader is replaced by noise? A part whose noise
changes nothing is idle.

    grn train --config pbmc.yaml --output pbmc && grn train --config paper.yaml --output paper
    python benchmarks/noise.py pbmc paper

Each part of every member is drawn anew with the mean and sd that it has; of multiplicities, all
present ones get the same size (their signs stay). Prints the share of the cells that keep their
label, of the test cells and of all cells, and the accuracy on the test cells, the mean over three
draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from grn.cells.load import load_cells
from grn.config.files import load_config
from grn.features.predict.predictions import predict_cells
from grn.model.reader import Reader
from grn.model.saved import TrainedModel
from grn.model.transformer import Transformer

DRAWS = 3


@contextmanager
def noise_in(parameter: nn.Parameter, draw: int) -> Iterator[None]:
    before = parameter.detach().clone()
    noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(draw)).to(before)
    parameter.data = before.mean() + before.std() * noise
    try:
        yield
    finally:
        parameter.data = before


def parts(reader: Reader) -> Iterator[tuple[str, list]]:
    """The name of each part, and a context for each draw in which it is noise."""
    for name, parameter in reader.named_parameters():
        if name != "predict":  # of genes, which no label reads
            yield name, [noise_in(parameter, draw) for draw in range(DRAWS)]
    if isinstance(reader, Transformer):
        yield "sizes of multiplicities", [patch.object(Transformer, "strength", present)]


def present(self: Transformer, multiplicity: Tensor, standardised: Tensor) -> Tensor:
    return standardised.sign() * (multiplicity > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        config = load_config(run / "config.yaml")
        trained = TrainedModel.load(run)
        cells, split = load_cells(config.data, seed=config.trainer.seed)
        reader = trained.model.identity

        def labels(trained: TrainedModel = trained, cells=cells) -> np.ndarray:
            found = predict_cells(trained, cells.multiplicity, cells.basal).probabilities
            assert found is not None, "the run has cell types"
            return found.argmax(1)

        before = labels()
        accuracy = (before == cells.labels)[split.test].mean()
        print(
            f"{run}: {config.model.reader}, accuracy {accuracy:.3f} on {len(split.test)} test cells"
        )
        print(f"{'noise in':<28}{'labels kept, test':>18}{'all cells':>11}{'accuracy':>10}")
        for name, contexts in parts(reader):
            rows = []
            for context in contexts:
                with context:
                    after = labels()
                kept, right = after == before, after == cells.labels
                rows.append((kept[split.test].mean(), kept.mean(), right[split.test].mean()))
            test, every, right = np.mean(rows, 0)
            print(f"{name:<28}{test:>18.3f}{every:>11.3f}{right:>10.3f}", flush=True)


if __name__ == "__main__":
    main()
