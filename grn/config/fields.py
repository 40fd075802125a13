"""Names of fields: all that there are, their old names, and the field that an unknown name probably means."""

from __future__ import annotations

from pydantic import BaseModel

from grn.config.schema import Config
from grn.errors import nearest

LIKE = 0.7  # how like a name of a field must be to be the one that was meant: many are alike
CERTAIN = 0.85  # the same, for a name that may not be one of a field at all

# Names that fields had in earlier versions, and their names today.
RENAMED = {"network.members": "regulation.members"}

# Names of other tools, and the fields that do what they do there.
ELSEWHERE = {
    "data.path": "file filename input adata h5ad",
    "data.counts": "layer counts_layer use_layer use_raw",
    "data.orientation": "transpose",
    "data.genes": "hvg hvgs n_hvg n_top_genes top_genes highly_variable_genes",
    "data.gene_key": "gene_names gene_symbols var_names symbols",
    "data.label_key": "label labels labels_key celltype celltype_key cell_type_key celltypes annotation",
    "data.group_key": "batch_key donor donor_key sample sample_key",
    "data.state_key": "pseudotime pseudotime_key time_key",
    "data.regulators": "tf tfs tf_list tf_names tf_file transcription_factors",
    "data.validation_fraction": "val_fraction val_size validation_size",
    "data.test_fraction": "test_size",
    "model.width": "dim d_model hidden_size embedding_dim",
    "model.layers": "n_layers num_layers",
    "trainer.max_epochs": "epochs n_epochs num_epochs",
    "trainer.max_steps": "n_steps num_steps",
    "trainer.learning_rate": "lr",
    "trainer.accelerator": "device gpu cuda use_gpu",
    "trainer.devices": "gpus n_gpus num_gpus",
    "trainer.workers": "num_workers n_workers",
    "trainer.seed": "seed random_seed random_state",
    "trainer.precision": "amp mixed_precision",
    "regulation.penalties": "lambda alpha l2 penalty",
    "network.prior": "motifs base_grn",
    "network.top_k": "top edges n_edges max_edges",
    "network.false_discovery": "fdr",
}
_OF_OTHERS = {name: field for field, names in ELSEWHERE.items() for name in names.split()}


def all_fields(section: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """The dotted name of every field and section."""
    names = []
    for name in section.model_fields:
        names.append(f"{prefix}{name}")
        if inner := subsection(section, name):
            names += all_fields(inner, f"{prefix}{name}.")
    return names


def subsection(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The section called `name` in `section`; None where it is a single field, or nothing."""
    field = section.model_fields.get(name)
    annotation = field.annotation if field else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def unknown_field(field: str) -> str:
    """A sentence about a dotted name that is not a field: its new name, the nearest field, or the section's fields."""
    if field in RENAMED:
        return f"{field} is now called {RENAMED[field]}; set {RENAMED[field]} instead"
    return f"{field} is not a field; {_suggestion(field)}"


def meant_field(name: str) -> str | None:
    """The field that a name without its section means: as other tools call it, or nearly its own name; else None."""
    own = [field for field in all_fields() if "." in field and not field.startswith("data.simulated")]
    own.sort(key=lambda field: not field.startswith("trainer."))  # batch_size and the like are those of training
    of_name = {field.rpartition(".")[2]: field for field in reversed(own)} | _OF_OTHERS
    near = nearest(name, of_name, CERTAIN)
    return of_name[near] if near else None


def _suggestion(unknown: str) -> str:
    """The field in the same section with that name nearly, or that other tools call so; else the nearest one of all
    sections, else the fields of the section."""
    parent, _, last = unknown.rpartition(".")
    fields = all_fields()
    siblings = [name.rpartition(".")[2] for name in fields if name.rpartition(".")[0] == parent]
    if field := _OF_OTHERS.get(last.casefold()):
        own = field.rpartition(".")[2]
        return f"did you mean {parent}.{own}?" if own in siblings else f"did you mean {field}?"
    if near := nearest(last, siblings, LIKE):
        return f"did you mean {parent}.{near}?" if parent else f"did you mean {near}?"
    elsewhere = {name.rpartition(".")[2]: name for name in reversed(fields)}
    near = nearest(last, elsewhere, LIKE)
    if not near and parent not in fields:  # of a section that exists, the section's name would make all names alike
        near = nearest(unknown, fields, LIKE)
    if near:
        return f"did you mean {elsewhere.get(near, near)}?"
    return f"{parent or 'a configuration'} has the fields {', '.join(siblings)}"
