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
    from grn import errors as errors
    from grn import plots as plots
    from grn.verbs.activity import activity as activity
    from grn.verbs.compare import compare as compare
    from grn.verbs.evaluate import evaluate as evaluate
    from grn.verbs.evaluate_interventions import evaluate_interventions as evaluate_interventions
    from grn.verbs.explain import explain as explain
    from grn.verbs.export import export as export
    from grn.verbs.network import network as network
    from grn.verbs.perturb import perturb as perturb
    from grn.verbs.perturb import screen as screen
    from grn.verbs.predict import predict as predict
    from grn.verbs.read_network import read_network as read_network
    from grn.verbs.run import Run as Run
    from grn.verbs.run import load as load
    from grn.verbs.train import train as train

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

_ELSEWHERE = {
    "Run": "run",
    "load": "run",
    "screen": "perturb",
}  # what the module of the same name does not define
_NO_VERBS = ("__version__", "errors", "plots")
_MODULES = {
    name: f"grn.verbs.{_ELSEWHERE.get(name, name)}" for name in __all__ if name not in _NO_VERBS
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name in __all__:
        value = import_module(f"grn.{name}")
    else:
        raise AttributeError(
            f"module 'grn' has no attribute {name!r}; it offers {', '.join(sorted(__all__))}"
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
