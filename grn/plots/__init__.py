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
    from grn.plots.activity import regulator_activity as regulator_activity
    from grn.plots.cell_types import cell_type_regulators as cell_type_regulators
    from grn.plots.clustered import clustered_heatmap as clustered_heatmap
    from grn.plots.dots import regulator_dots as regulator_dots
    from grn.plots.edge_scatter import network_difference as network_difference
    from grn.plots.edge_scatter import within_and_between as within_and_between
    from grn.plots.edges import strongest_regulations as strongest_regulations
    from grn.plots.explanation import cell_type_genes as cell_type_genes
    from grn.plots.graph import network_graph as network_graph
    from grn.plots.heatmap import network_heatmaps as network_heatmaps
    from grn.plots.layers import attention_layers as attention_layers
    from grn.plots.scores import confusion_matrix as confusion_matrix
    from grn.plots.scores import precision_recall_curves as precision_recall_curves
    from grn.plots.training import training_curves as training_curves
    from grn.plots.volcano import perturbation_volcano as perturbation_volcano

_FILES = {
    "attention_layers": "layers",
    "cell_type_genes": "explanation",
    "cell_type_regulators": "cell_types",
    "clustered_heatmap": "clustered",
    "confusion_matrix": "scores",
    "network_difference": "edge_scatter",
    "network_graph": "graph",
    "network_heatmaps": "heatmap",
    "perturbation_volcano": "volcano",
    "precision_recall_curves": "scores",
    "regulator_activity": "activity",
    "regulator_dots": "dots",
    "strongest_regulations": "edges",
    "training_curves": "training",
    "within_and_between": "edge_scatter",
}
__all__ = list(_FILES)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _FILES:
        raise AttributeError(f"module 'grn.plots' has no attribute {name!r}; it offers {', '.join(__all__)}")
    globals()[name] = value = getattr(import_module(f"grn.plots.{_FILES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
