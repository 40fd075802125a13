"""What is each part of the model worth, at its outputs and after full training?

    python benchmarks/parts.py    # five seeds: three trainings a part and seed
    python benchmarks/parts.py --parts whole "no context" --seeds 0

Each row trains the default configuration without one part. Columns, of fresh cells or of another
split for each seed:

    error                        of the genes that are no regulators on Kang's test cells, from
                                 regulators alone (held_out.py)
    auprc, signs, specificity    of the networks of planted types at depth 4 with 150 cells a type
                                 (context.py)
    accuracy, macro_f1           of the cell types of pbmc68k_reduced, all labels
                                 (classification.py)

Writes `parts.csv` after each seed of a part; rows that were not measured again stay.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import classification
import classifiers
import context
import held_out
import numpy as np
import ours
import pandas as pd
import torch
from arguments import RESULTS, Option, all_of, read_options
from networks import deviation
from results_file import merged, ordered, write
from torch import Tensor

import grn.model.basal_gene
import grn.model.signed_block
from flashsign import rms_norm
from flashsign.tables.slope_penalty import penalty_of
from grn.cells.preprocessing.split import split_cells
from grn.config.files import change_config
from grn.evidence.cell_table import CellTable
from grn.model.basal_gene import EPS, BasalGene, FeedForward
from grn.model.linear_reader import LinearReader
from grn.model.regulation import DEPTH, LIMIT, Model
from grn.model.signed_block import SignedBlock

Patches = list[tuple[object, str, object]]
PLANTED = "depth 4, 150 cells a type"


def without_context(self: BasalGene, m: Tensor, pick: Tensor) -> Tensor:
    return m.new_zeros(len(self.query), m.shape[-2], len(pick))


def without_feed_forward(self: FeedForward, h: Tensor) -> Tensor:
    return rms_norm(h, eps=EPS)


def unnormalised(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    *,
    centre: Tensor | None = None,
    basal: Tensor | None = None,
    eps: float = 0.0,
    groups: Sequence[int] | None = None,
) -> Tensor:
    """`attention_by_scores` under a norm that knows no cell: the basal score, or that of
    independent keys.
    """
    if groups is not None:
        parts = []
        for group, bags in enumerate(multiplicity.split(list(groups), -2)):
            own = None if centre is None else centre[..., group, :]
            parts.append(
                unnormalised(scores[..., group, :, :], values, bags, centre=own, basal=basal)
            )
        return torch.cat(parts, -3)
    message = (scores.unsqueeze(-2) * values.mT.unsqueeze(-3)).flatten(-3, -2)
    sums = multiplicity @ message.mT - (
        0 if centre is None else (message @ centre.unsqueeze(-1)).mT
    )
    norm = scores.shape[-1] ** 0.5 if basal is None else basal[..., None, :, None]
    return sums.unflatten(-1, (scores.shape[-2], values.shape[-1])) / norm


def unnormalised_both(
    scores: Tensor,
    amount: Tensor,
    multiplicity: Tensor,
    *,
    centre,
    gain,
    basal,
    penalty,
    groups,
    prior,
    **_: Tensor,
) -> tuple[Tensor, Tensor]:
    """attention_and_penalty."""
    assert prior is None, "the benchmark has no prior network"
    read = unnormalised(
        scores, amount[..., None], multiplicity, centre=centre, basal=basal, groups=groups
    )
    slopes = (scores * amount[:, :, None, None] * (gain / basal)[:, :, None, :, None]).sum(1)
    return read[..., 0], penalty_of(slopes, penalty)


def unnormalised_slopes(self: SignedBlock, scores: Tensor, pick: Tensor) -> Tensor:
    gain, basal = self.gains(pick)
    return (scores * self.amounts()[:, :, None, None] * (gain / basal)[:, :, None, :, None]).sum(1)


def unnormalised_derivatives(
    self: SignedBlock,
    m: Tensor,
    state: int,
    pick: Tensor,
    scores: Tensor,
    share: Tensor,
    heads: slice = slice(None),
) -> Tensor:
    gain, basal = (each[:, heads] for each in self.gains(pick))
    return (
        scores[:, heads, state] * self.amounts()[:, heads, None] * (gain / basal)[..., None]
    ).sum(1) * share.sum()


def present(multiplicity: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """What keys would be that know only whether a gene is there: a gene's mean and an sd, or
    nothing.
    """
    return (multiplicity > 0) * (mean + sd)


def present_inputs(self: Model, regulators: Tensor, basal: Tensor | None) -> Tensor:
    # positions: a mask would make the CPU wait, which a recorded step must not
    own = self.regulators
    return INPUTS(self, present(regulators, self.mean[own], self.sd[own]), basal)


def present_table(self: CellTable) -> Tensor:
    own = torch.as_tensor(self.regulators)
    mean, sd = self.mean[own], self.sd[own]
    values = present(torch.as_tensor(self.multiplicity[:, self.regulators].toarray()), mean, sd)
    depth = DEPTH + (torch.as_tensor(self.basal) - self.depth[0]) / self.depth[1]
    m = torch.cat([((values - mean) / sd).clamp(max=LIMIT) + mean / sd, depth[:, None].float()], 1)
    return m.to(self.device)


def present_summaries(self: LinearReader, multiplicity: Tensor, z: Tensor) -> Tensor:
    seen = present(multiplicity, self.mean, self.sd)
    return SUMMARIES(self, seen, self.standardised(seen) * (z != 0))  # 0 where a gene is hidden


INPUTS, SUMMARIES = Model.inputs, LinearReader.summaries
NORM: Patches = [
    *(
        (module, "attention_by_scores", unnormalised)
        for module in (grn.model.signed_block, grn.model.basal_gene)
    ),
    (grn.model.signed_block, "attention_and_penalty", unnormalised_both),
    (SignedBlock, "slopes", unnormalised_slopes),
    (SignedBlock, "derivatives", unnormalised_derivatives),
]
MULTIPLICITIES: Patches = [
    (Model, "inputs", present_inputs),
    (CellTable, "inputs", property(present_table)),
    (LinearReader, "summaries", present_summaries),
]
PARTS: dict[str, tuple[dict[str, object], Patches]] = {
    "whole": ({}, []),
    "no first block": ({"model.layers": 1}, []),
    "no context": ({}, [(BasalGene, "forward", without_context)]),
    "no feed-forward": ({}, [(FeedForward, "forward", without_feed_forward)]),
    "1 iteration": ({"model.iterations": 1}, []),
    "present or absent": ({}, MULTIPLICITIES),
    "no norm": ({}, NORM),
    "1 member": ({"model.members": 1}, []),
}


@contextmanager
def changed(part: str) -> Iterator[dict[str, object]]:
    """Within it, the model lacks a part; the fields that a configuration has for it."""
    fields, patches = PARTS[part]
    whole: Callable[..., object] = ours.configuration
    patches = [
        *patches,
        (
            ours,
            "configuration",
            lambda one, seed, device, own: whole(one, seed, device, own | fields),
        ),
    ]
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.enter_context(patch.object(owner, name, replacement))
        yield fields


def measure(part: str, seed: int, device: str) -> dict[str, float]:
    with changed(part) as fields:
        error = held_out.errors(held_out.observed("kang"), seed, device, methods=("model",))[
            "model"
        ]
        draw = context.KINDS["typed"].draws[PLANTED](seed)
        planted = context.typed_scores(draw, context.infer("grn", draw.one, seed))
        config = change_config(classification.configurations()["pbmc68k_reduced"], fields)
        one = classifiers.labelled_set(config)
        test = split_cells(one.targets, None, classifiers.TEST, seed).test
        known = np.setdiff1d(np.flatnonzero(one.targets >= 0), test)
        with tempfile.TemporaryDirectory() as folder:
            found = classifiers.fit_grn(one, known, test, seed, Path(folder))(one, test)
    types = classification.scores(found, one.targets[test])
    columns = {name: planted[name] for name in ("auprc", "signs", "specificity")}
    return {"error": error} | columns | {name: types[name] for name in ("accuracy", "macro_f1")}


def main() -> None:
    arguments = read_options(
        __doc__,
        parts=all_of(PARTS),
        seeds=[0, 1, 2, 3, 4],
        device=Option("cpu", "of the error on held-out cells (default: cpu)"),
        output=RESULTS,
    )

    path = arguments.output / "parts.csv"
    for part in arguments.parts:
        for seed in arguments.seeds:
            found = pd.DataFrame(
                [{"part": part, "seed": seed} | measure(part, seed, arguments.device)]
            )
            print(found.to_string(index=False, header=False, float_format="%.4f"), flush=True)
            table = merged(path, found, ["part", "seed"])
            write(path, ordered(table, part=list(PARTS), seed=sorted(set(table["seed"]))))
    scores = (
        pd.read_csv(path)
        .groupby("part", sort=False)
        .agg(["mean", "std"])
        .drop(columns="seed", level=0)
    )
    for part, row in scores.iterrows():
        columns = scores.columns.levels[0].drop("seed", errors="ignore")
        print(
            f"{part:<20}"
            + "  ".join(
                f"{name} {row[name]['mean']:.3f}{deviation(row[name]['std'])}" for name in columns
            )
        )


if __name__ == "__main__":
    main()
