"""The points of the benchmark, and batches of simulated cells in the two forms that `grn train` takes.

Letters: C cells of a batch, N genes of a dense bag, V genes of the vocabulary, R regulators.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grn.bags import Bags, Batch
from grn.config.schema import Config

VOCABULARY = 40000  # genes that the model knows, for packed bags
CELLS = {
    2000: 32,
    5000: 16,
    20000: 4,
}  # genes of a cell -> cells of a batch, so that batches have about as many genes in all
REGULATORS = 0.05  # fraction of the genes
EXPRESSED = 0.6  # fraction of a dense bag's genes
SPREAD = 0.2  # sizes of packed bags are uniform between 1 - SPREAD and 1 + SPREAD times the mean
CLASSES = 10
DEFAULTS = Config.model_validate({"data": {"path": "made up"}})  # those of configs/own_data.yaml
MODELS = {
    "default": DEFAULTS.model,
    "wide": DEFAULTS.model.model_copy(update={"width": 256, "query_heads": 4, "key_heads": 2, "hidden": 512}),
}


@dataclass(frozen=True)
class Point:
    """bags: dense (all cells have the same genes) or packed (cells have `genes` on average, of `vocabulary`).
    keys: the genes that gene queries read, "5 %" or "all".   members: ensemble members of the regulation layer.
    model: a name in MODELS.   spread: of the sizes of packed bags, see SPREAD.
    """

    bags: str
    genes: int
    keys: str
    cells: int
    vocabulary: int
    members: int
    model: str = "default"
    spread: float = SPREAD

    @classmethod
    def of(cls, bags: str, genes: int, keys: str, cells: int | None = None, vocabulary: int = VOCABULARY) -> Point:
        """The members are those of the shipped configurations.

        Five as in own_data.yaml where regulators are listed and all cells have the same genes, else none as in
        whole_transcriptome.yaml: grn train refuses a regulation layer whose scores are too large.
        """
        dense = bags == "dense"
        members = DEFAULTS.regulation.members if dense and keys != "all" else 0
        cells = cells or CELLS.get(genes) or max(1, 80000 // genes)
        return cls(bags, genes, keys, cells, genes if dense else vocabulary, members)

    def __str__(self) -> str:
        return f"{self.bags}, {self.genes} genes, {self.keys} as keys, {self.cells} cells, {self.model} model"


def regulators(point: Point, seed: int = 0) -> Tensor | None:
    """Vocabulary positions of the regulators, in order; None: all genes."""
    if point.keys == "all":
        return None
    count = max(1, round(REGULATORS * point.vocabulary))
    return torch.randperm(point.vocabulary, generator=torch.Generator().manual_seed(seed))[:count].sort().values


def batches(point: Point, count: int, seed: int = 0) -> list[Batch]:
    """Training batches like those of grn/cells/loading/batches.py, of simulated cells; on the CPU."""
    random = torch.Generator().manual_seed(seed)
    chosen = regulators(point, seed)
    programs = torch.randn(CLASSES, point.vocabulary, generator=random)
    return [_batch(point, chosen, programs, random) for _ in range(count)]


def _batch(point: Point, chosen: Tensor | None, programs: Tensor, random: torch.Generator) -> Batch:
    """programs [classes, V]: log levels of the genes per class, which the model can learn."""
    masked_fraction = DEFAULTS.objectives.masked_multiplicity.fraction
    absent_fraction = 0.1  # as in CellsDataModule
    cells, shape = point.cells, (point.cells, point.vocabulary)
    chance = torch.rand(shape, generator=random)
    masked, extra = chance < masked_fraction, chance < masked_fraction * absent_fraction
    if point.bags == "dense":
        present = torch.rand(shape, generator=random) < EXPRESSED
    else:
        present = _present(point, masked_fraction * absent_fraction, random)
    labels = torch.randint(CLASSES, (cells,), generator=random)
    before = present * torch.exp(0.5 * (programs[labels] + torch.randn(shape, generator=random)))
    visible = before.masked_fill(masked, 0)
    basal = torch.rand(cells, generator=random) + 0.5
    own = before if chosen is None else before[:, chosen]
    importance = None
    if point.bags == "dense":
        bags = Bags(torch.arange(point.genes), visible, None, basal, own)
    else:
        listed = present | extra  # every expressed gene, and some of the absent ones that are masked
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), listed.sum(1).cumsum(0)])
        bags = Bags(listed.nonzero()[:, 1], visible[listed], offsets, basal, own)
        importance = torch.where(masked, torch.where(present, 1.0, 1 / absent_fraction), 0.0)[listed]
        before, masked = before[listed], masked[listed]
    return Batch(bags, before, masked, torch.arange(cells), labels, torch.full((cells,), torch.nan), importance)


def _present(point: Point, listed_absent: float, random: torch.Generator) -> Tensor:
    """Genes that packed cells express, bool [C, V], so many that bags with their absent genes have the right sizes."""
    sizes = point.genes * (1 + point.spread * (2 * torch.rand(point.cells, generator=random) - 1))
    counts = ((sizes - listed_absent * point.vocabulary) / (1 - listed_absent)).round().clamp(1, point.vocabulary)
    rank = torch.rand(point.cells, point.vocabulary, generator=random).argsort(1).argsort(1)
    return rank < counts[:, None]
