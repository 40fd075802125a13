"""Signed gene regulatory networks and cell types from single-cell expression, with spherical
attention.

`grn.train` trains on an AnnData, a file or a configuration and returns a `Run`; `grn.load` opens
one from its folder; `grn.network` gives the network of cells, of a cell type or of one cell;
`grn.predict` annotates other cells and `grn.explain` says which genes speak for their types;
`grn.compare` finds regulators and edges that differ between conditions; `grn.perturb` predicts what
changes when regulators are knocked out or overexpressed, and `grn.screen` does so for each of them;
`grn.read_network` and `grn.evaluate` read and judge networks, ours and those of other tools, and
`grn.evaluate_interventions` what a run expects of interventions; `grn.export` writes them for other
programs; `grn.activity` says how active each regulator is in each cell; `grn.plots` draws. Mistakes
in what these are given are `grn.errors.UserError`, one sentence each.

Nothing is imported before it is used, so that `import grn` takes no time.
"""

# Type checkers and editors take this for True. The one of `typing` would cost an import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn import plots as plots
    from grn.features.activity.api import activity as activity
    from grn.features.compare.api import compare as compare
    from grn.features.evaluate.api import evaluate as evaluate
    from grn.features.explain import explain as explain
    from grn.features.export.api import export as export
    from grn.features.interventions.api import evaluate_interventions as evaluate_interventions
    from grn.features.network import network as network
    from grn.features.perturb.api import perturb as perturb
    from grn.features.perturb.api import screen as screen
    from grn.features.predict.api import predict as predict
    from grn.features.read_network import read_network as read_network
    from grn.features.run import Run as Run
    from grn.features.run import load as load
    from grn.features.train import train as train
    from grn.runtime import errors as errors

__version__ = "0.1.0"
__all__ = [
    "Run",
    "__version__",
    "activity",
    "compare",
    "errors",
    "evaluate",
    "evaluate_interventions",
    "explain",
    "export",
    "load",
    "network",
    "perturb",
    "plots",
    "predict",
    "read_network",
    "screen",
    "train",
]

_MODULES = {
    "Run": "grn.features.run",
    "activity": "grn.features.activity.api",
    "compare": "grn.features.compare.api",
    "evaluate": "grn.features.evaluate.api",
    "evaluate_interventions": "grn.features.interventions.api",
    "explain": "grn.features.explain",
    "export": "grn.features.export.api",
    "load": "grn.features.run",
    "network": "grn.features.network",
    "perturb": "grn.features.perturb.api",
    "predict": "grn.features.predict.api",
    "read_network": "grn.features.read_network",
    "screen": "grn.features.perturb.api",
    "train": "grn.features.train",
}  # where each name is defined
_WHOLE = {"errors": "grn.runtime.errors", "plots": "grn.plots"}  # modules that are offered whole


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name in _WHOLE:
        value = import_module(_WHOLE[name])
    else:
        raise AttributeError(
            f"module 'grn' has no attribute {name!r}; it offers {', '.join(sorted(__all__))}"
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
