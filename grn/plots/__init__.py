"""Pictures, in one style; no pyplot, nothing global, no screen needed.

Pictures with one panel take `ax`, the matplotlib axes to draw into (None: those of a new figure),
and `show`, whether a notebook displays the figure (None: it does, unless an `ax` was given). They
return the axes; write the figure with `ax.figure.savefig(PATH)`. Pictures with several panels,
`attention_layers` (whose `ax` are the axes of all panels) and `training_curves`, return their
figure, which a notebook shows where it stands last in a cell.

Pictures of networks are given a run, its network (`run.network`) or a table of edges.
docs/gallery.md shows all. Functions are imported when they are used, from one file each.
"""

# Type checkers and editors take this for True; see grn/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.plots.activity import activity_heatmap as activity_heatmap
    from grn.plots.bars import cell_type_genes as cell_type_genes
    from grn.plots.graph import network_graph as network_graph
    from grn.plots.heatmaps import attention_layers as attention_layers
    from grn.plots.heatmaps import clustered_heatmap as clustered_heatmap
    from grn.plots.scores import confusion_matrix as confusion_matrix
    from grn.plots.scores import precision_recall_curves as precision_recall_curves
    from grn.plots.scores import training_curves as training_curves
    from grn.plots.volcano import perturbation_volcano as perturbation_volcano

_NAMES = {
    "activity": "activity_heatmap",
    "bars": "cell_type_genes",
    "graph": "network_graph",
    "heatmaps": "attention_layers clustered_heatmap",
    "scores": "confusion_matrix precision_recall_curves training_curves",
    "volcano": "perturbation_volcano",
}
_FILES = {name: file for file, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_FILES)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _FILES:
        raise AttributeError(
            f"module 'grn.plots' has no attribute {name!r}; it offers {', '.join(__all__)}"
        )
    globals()[name] = value = getattr(import_module(f"grn.plots.{_FILES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
