"""How much memory a run takes, estimated before its cells are read.

Letters: C cells, N genes, R regulators, K states, P members.
"""

from __future__ import annotations

from grn.cells.genes import read_gene_list
from grn.cells.loading.batches import is_packed
from grn.cells.size import Size
from grn.config.schema import Config
from grn.errors import DataError
from grn.io.h5ad import in_units
from grn.process_memory import in_use, physical_memory
from grn.regulation.linear import LARGE
from grn.regulation.ridge import COLUMNS

VALUE = 44  # bytes that a stored value takes: read, as a multiplicity, and in the copies that the fit reads
LAYERS = 5  # tables of the size of the regulation layer's scores: weights, their average, the best ones, and Adam's two
FIT = 100e6  # bytes that a fit takes beside what grows with the cells or the scores
# Bytes of the transformer's training that every run takes, and how many tables of the widths of its maps a block has
# for each gene that the bags of a batch list. Measured with bags of 201 to 1541 genes, and packed ones (docs/log.md).
TRAINING, TABLES = 60e6, 6.7


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
    model = config.model
    widths = model.layers * (model.width + model.iterations * model.hidden)
    training = TRAINING + 4 * TABLES * widths * listed(config, size, genes)
    if not settings.members:
        return in_use() + max(stored + size.whole, stored + training)
    states = size.labels or 1
    width = min(settings.width, regulators + 1)
    scores = 4 * settings.members * settings.heads * genes * width * (1 + (states if states > 1 else 0))
    features = 2 * regulators * (1 + (states if states > 1 else 0))  # with knock-offs
    number = 8 if min(features // 2, size.cells) <= LARGE else 4
    smaller = min(features, size.cells)
    linear = number * (3 * size.cells * COLUMNS + 4 * smaller**2)
    networks = 8 * 6 * genes * regulators * (2 * states if states > 1 else 1)
    fit = LAYERS * scores + max(linear, FIT)
    return in_use() + max(stored + size.whole, stored + fit, stored + scores + training, stored + networks)


def listed(config: Config, size: Size, genes: int) -> float:
    """How many genes the bags of a batch list."""
    batch = min(config.trainer.batch_size, size.cells)  # no batch has more cells than there are
    if not is_packed(config.data.bags, genes):
        return batch * genes
    present = size.stored / max(size.cells, 1) * genes / max(size.genes, 1)
    absent = config.objectives.masked_multiplicity.fraction * config.data.absent_fraction * (genes - present)
    return batch * (present + absent)


def _regulators(config: Config, genes: int) -> int:
    choice = config.data.regulators
    if isinstance(choice, list):
        return len(choice)
    try:
        return genes if choice == "all" else len(read_gene_list(choice, "data.regulators"))
    except DataError:  # which is said when the cells are read
        return genes
