"""Every field that a run can set, with its default and its meaning. Unknown keys are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

# The upper bounds are far above what makes sense, and below what overflows in float32 or in a library.
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Size = Annotated[int, Field(ge=1, le=100_000)]  # of one axis of a tensor of parameters
Few = Annotated[int, Field(ge=1, le=1000)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Rate = Annotated[float, Field(gt=0, le=100)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Spread = Annotated[float, Field(ge=0, le=10)]  # sd of a logarithm
Orientation = Literal["cells_by_genes", "genes_by_cells"]


def _genes(value: Any) -> Any:
    """A number in quotes is the number, and no file; names stand in a file."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, (list, tuple)):
        raise ValueError("data.genes is a list; write the names into a file, one a line, and give the name of the file")
    return value


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, section: Section) -> Self:
        """`section` as settings of this kind, with their defaults for what it does not have."""
        return section if isinstance(section, cls) else cls(**section.model_dump())

    @field_validator("*", mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        wanted = str(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and "bool" not in wanted and ("int" in wanted or "float" in wanted):
            raise PydanticKnownError("float_type")
        return value


class SimulatedConfig(Section):
    """The generator behind `path: "simulated:"`: cells with a planted signed network."""

    cells: int = Field(1500, ge=1, le=10_000_000, description="number of cells, spread evenly over the cell types")
    genes: int = Field(120, ge=1, le=1_000_000, description="number of genes, regulators included")
    regulators: Positive = Field(12, description="number of genes that regulate others")
    cell_types: Positive = Field(
        5, description="number of cell types, each with its own levels of the master regulators"
    )
    hubs: Spread = Field(
        0, description="sd of the log of a regulator's propensity to be chosen, whatever its abundance"
    )
    type_specific: Fraction = Field(
        0, description="share of edges that exist in some cell types only: half of them in one type, half in two"
    )
    changed_signs: Fraction = Field(
        0, description="share of edges that have the other sign in about half of the cell types"
    )
    composition: Spread = Field(
        0, description="sd over cell types of the log level that each gene has apart from regulation"
    )
    depth: float = Field(8.0, gt=0, le=1e6, description="mean counts per gene and cell")
    size_sd: Spread = Field(
        0.25, description="sd over cells of the log of a cell's size; its counts are proportional to the size"
    )
    seed: Seed = Field(0, description="seed of the generator")


class Simulation(SimulatedConfig):
    """What the generator can do besides, for benchmarks and tests; a configuration file has the defaults."""

    regulators_per_target: int = Field(
        3, ge=0, le=1_000_000, description="most regulators that one target has; 0: there is no regulation at all"
    )
    repression: Fraction = Field(0.35, description="share of edges that repress")
    cascades: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="targets at the end of a chain A -> B -> target; in every second one, A acts on it directly, too",
    )
    state: Fraction = Field(
        0, description="share of edges whose strength changes along obs['state']: half of them grow, half fade"
    )
    noise: Spread = Field(0.3, description="sd of the log-normal noise on each gene's production")


class DataConfig(Section):
    path: str = Field(
        description="a file (.h5ad, 10x .h5, .csv, .tsv, .txt, also .gz), a folder (10x mtx, .zarr), "
        "`scanpy:pbmc68k_reduced`, `scanpy:pbmc3k` or `simulated:`"
    )
    orientation: Orientation | None = Field(
        None,
        description="text files: cells_by_genes, a row per cell; genes_by_cells, a row per gene; null: no text file",
    )
    values: Literal["counts", "expression"] = Field(
        "counts", description="counts: UMI counts; expression: continuous or log values, taken as they are"
    )
    counts: str = Field("X", description="where the counts are: X | raw | layer:NAME | recover (from log1p values)")
    bags: Literal["dense", "packed", "auto"] = Field(
        "auto", description="dense: each cell over all genes; packed: over those it has; auto: packed above 4096 genes"
    )
    genes: Annotated[Positive | str, BeforeValidator(_genes)] = Field(
        2000, description="all | the N most variable | a file with one gene a line"
    )
    gene_key: str | None = Field(None, description="column of var with the gene names; null: the index")
    duplicates: Literal["refuse", "sum"] = Field("refuse", description="genes listed twice: refuse, or sum the counts")
    label_key: str | None = Field(None, description="column of obs with the cell types; null: none")
    group_key: str | None = Field(None, description="column of obs (donor, batch) that split and folds keep together")
    state_key: str | None = Field(
        None, description="numeric column of obs (pseudotime, dose) along which regulation may change; null: none"
    )
    regulators: str | list[str] = Field(
        "all",
        description="all | names | a file, one gene a line | a list of grn data: the genes that others may attend to",
    )
    multiplicity: Literal["counts", "log1p", "log1p_normalised"] = Field(
        "log1p_normalised",
        description="how counts become multiplicities; normalised: first scaled to the training cells' median total",
    )
    depth: Literal["auto", "none"] = Field(
        "auto",
        description="auto: a cell's sequencing depth is estimated from its total or zeros; none: all have the same",
    )
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="share of cells for validation, which decides when training stops"
    )
    test_fraction: Fraction = Field(0.2, description="share of cells for the final metrics")
    simulated: SimulatedConfig = SimulatedConfig()

    @model_validator(mode="after")
    def _depth_of_normalised_counts(self):
        if self.depth == "none" and self.values == "counts" and self.multiplicity == "log1p_normalised":
            raise ValueError(
                "data.depth: none means that totals are biology, but data.multiplicity: log1p_normalised divides by "
                "them; set data.multiplicity to log1p"
            )
        return self

    @model_validator(mode="after")
    def _groups_are_no_types(self):
        if self.group_key is not None and self.group_key == self.label_key:
            raise ValueError(
                f"data.group_key and data.label_key are both {self.label_key!r}, so that no cell type would be in "
                "training and in the test; set data.group_key to the donor or batch, or to null"
            )
        return self


class ModelConfig(Section):
    width: Size = Field(64, description="width of a gene's representation")
    layers: Few = Field(2, description="blocks of attention and feed-forward; each reads the output of the one before")
    attention: Literal["spherical", "softmax", "l1", "squared_relu"] = Field(
        "spherical", description="normaliser of all blocks' weights; the others are there to be compared"
    )
    query_heads: Size = Field(2, description="query heads; head width = width / query_heads; few and wide do best")
    key_heads: Size = Field(1, description="key and value heads, each shared by a group of query heads")
    hidden: Size = Field(128, description="hidden width of the feed-forward map")
    iterations: Few = Field(
        2, description="times that the shared feed-forward map is applied, each time with a residual"
    )
    dropout: Fraction = Field(0.1, description="share of genes whose output of a residual branch is dropped in a step")

    @model_validator(mode="after")
    def _heads_divide(self):
        if self.width % self.query_heads:
            raise ValueError(
                f"width {self.width} is not a multiple of query_heads {self.query_heads}; change one of them"
            )
        if self.query_heads % self.key_heads:
            raise ValueError(
                f"query_heads {self.query_heads} is not a multiple of key_heads {self.key_heads}; change one of them"
            )
        return self


class CellTypeConfig(Section):
    weight: Weight = Field(
        0.3,
        description="0 switches the objective off; low, because a few labels are overfitted before genes are learned",
    )


class MaskedMultiplicityConfig(Section):
    weight: Weight = Field(1.0, description="0 switches the objective off")
    fraction: float = Field(0.3, gt=0, lt=1, description="share of genes masked in each training bag")


class PropertyConfig(Section):
    weight: Weight = Field(0.0, description="0 switches the objective off")
    key: str | None = Field(None, description="numeric column of obs to predict")


class ObjectivesConfig(Section):
    cell_type: CellTypeConfig = CellTypeConfig()
    masked_multiplicity: MaskedMultiplicityConfig = MaskedMultiplicityConfig()
    property: PropertyConfig = PropertyConfig()


class TrainerConfig(Section):
    max_epochs: Positive | None = Field(
        None, description="passes over the training cells; null: max_steps alone limits training"
    )
    max_steps: Positive = Field(1000, description="optimiser steps; training ends at whichever limit comes first")
    batch_size: Positive = Field(64, description="cells per step and process (or group of gene_parallel processes)")
    learning_rate: Rate = Field(3e-3, description="peak of the warm-up and cosine schedule")
    weight_decay: Weight = Field(0.3, description="AdamW's decoupled decay, matrices only")
    averaging: Fraction = Field(0.99, description="decay of the moving average of weights that is kept; 0: none")
    validate_every: Positive = Field(50, description="steps from one validation to the next")
    patience: Positive = Field(10, description="validations without improvement before training stops")
    accelerator: Literal["auto", "cpu", "gpu"] = Field("auto", description="passed to Lightning")
    devices: Positive | Literal["auto"] = Field(1, description="processes on this machine, passed to Lightning")
    num_nodes: Positive = Field(1, description="machines, passed to Lightning")
    strategy: str = Field("auto", description="how processes share the work (ddp, ...), passed to Lightning")
    gene_parallel: Positive = Field(
        1, description="processes that share the genes of each cell; divides devices x num_nodes"
    )
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = Field(
        "auto", description="auto: bf16-mixed on a GPU, 32-true on a CPU; 16-mixed needs a GPU"
    )
    compile: bool = Field(False, description="fuse the model's small operations with torch.compile, on a GPU")
    workers: int = Field(0, ge=0, le=1000, description="extra processes that prepare batches; 0: none")
    seed: Seed = Field(0, description="split, initialisation, order and masks")
    tensorboard: bool = Field(False, description="also log for TensorBoard (extra `tensorboard`)")

    @model_validator(mode="after")
    def _genes_have_their_processes(self):
        if isinstance(self.devices, int) and self.devices * self.num_nodes % self.gene_parallel:
            raise ValueError(
                f"gene_parallel {self.gene_parallel} does not divide the number of processes, devices x num_nodes = "
                f"{self.devices * self.num_nodes}; set devices to a multiple of it, or gene_parallel to 1"
            )
        if self.gene_parallel > 1 and self.strategy != "auto" and not self.strategy.startswith("ddp"):
            raise ValueError(
                f"gene_parallel {self.gene_parallel} needs whole gradients in every process, which strategy "
                f"{self.strategy!r} may divide; set strategy to ddp"
            )
        return self


class CellReaderConfig(Section):
    """The cell reader (grn/model/cell_reader.py), which tells cell types, and its fit, before the transformer's."""

    members: int = Field(
        8,
        ge=0,
        le=1000,
        description="ensemble members; 0: the transformer's summary tells cell types, as where it has no other task",
    )
    steps: Positive = Field(300, description="optimiser steps, at most three times trainer.max_steps")


class RegulationConfig(Section):
    """The regulation layer (grn/model/signed/regulation_layer.py) and how it is fitted, before the transformer."""

    members: int = Field(
        5,
        ge=0,
        le=1000,
        description="ensemble members: layers trained together and averaged; 0: none, only the transformer",
    )
    penalties: list[Annotated[float, Field(gt=0, le=1e9)]] = Field(
        [10, 30, 100, 300, 1000, 3000],
        min_length=1,
        description="on squared slopes, as in ridge; held-out cells choose, and widen the grid where its end is best",
    )
    steps: int = Field(
        600, ge=0, le=1_000_000_000, description="optimiser steps after the linear start; 0: the linear start alone"
    )


class NetworkConfig(Section):
    readout: Literal["effect", "attention", "knockout", "jacobian"] = Field(
        "effect",
        description='what varp["grn"] and edges.parquet hold; knockout and jacobian read the whole model, slowly',
    )
    false_discovery: bool | None = Field(
        None,
        description="q_value of every edge, against knock-offs (associations, not causes); null: with effects",
    )
    top_k: Positive | None = Field(None, description="strongest regulators kept per target; null: every candidate edge")
    prior: str | None = Field(
        None, description="a network of source, target and, if known, weight (motifs, ChIP): candidates; null: none"
    )
    prior_use: Literal["restrict", "weigh"] = Field(
        "restrict",
        description="restrict: other edges are left out; weigh: the fit penalises them more, as far as that helps",
    )
    cells: Positive | Literal["all"] = Field(
        500, description="about how many cells the blocks are read over, evenly by cell type; all: every cell"
    )


class Config(Section):
    """A complete run."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    objectives: ObjectivesConfig = ObjectivesConfig()
    trainer: TrainerConfig = TrainerConfig()
    cell_reader: CellReaderConfig = CellReaderConfig()
    regulation: RegulationConfig = RegulationConfig()
    network: NetworkConfig = NetworkConfig()

    @model_validator(mode="after")
    def _readout_has_its_layer(self):
        if self.network.readout == "effect" and not self.regulation.members:
            raise ValueError(
                "network.readout: effect reads the regulation layer, but regulation.members: 0 trains none; "
                "set regulation.members to 1 or more, or network.readout to knockout"
            )
        if self.network.false_discovery and self.network.readout != "effect":
            raise ValueError(
                "network.false_discovery needs network.readout: effect; set that, or network.false_discovery to false"
            )
        return self

    @model_validator(mode="after")
    def _attention_can_share_genes(self):
        if self.model.attention != "spherical" and self.trainer.gene_parallel > 1:
            raise ValueError(
                f"model.attention: {self.model.attention} cannot share the genes of a cell over "
                f"trainer.gene_parallel: {self.trainer.gene_parallel} processes; set model.attention to spherical, or "
                "trainer.gene_parallel to 1"
            )
        return self
