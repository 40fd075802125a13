"""Sentences for the user about the cells that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from grn.cells.cells import Cells, Source
from grn.cells.genes.names import (
    DATE,
    Chosen,
    ToVocabulary,
    column_of_names,
    examples,
    is_numbered,
    near_miss,
    without_name,
)
from grn.cells.genes.programmes import in_words
from grn.cells.guides import summary as of_guides
from grn.cells.obs import MISSING
from grn.cells.preprocessing.checks import Scale
from grn.cells.preprocessing.moments import varying
from grn.cells.preprocessing.split import Split, is_copy
from grn.config.schema import DataConfig

FEWEST = 10  # cells, and values, of which all are alike, that no longer look like chance
ONE_DEPTH = 0.005  # sd of the totals in means of them
OTHER_DEPTH = 5  # times the training cells' median total
OF_MISSING = (
    "nan",
    "none",
    "na",
    "n/a",
    "<na>",
    "null",
    "?",
    "-",
    "unknown",
    "unassigned",
    "unlabeled",
    "unlabelled",
)
"""Labels by which other programs mark cells whose type is not known, in lower case."""


def notes_on_cells(
    cells: Cells,
    source: Source,
    chosen: Chosen,
    split: Split,
    copies: np.ndarray | None,
    config: DataConfig,
) -> tuple[str, ...]:
    """Return sentences about the cells of a training.

    copies [C]: see copies_of.
    """
    var = source.expression.var
    names = source.names
    vocabulary = cells.vocabulary
    regulators = cells.regulators
    empty = int((np.diff(cells.multiplicity.indptr) == 0).sum())
    unlabelled = int((cells.labels == MISSING).sum()) if cells.classes else 0
    alone = 0 if source.groups is None else int((source.groups == MISSING).sum())
    texts = [name for name in cells.classes if name.strip().casefold() in OF_MISSING]
    untrained = np.setdiff1d(np.arange(len(cells.classes)), cells.labels[split.train])
    same = 0 if copies is None else int(is_copy(copies).sum())
    absent_genes, wanted = sorted(set(chosen.listed) - set(names)), set(chosen.listed_regulators)
    absent = sorted(wanted - set(names))
    used = "" if regulators is None else f", {regulators.size} of them as regulators"
    dates = [name for name in names if DATE.fullmatch(name)]
    dropped = (
        []
        if chosen.named is None
        else [names[j] for j in np.setdiff1d(chosen.named, chosen.positions)]
    )
    reason = "no training cell expresses them"
    if not isinstance(config.genes, int):
        reason = f"data.genes ({config.genes}) leaves them out"
    constant = []
    if regulators is not None:
        constant = [
            vocabulary[j]
            for j in regulators[~varying(cells.multiplicity[:, regulators][split.train])]
        ]
    stateless = 0 if source.state is None else int(np.isnan(source.state).sum())
    found = {  # sentence -> whether it is true
        **dict.fromkeys(source.read, True),
        **_unnamed(var, config.gene_key),
        **_numbered(var, names),
        f"{empty} of {len(cells)} cells hold none of the genes; nothing is learned from "
        "them.": empty,
        **dict.fromkeys(_of_scale(source.expression.scale), True),
        f"{same} of {len(cells)} cells are exact copies of another cell. Copies stay together in "
        "the split and in every fold, but each counts as a cell of its own, so that q-values are "
        "too small; remove "
        "them.": same,
        f"{unlabelled} cells have no label in the column {config.label_key!r} of obs.": unlabelled,
        _of_donors(source.donors, config.group_key): source.donors,
        f"{alone} cells have nothing in the column {config.group_key!r} of obs; they stay together "
        "as one "
        "group.": alone,
        f"The label {', '.join(map(repr, texts))} is a text and so a cell type; leave it empty "
        "where it means that "
        "none is known.": texts,
        source.hint: bool(source.hint),
        f"{stateless} cells have nothing in the column {config.state_key!r} of obs "
        "(data.state_key).": stateless,
        "No training cell has the type "
        f"{listed([repr(cells.classes[each]) for each in untrained])}, as groups stay "
        "together in the split, and no cell will be called so; give more groups with such "
        "cells.": untrained.size,
        f"{chosen.positions.size} of {len(names)} genes are used "
        f"({listed(vocabulary, most=3)}){used}.": True,
        f"{len(absent_genes)} of {len(chosen.listed)} genes of {config.genes} are "
        f"{_absent(absent_genes, names)}.": absent_genes,
        f"{len(dates)} gene names look like dates ({examples(dates)}), which spreadsheets make of "
        "names such as "
        "MARCH1; if that was not meant, export the data again, with the names as text.": dates,
        "Regressed out, so that what genes have in common by them is no edge: "
        f"{listed([in_words(each) for each in config.regress_out])}.": config.regress_out,
        "Every gene may regulate.": chosen.named is None,
        f"{0 if chosen.named is None else chosen.named.size} of {len(wanted)} regulators were found"
        + (f"; {len(absent)} are {_absent(absent, names)}." if absent else "."): chosen.named
        is not None,
        f"{len(dropped)} regulators are in the data but not used, as {reason}: "
        f"{listed(dropped)}.": dropped,
        f"{len(constant)} regulators do not vary between the training cells and have no edges: "
        f"{listed(constant)}.": constant,
    }
    return tuple(sentence for sentence, true in found.items() if true)


def _of_donors(donors: Mapping[str, int], key: str | None) -> str:
    """Return a sentence with the number of donors and the cells of each."""
    said = [f"{name} ({number} cells)" for name, number in donors.items()]
    return (
        f"{len(donors)} donor{'s' * (len(donors) != 1)} in the column {key!r} of obs "
        f"(data.group_key): {listed(said, most=12)}. The cells of one stay together when cells are "
        "held out, and donors, not cells, are the units of the activity of regulators."
    )


def notes_on_interventions(cells: Cells) -> list[str]:
    """Return sentences about a screen: how many cells have which interventions, and how often the
    guides worked.
    """
    done = cells.interventions
    if done is None:
        return []
    of_cell, measured = np.diff(done.given.indptr), int((done.place >= 0).sum())
    several, unknown = int((of_cell > 1).sum()), int(((of_cell == 0) & ~done.control).sum())
    notes = [
        f"{int((of_cell > 0).sum())} cells have a {done.kind}, of {len(done.names)} genes "
        f"({measured} of these were measured), {several} of them of several; "
        f"{int(done.control.sum())} are controls."
    ]
    if unknown:
        notes.append(
            f"Of {unknown} cells it is not known what was done to them; they are read as if "
            "nothing was."
        )
    return [*notes, *(of_guides(cells.guides) if cells.guides is not None else [])]


def notes_on_new_cells(
    found: ToVocabulary,
    var: pd.DataFrame,
    key: str | None,
    vocabulary: Sequence[str],
    lost: float,
    scale: Scale | None,
    usual: float | None,
) -> tuple[str, ...]:
    """Return sentences about cells that a trained model is given.

    found: which of the model's genes the cells have.
    key: data.gene_key.
    vocabulary: the model's genes, of which keys of guides may follow.
    lost: share of the training cells' depth in the genes that these cells lack.
    scale: of the counts; None for expression.
    usual: median total of the training cells; None: not known.
    """
    shared, total = int(found.shared.sum()), len(found.shared)
    note = (
        f"{shared} of the model's {total} genes ({shared / total:.0%}) are in the data; the others "
        "count as absent."
    ).replace("%)", " %)")
    if lost > 0:
        note += (
            f" They held {lost:.0%} of the training cells' depth; the depth of each cell is "
            "corrected for that."
        )
    absent = [gene for gene, there in zip(vocabulary, found.shared, strict=False) if not there]
    near = near_miss(absent, found.names)
    twice = found.repeated
    sentences = {
        **_unnamed(var, key),
        note: True,
        f"Of the genes that count as absent, {near}.": bool(near),
        f"Genes of the model with several columns in the data ({len(twice)}: {examples(twice)}): "
        "their counts are "
        "added.": bool(twice),
    }
    return (*(sentence for sentence, true in sentences.items() if true), *_of_scale(scale, usual))


def _of_scale(scale: Scale | None, usual_total: float | None = None) -> list[str]:
    """Return sentences about counts that may be no raw counts, or unlike the training counts.

    usual_total: median total of the training cells; None: not compared.
    """
    if scale is None:
        return []
    total, notes = scale.totals[scale.totals > 0], []
    if scale.stored >= FEWEST and scale.largest <= 1:
        notes.append(
            "No count is above 1, as in matrices that only say whether a gene was seen; if that "
            "is so, give the raw counts."
        )
    elif len(total) >= FEWEST and total.std() <= ONE_DEPTH * total.mean():
        notes.append(
            f"All cells have nearly the same total ({total.min():.0f} to {total.max():.0f}), as "
            "counts that were downsampled, or scaled to one depth and rounded; of the second "
            "kind, give the raw counts."
        )
    elif scale.smallest > 1 and scale.multiples > 0.95:
        notes.append(
            f"The counts of a cell are multiples of its smallest one ({scale.smallest:g} in half "
            "of the cells), as counts that were scaled; give the raw counts."
        )
    measured = np.empty(0) if scale.measured is None else scale.measured[scale.measured > 0]
    if (
        usual_total
        and measured.size
        and not 1 / OTHER_DEPTH <= np.median(measured) / usual_total <= OTHER_DEPTH
    ):
        notes.append(
            f"The median total of a cell over the model's genes is {np.median(measured):.0f}, and "
            f"was {usual_total:.0f} in training; predictions may be wrong where the counts are not "
            "of the same kind."
        )
    return notes


def _unnamed(var: pd.DataFrame, key: str | None) -> dict[str, bool]:
    """Return a sentence about genes without a name in data.gene_key, and whether it is true."""
    absent = int(without_name(var, key).sum())
    sentence = (
        f"{absent} of {len(var)} genes have no name in the column {key!r} of var (data.gene_key)"
    )
    return {f"{sentence}; they keep those of its index.": absent > 0}


def _numbered(var: pd.DataFrame, names: Sequence[str]) -> dict[str, bool]:
    """Return a sentence about genes that have numbers for names, with the column of var that may
    hold their names; {} where they have names.
    """
    if not is_numbered(names):
        return {}
    column = column_of_names(var)
    found = f"Genes have no names, but numbers ({', '.join(names[:3])}, ...)"
    if column is None:
        return {
            f"{found}; give them names (adata.var_names), by which you know them in the "
            "results.": True
        }
    own = ", ".join(map(str, var[column][:2]))
    return {
        f"{found}; the column {column!r} of var may hold their names ({own}, ...): set "
        "data.gene_key to it.": True
    }


def _absent(absent: Sequence[str], names: Sequence[str]) -> str:
    """Return the end of a sentence about listed genes that the data lack: some of them, and the
    reason if their names nearly match.
    """
    near = near_miss(absent, names)
    return f"not in the data ({examples(absent)})" + (f"; {near}" if near else "")


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return the first `most` names, and how many more there are, for a sentence."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
