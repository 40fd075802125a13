"""Every regulator perturbed in turn in the cells of one type: which ones move them towards another type?

    towards_j = sum_i effect_ij d_i / sum_i d_i^2          d_i: sds between the types' mean multiplicities of gene i

is the share of the way from the first type to the second that the other genes go when regulator j is perturbed: 1 is
all of it, below 0 is away. The perturbed gene itself does not count.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from grn.analysis.perturbation.changes import cell_inputs
from grn.analysis.perturbation.subject import Subject
from grn.analysis.perturbation.what_is_done import KINDS, Plan, check_steps
from grn.errors import ConfigError, DataError
from grn.messages import Say, at_most_every, silent

CELLS = 200  # of the type, in which each regulator is perturbed: a mean effect settles soon
MESSAGE_EVERY_S = 15


def screen_regulators(
    subject: Subject, cell_type: str, towards: str, *, kind: str = "knockout", steps: int = 1, say: Say = silent
) -> pd.DataFrame:
    """A row for each regulator, by falling share of the way from `cell_type` to `towards`.

    kind: knockout | knockdown | overexpress. Columns: gene; towards (see above); sd: of it over the ensemble members;
    size: root mean square of the effects on the other genes, in sds; before: mean multiplicity in the cells;
    strongest: the gene that changes most, with its effect in `strongest_effect`. Raises DataError, ConfigError.
    """
    if kind not in KINDS:
        raise ConfigError(f"--screen is {kind!r}; it is one of {', '.join(KINDS)}.")
    check_steps(steps)
    here, there = subject.rows(cell_type), subject.rows(towards)
    if np.array_equal(here, there):
        raise DataError(f"A screen goes from one cell type to another, and both are {cell_type!r}; name two.")
    mechanism, cells = subject.mechanism, subject.cells
    sd, vocabulary = mechanism.sd.numpy().astype(np.float64), np.array(cells.vocabulary, dtype=object)
    means = [np.asarray(cells.multiplicity[rows].mean(0)).ravel() for rows in (here, there)]
    way = (means[1] - means[0]) / sd
    if not way.any():
        raise DataError(f"Cell types {cell_type!r} and {towards!r} have the same levels; choose two that differ.")
    rows = here if len(here) <= CELLS else here[np.linspace(0, len(here) - 1, CELLS).round().astype(int)]
    measured, basal, states = cell_inputs(mechanism, cells, subject.states, rows)
    regulators, progress = mechanism.layer.regulators.numpy(), at_most_every(MESSAGE_EVERY_S, say)
    found = []
    for column, position in enumerate(regulators):
        gene = str(vocabulary[position])
        before = float(measured[:, column].mean())
        if kind == "overexpress" and not cells.multiplicity[:, [position]].nnz:
            continue
        values = Plan.of_one(kind, gene).new_values(gene, cells, rows, subject.logarithmic)
        effect = np.zeros((len(mechanism.members), len(vocabulary)))
        for part in mechanism.slices(len(rows)):
            fixed = {column: values[part]}
            effect += mechanism.effects(measured[part], basal[part], states[part], fixed, steps).sum(1).double().numpy()
        effect /= len(rows)
        effect[:, position] = 0
        others = np.arange(len(way)) != position
        share = effect @ way / np.square(way[others]).sum()
        mean = effect.mean(0)
        most = int(np.abs(mean).argmax())
        spread = share.std(ddof=1) if len(share) > 1 else np.nan
        size = float(np.sqrt(np.square(mean[others]).mean()))
        found.append((gene, share.mean(), spread, size, before, vocabulary[most] if mean[most] else "", mean[most]))
        progress(f"Screening the regulators: {100 * (column + 1) // len(regulators)} % are done.")
    names = ["gene", "towards", "sd", "size", "before", "strongest", "strongest_effect"]
    table = pd.DataFrame(found, columns=names)
    return table.sort_values("towards", ascending=False, kind="stable").reset_index(drop=True)
