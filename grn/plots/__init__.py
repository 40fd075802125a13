"""Pictures: each function takes tables or a network and returns a matplotlib Figure. No pyplot, nothing global.

A notebook shows a figure that stands last in a cell; `figure.savefig(path)` writes it. Functions are imported when they
are used, from one file each.
"""

# Type checkers and editors take this for True; see grn/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.plots.cell_types import cell_type_regulators as cell_type_regulators
    from grn.plots.confusion import confusion_matrix as confusion_matrix
    from grn.plots.edges import strongest_regulations as strongest_regulations
    from grn.plots.heatmap import network_heatmaps as network_heatmaps
    from grn.plots.precision_recall import precision_recall_curves as precision_recall_curves
    from grn.plots.training import training_curves as training_curves
    from grn.plots.within_between import within_and_between as within_and_between

_MODULES = {
    "cell_type_regulators": "grn.plots.cell_types",
    "confusion_matrix": "grn.plots.confusion",
    "network_heatmaps": "grn.plots.heatmap",
    "precision_recall_curves": "grn.plots.precision_recall",
    "strongest_regulations": "grn.plots.edges",
    "training_curves": "grn.plots.training",
    "within_and_between": "grn.plots.within_between",
}
__all__ = [
    "cell_type_regulators",
    "confusion_matrix",
    "network_heatmaps",
    "precision_recall_curves",
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
