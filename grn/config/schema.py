"""Every field that a run can set, with its default; configs/own_data.yaml says what each means."""

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


def _number(value: Any) -> Any:
    """A number in quotes is the number, and no file."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def _refuse(wrong: object, problem: str) -> None:
    if wrong:
        raise ValueError(problem)


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

    cells: int = Field(1500, ge=1, le=10_000_000)
    genes: int = Field(120, ge=1, le=1_000_000)
    regulators: Positive = 12
    cell_types: Positive = 5
    hubs: Spread = 0
    type_specific: Fraction = 0
    changed_signs: Fraction = 0
    composition: Spread = 0
    depth: float = Field(8.0, gt=0, le=1e6)
    size_sd: Spread = 0.25
    seed: Seed = 0


class Simulation(SimulatedConfig):
    """What the generator can do besides, for benchmarks and tests; a configuration file has the defaults."""

    # most regulators that one target has; 0: there is no regulation at all
    regulators_per_target: int = Field(3, ge=0, le=1_000_000)
    repression: Fraction = 0.35  # share of edges that repress
    # targets at the end of a chain A -> B -> target; in every second one, A acts on it directly, too
    cascades: int = Field(0, ge=0, le=1_000_000)
    state: Fraction = 0  # share of edges whose strength changes along obs['state']: half of them grow, half fade
    noise: Spread = 0.3  # sd of the log-normal noise on each gene's production


class DataConfig(Section):
    path: str
    orientation: Orientation | None = None
    values: Literal["counts", "expression"] = "counts"
    counts: str = "X"
    bags: Literal["dense", "packed", "auto"] = "auto"
    genes: Annotated[Positive | str, BeforeValidator(_number)] = 2000
    gene_key: str | None = None
    duplicates: Literal["refuse", "sum"] = "refuse"
    label_key: str | None = None
    group_key: str | None = None
    state_key: str | None = None
    regulators: str | list[str] = "all"
    multiplicity: Literal["counts", "log1p", "log1p_normalised"] = "log1p_normalised"
    depth: Literal["auto", "none"] = "auto"
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    test_fraction: Fraction = 0.2
    simulated: SimulatedConfig = SimulatedConfig()

    @model_validator(mode="after")
    def _fields_agree(self):
        _refuse(
            self.depth == "none" and self.values == "counts" and self.multiplicity == "log1p_normalised",
            "data.depth: none means that totals are biology, but data.multiplicity: log1p_normalised divides by them; "
            "set data.multiplicity to log1p",
        )
        _refuse(
            self.group_key is not None and self.group_key == self.label_key,
            f"data.group_key and data.label_key are both {self.label_key!r}; set data.group_key to the donor or batch",
        )
        return self


class ModelConfig(Section):
    width: Size = 64
    layers: Few = 2
    attention: Literal["spherical", "softmax", "l1", "squared_relu"] = "spherical"
    query_heads: Size = 2
    key_heads: Size = 1
    hidden: Size = 128
    iterations: Few = 2
    dropout: Fraction = 0.1

    @model_validator(mode="after")
    def _heads_divide(self):
        _refuse(
            self.width % self.query_heads or self.query_heads % self.key_heads,
            f"width {self.width} must be a multiple of query_heads {self.query_heads}, and that one of key_heads "
            f"{self.key_heads}; change one of them",
        )
        return self


class CellTypeConfig(Section):
    weight: Weight = 0.3


class MaskedMultiplicityConfig(Section):
    weight: Weight = 1.0
    fraction: float = Field(0.3, gt=0, lt=1)


class PropertyConfig(Section):
    weight: Weight = 0.0
    key: str | None = None


class ObjectivesConfig(Section):
    cell_type: CellTypeConfig = CellTypeConfig()
    masked_multiplicity: MaskedMultiplicityConfig = MaskedMultiplicityConfig()
    property: PropertyConfig = PropertyConfig()


class TrainerConfig(Section):
    max_epochs: Positive | None = None
    max_steps: Positive = 1000
    batch_size: Positive = 64
    learning_rate: Rate = 3e-3
    weight_decay: Weight = 0.3
    averaging: Fraction = 0.99
    validate_every: Positive = 50
    patience: Positive = 10
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Positive | Literal["auto"] = 1
    num_nodes: Positive = 1
    strategy: str = "auto"
    gene_parallel: Positive = 1
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto"
    compile: bool = False
    workers: int = Field(0, ge=0, le=1000)
    seed: Seed = 0
    tensorboard: bool = False

    @model_validator(mode="after")
    def _genes_have_their_processes(self):
        _refuse(
            isinstance(self.devices, int) and self.devices * self.num_nodes % self.gene_parallel,
            f"gene_parallel {self.gene_parallel} does not divide the number of processes, {self.devices} x "
            f"{self.num_nodes}; set devices to a multiple of it, or gene_parallel to 1",
        )
        _refuse(
            self.gene_parallel > 1 and self.strategy != "auto" and not self.strategy.startswith("ddp"),
            f"gene_parallel needs whole gradients in every process, which strategy {self.strategy!r} may divide; set "
            "strategy to ddp",
        )
        return self


class CellReaderConfig(Section):
    """The cell reader (grn/model/cell_reader.py), which tells cell types, and its fit, before the transformer's."""

    members: int = Field(8, ge=0, le=1000)
    steps: Positive = 300


class RegulationConfig(Section):
    """The regulation layer (grn/model/signed/regulation_layer.py) and how it is fitted, before the transformer."""

    members: int = Field(5, ge=0, le=1000)
    penalties: list[Annotated[float, Field(gt=0, le=1e9)]] = Field([10, 30, 100, 300, 1000, 3000], min_length=1)
    steps: int = Field(600, ge=0, le=1_000_000_000)


class NetworkConfig(Section):
    readout: Literal["effect", "attention", "knockout", "jacobian"] = "effect"
    false_discovery: bool | None = None
    top_k: Positive | None = None
    prior: str | None = None
    prior_use: Literal["restrict", "weigh"] = "restrict"
    cells: Positive | Literal["all"] = 500


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
    def _sections_agree(self):
        readout = self.network.readout
        _refuse(
            readout == "effect" and not self.regulation.members,
            "network.readout: effect reads the regulation layer, but regulation.members: 0 trains none; set "
            "regulation.members to 1 or more, or network.readout to knockout",
        )
        _refuse(
            self.network.false_discovery and readout != "effect",
            "network.false_discovery needs network.readout: effect; set that, or network.false_discovery to false",
        )
        _refuse(
            self.model.attention != "spherical" and self.trainer.gene_parallel > 1,
            f"model.attention: {self.model.attention} cannot share the genes of a cell over processes; set "
            "model.attention to spherical, or trainer.gene_parallel to 1",
        )
        return self
