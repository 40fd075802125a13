"""Every field that a run can set, with its default; configs/own_data.yaml says what each means."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

# The upper bounds are far above what makes sense, and below what overflows in float32 or in a
# library.
Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Size = Annotated[int, Field(ge=1, le=100_000)]  # of one axis of a tensor of parameters
Few = Annotated[int, Field(ge=1, le=1000)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
# widths of X_grn and of the transformer's tokens where model.width is auto
CELL_WIDTH, TOKEN_WIDTH = 64, 32
Rate = Annotated[float, Field(gt=0, le=100)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Spread = Annotated[float, Field(ge=0, le=10)]  # sd of a logarithm
Orientation = Literal["cells_by_genes", "genes_by_cells"]
Programme = Literal[
    "ribosomal", "mitochondrial", "haemoglobin", "heat_shock", "immediate_early", "cell_cycle"
]


def _number(value: Any) -> Any:
    """Return a number in quotes as the number: it does not name a file."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def _expanded(value: Any) -> Any:
    """Return a path with the user's home in place of ~, which shells do not expand after an equals
    sign.
    """
    return os.path.expanduser(value) if isinstance(value, str) else value


File = Annotated[str, BeforeValidator(_expanded)]


def _refuse(wrong: object, problem: str) -> None:
    """Raise ValueError with the problem where `wrong` is true."""
    if wrong:
        raise ValueError(problem)


class Section(BaseModel):
    """A section of a configuration: unknown fields are errors, and nothing changes afterwards."""

    model_config = ConfigDict(
        extra="forbid", validate_default=True, frozen=True, allow_inf_nan=False
    )

    @classmethod
    def of(cls, section: Section) -> Self:
        """Return a section as one of this class, with defaults for the fields that it lacks."""
        return section if isinstance(section, cls) else cls(**section.model_dump())

    @field_validator("*", mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `true` where a number belongs: pydantic would read it as 1."""
        wanted = str(cls.model_fields[str(info.field_name)].annotation)
        if (
            isinstance(value, bool)
            and "bool" not in wanted
            and ("int" in wanted or "float" in wanted)
        ):
            raise PydanticKnownError("float_type")
        return value


class SimulatedConfig(Section):
    """Settings of `path: "simulated:"`, the generator of cells with a planted signed network."""

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
    interventions: Share = 0
    efficiency: Share = 1
    failing: Fraction = 0
    pairs: Fraction = 0
    seed: Seed = 0


class Simulation(SimulatedConfig):
    """Settings of the generator with further fields for benchmarks and tests, which no
    configuration file sets.
    """

    # most regulators that one target has; 0: there is no regulation at all
    regulators_per_target: int = Field(3, ge=0, le=1_000_000)
    repression: Fraction = 0.35  # share of edges that repress
    # targets at the end of a chain A -> B -> target; in every second one, A acts on it directly,
    # too
    cascades: int = Field(0, ge=0, le=1_000_000)
    noise: Spread = 0.3  # sd of the log-normal noise on each gene's production


class DataConfig(Section):
    path: File
    orientation: Orientation | None = None
    values: Literal["counts", "expression"] = "counts"
    counts: str = "X"
    genes: Annotated[Positive | File, BeforeValidator(_number)] = 2000
    gene_key: str | None = None
    duplicates: Literal["refuse", "sum"] = "refuse"
    label_key: str | None = None
    group_key: str | None = None
    state_key: str | None = None
    intervention_key: str | None = None
    intervention: Literal["knock-out", "knock-down", "overexpression"] = "knock-out"
    control: str | list[str] | None = None
    guide_key: str | None = None
    regulators: File | list[str] = "all"
    regress_out: list[Programme] = []
    multiplicity: Literal["counts", "log1p", "log1p_normalised"] = "log1p_normalised"
    depth: Literal["auto", "none"] = "auto"
    sample: int = Field(36_000, ge=1000, le=1_000_000_000)
    test_fraction: Fraction = 0.1
    simulated: SimulatedConfig = SimulatedConfig()

    @model_validator(mode="before")
    @classmethod
    def _without_targets(cls, values: Any) -> Any:
        """Accept `targets: null`, which files of earlier runs hold; refuse any other value of this
        removed field.
        """
        if not isinstance(values, dict) or "targets" not in values:
            return values
        _refuse(
            values["targets"] is not None,
            "data.targets is gone, as unspliced counts told no direction in real cells; take the "
            "line out, and genes are predicted from data.counts",
        )
        return {name: value for name, value in values.items() if name != "targets"}

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        _refuse(
            self.depth == "none"
            and self.values == "counts"
            and self.multiplicity == "log1p_normalised",
            "data.depth: none means that totals are biology, but data.multiplicity: "
            "log1p_normalised divides by them; set data.multiplicity to log1p",
        )
        _refuse(
            self.guide_key is not None and self.intervention_key is None,
            "data.guide_key says which guides a cell has, but not of which gene; set "
            "data.intervention_key, too",
        )
        _refuse(
            self.group_key is not None and self.group_key == self.label_key,
            f"data.group_key and data.label_key are both {self.label_key!r}; set data.group_key to "
            "the donor or batch",
        )
        return self


class ModelConfig(Section):
    reader: Literal["transformer", "linear"] = "linear"
    width: Size | Literal["auto"] = "auto"
    layers: int = Field(2, ge=1, le=100)
    members: int = Field(5, ge=1, le=1000)
    query_heads: Few = 4
    key_heads: Few = 2
    hidden: Size = 256
    iterations: Few = 2
    dropout: Fraction = 0.5
    penalty: Annotated[float, Field(gt=0, le=1e9)] | None = None

    @property
    def width_of_cells(self) -> int:
        """Return the width of a cell's representation, X_grn."""
        return CELL_WIDTH if self.width == "auto" else self.width

    @property
    def width_of_tokens(self) -> int:
        """Return the width of the transformer's tokens."""
        return TOKEN_WIDTH if self.width == "auto" else self.width

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        _refuse(
            self.query_heads % self.key_heads,
            f"query_heads {self.query_heads} must be a multiple of key_heads {self.key_heads}; "
            "change one of them",
        )
        _refuse(
            self.reader == "transformer" and self.width_of_tokens % self.query_heads,
            f"query_heads {self.query_heads} do not divide tokens of width {self.width_of_tokens}; "
            "change one of them",
        )
        return self


class CellTypeConfig(Section):
    weight: Weight = 1.0


class MaskedMultiplicityConfig(Section):
    weight: Weight = 1.0
    fraction: float = Field(0.3, gt=0, lt=1)


class ObjectivesConfig(Section):
    cell_type: CellTypeConfig = CellTypeConfig()
    masked_multiplicity: MaskedMultiplicityConfig = MaskedMultiplicityConfig()


# Fields of TrainerConfig that say where a run is computed: a resumed run may have others.
WHERE = ("accelerator", "devices", "num_nodes", "strategy", "workers")


class TrainerConfig(Section):
    max_epochs: Positive | None = None
    max_steps: Positive = 400
    batch_size: Positive | Literal["auto"] = "auto"
    learning_rate: Rate = 5e-3
    weight_decay: Weight = 0.3
    averaging: Fraction = 0.99
    validate_every: Positive = 100
    patience: Positive = 10
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Positive | Literal["auto"] = 1
    num_nodes: Positive = 1
    strategy: str = "auto"
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto"
    workers: int = Field(0, ge=0, le=1000)
    seed: Seed = 0


class NetworkConfig(Section):
    false_discovery: bool = True
    least_cells: Positive = 10
    top_k: Positive | None = 50
    prior: File | None = None
    prior_use: Literal["restrict", "weigh"] = "restrict"
    regulons: File | None = None


class Config(Section):
    """All settings of a run."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    objectives: ObjectivesConfig = ObjectivesConfig()
    trainer: TrainerConfig = TrainerConfig()
    network: NetworkConfig = NetworkConfig()

    @property
    def regulates(self) -> bool:
        """Return whether the model has signed blocks, which regulate genes.

        Where no genes are predicted, a transformer reads the cells without them.
        """
        return bool(self.objectives.masked_multiplicity.weight) or self.model.reader == "linear"
