"""How much memory a run takes, estimated before its cells are read.

Letters: C cells, N genes, R regulators, K states, P members.
"""

from __future__ import annotations

from grn.config.schema import Config
from grn.data.preprocessing.genes import read_gene_list
from grn.data.size import Size
from grn.disk import in_units
from grn.errors import DataError
from grn.process_memory import in_use, physical_memory
from grn.regulation.linear import LARGE
from grn.regulation.ridge import COLUMNS

VALUE = 44  # bytes that a stored value takes: read, as a multiplicity, and in the copies that the fit reads
LAYERS = 5  # tables of the size of the regulation layer's scores: weights, their average, the best ones, and Adam's two
TRAINING = 350e6  # bytes of the transformer's training and the read-out, beside what grows with the cells or the scores


def sentence(config: Config, size: Size) -> str:
    """What is printed before the cells are read."""
    wanted, there = memory_wanted(config, size), physical_memory()
    known = f"{size.cells} cells x {size.genes} genes with {'about ' if size.whole else ''}{size.stored} values"
    text = f"{known}: the run takes about {in_units(wanted)} of memory."
    if there is None or wanted <= there:
        return text
    return (
        f"{text} This machine has {in_units(there)}: choose fewer genes (data.genes), list the regulators "
        "(data.regulators), or lower regulation.members."
    )


def memory_wanted(config: Config, size: Size) -> float:
    """An estimate in bytes, of the whole process and on a CPU."""
    genes = min(size.genes, config.data.genes) if isinstance(config.data.genes, int) else size.genes
    stored = VALUE * size.stored
    settings, regulators = config.regulation, min(genes, _regulators(config, genes))
    if not settings.members:
        return in_use() + max(stored + size.whole, stored + TRAINING)
    states = size.labels or 1
    width = min(settings.width, regulators + 1)
    scores = 4 * settings.members * settings.heads * genes * width * (1 + (states if states > 1 else 0))
    features = 2 * regulators * (1 + (states if states > 1 else 0))  # with knock-offs
    number = 8 if min(features // 2, size.cells) <= LARGE else 4
    smaller = min(features, size.cells)
    linear = number * (3 * size.cells * COLUMNS + 4 * smaller**2)
    networks = 8 * 6 * genes * regulators * (2 * states if states > 1 else 1)
    return in_use() + max(stored + size.whole, stored + LAYERS * scores + max(linear, TRAINING), stored + networks)


def _regulators(config: Config, genes: int) -> int:
    choice = config.data.regulators
    if isinstance(choice, list):
        return len(choice)
    try:
        return genes if choice == "all" else len(read_gene_list(choice, "data.regulators"))
    except DataError:  # which is said when the cells are read
        return genes
