"""Pictures, in one style; no pyplot, nothing global, no screen needed.

Pictures with one panel take `ax`, the matplotlib axes to draw into (None: those of a new figure), and `show`, whether a
notebook displays the figure (None: it does, unless an `ax` was given). They return the axes; write the figure with
`ax.figure.savefig(PATH)`. Pictures with several panels, `attention_layers`, `cell_type_regulators`, `network_heatmaps`
and `training_curves`, return their figure, which a notebook shows where it stands last in a cell.

Pictures of networks are given a run, its network (`run.network`) or a table of edges. docs/gallery.md shows all.
Functions are imported when they are used, from one file each.
"""

# Type checkers and editors take this for True; see grn/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.plots.cells.activity import regulator_activity as regulator_activity
    from grn.plots.cells.explanation import cell_type_genes as cell_type_genes
    from grn.plots.cells.volcano import perturbation_volcano as perturbation_volcano
    from grn.plots.network.cell_types import cell_type_regulators as cell_type_regulators
    from grn.plots.network.clustered import clustered_heatmap as clustered_heatmap
    from grn.plots.network.difference import network_difference as network_difference
    from grn.plots.network.dots import regulator_dots as regulator_dots
    from grn.plots.network.edges import strongest_regulations as strongest_regulations
    from grn.plots.network.graph import network_graph as network_graph
    from grn.plots.network.heatmap import network_heatmaps as network_heatmaps
    from grn.plots.network.layers import attention_layers as attention_layers
    from grn.plots.network.within_between import within_and_between as within_and_between
    from grn.plots.run.confusion import confusion_matrix as confusion_matrix
    from grn.plots.run.precision_recall import precision_recall_curves as precision_recall_curves
    from grn.plots.run.training import training_curves as training_curves

_MODULES = {
    "attention_layers": "grn.plots.network.layers",
    "cell_type_genes": "grn.plots.cells.explanation",
    "cell_type_regulators": "grn.plots.network.cell_types",
    "clustered_heatmap": "grn.plots.network.clustered",
    "confusion_matrix": "grn.plots.run.confusion",
    "network_difference": "grn.plots.network.difference",
    "network_graph": "grn.plots.network.graph",
    "network_heatmaps": "grn.plots.network.heatmap",
    "perturbation_volcano": "grn.plots.cells.volcano",
    "precision_recall_curves": "grn.plots.run.precision_recall",
    "regulator_activity": "grn.plots.cells.activity",
    "regulator_dots": "grn.plots.network.dots",
    "strongest_regulations": "grn.plots.network.edges",
    "training_curves": "grn.plots.run.training",
    "within_and_between": "grn.plots.network.within_between",
}
__all__ = [
    "attention_layers",
    "cell_type_genes",
    "cell_type_regulators",
    "clustered_heatmap",
    "confusion_matrix",
    "network_difference",
    "network_graph",
    "network_heatmaps",
    "perturbation_volcano",
    "precision_recall_curves",
    "regulator_activity",
    "regulator_dots",
    "strongest_regulations",
    "training_curves",
    "within_and_between",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module 'grn.plots' has no attribute {name!r}; it offers {', '.join(__all__)}")
    globals()[name] = value = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
