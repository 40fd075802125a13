"""A network as a file for another program, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge

from grn.errors import ConfigError, DataError, reworded
from grn.messages import silent
from grn.verbs.checked import Positive, Share, Whole, checked
from grn.verbs.read_network import layer_of_run, refuse_without_layer
from grn.verbs.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

WORDS = {
    "--format": "format=",
    "--output": "output=",
    "--cell-type": "cell_type=",
    "--regulators": "regulators=",
    "--targets": "targets=",
    "--sign": "sign=",
    "--min-weight": "min_weight=",
    "--min-confidence": "min_confidence=",
    "--max-q-value": "max_q_value=",
    "--by COLUMN": "grn.network",
}
"""What messages say of options -> what they say to a caller of `export`."""


@checked()
def export(
    network: Run | pd.DataFrame | AnnData | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    format: str,
    cell_type: str | None = None,
    regulators: Sequence[str] | str | os.PathLike[str] | None = None,
    targets: Sequence[str] | str | os.PathLike[str] | None = None,
    sign: Literal["up", "down"] | None = None,
    min_weight: Annotated[float, Ge(0)] | None = None,
    min_confidence: Share | None = None,
    max_q_value: Share | None = None,
    top_k: Positive | None = None,
    layer: Whole | None = None,
    head: Whole | None = None,
    value: Literal["absolute", "weight", "score", "effect"] | None = None,
    cells: Positive | Literal["all"] | None = None,
    data: AnnData | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Writes the edges of a network as one file for another program, all of them or a choice, and returns them.

    Args:
        network: a Run or its folder, a table of edges as `read_network` gives, or any network that it reads.
        output: the file to make; what its name must end in depends on the format. It never replaces a file.
        format: parquet, csv, h5ad, graphml, cytoscape, cx2, pyscenic, gmt, beeline, decoupler or openproblems
            (docs/outputs.md says what each is for).
        cell_type: the label of a cell type: its network; of our runs only.
        regulators: the edges of these regulators: names, or a file with one a line.
        targets: the edges into these genes: names, or a file with one a line.
        sign: edges that raise their target (`up`), or that lower it (`down`).
        min_weight: least size of a weight.
        min_confidence: least confidence, 0 to 1.
        max_q_value: largest q-value, 0 to 1.
        top_k: most regulators of each target, the strongest ones among those left by all of the above.
        layer: of a run: the attention of this layer of its transformer, from 0, as `read_network` reads it.
        head: with `layer`: of this head. None: the mean over heads.
        value: with `layer`: `absolute` (default), `weight`, `score` or `effect`.
        cells: with `layer`: about how many cells are read, or `all`.
        data: with `layer`: the cells in memory, where the run was trained on an AnnData.
        quiet: print nothing; otherwise a line about what was written.

    Returns:
        The edges that were written, strongest first: `source`, `target`, `weight`, and `within`, `between`,
        `confidence` and `q_value` where they are known. Edges whose weight is 0 are left out.

    Raises:
        ConfigError: no such format or layer, or the file's name ends otherwise than its program expects.
        DataError: no edge is left, or a choice by a column that the network lacks.
        RunFolderError: the run cannot be read, or the file not be made.

    Examples:
        >>> import grn, pandas, tempfile
        >>> net = pandas.DataFrame({"source": ["A", "A", "B"], "target": ["B", "C", "C"], "weight": [3.0, -2.0, 1.0]})
        >>> with tempfile.TemporaryDirectory() as home:
        ...     written = grn.export(net, f"{home}/sets.gmt", format="gmt", top_k=1, quiet=True)
        ...     print(open(f"{home}/sets.gmt").read().expandtabs(2), end="")
        A(+)  genes that A raises in all cells  B
        A(-)  genes that A lowers in all cells  C
    """
    from grn.networks.formats.chosen import Filters, choose
    from grn.networks.formats.write import chosen_genes, read_edges, refuse_output, write_file

    if layer is None:
        refuse_without_layer(head=head, value=value, cells=cells, data=data)
    path = Path(output)
    if not path.name:
        raise ConfigError(f"output is {str(output)!r}, which is a folder; give the name of the file to make.")
    with reworded(WORDS):
        refuse_output(format, path)
        sources, into = chosen_genes(regulators, "--regulators"), chosen_genes(targets, "--targets")
        filters = Filters(min_weight, min_confidence, max_q_value, sign, sources, top_k, into)
        folder = _folder(network)
        if layer is not None:
            edges, genes, about = layer_of_run(network, layer, head, value, cells, cell_type, data)
        elif folder is not None:
            edges, genes, about = read_edges(folder, cell_type)
        else:
            edges, genes, about = _of_another_form(network, cell_type)
        chosen = choose(edges, genes, about, filters, cells=cell_type or str(about.get("cell_type", "all cells")))
        write_file(chosen, path, format, silent if quiet else print)
    return chosen.edges


def _folder(network: object) -> Path | None:
    """The folder of a run or of `grn export`, with its tables; None for anything else."""
    if isinstance(network, Run):
        network._file("edges.parquet")
        return network.folder
    if isinstance(network, (str, os.PathLike)) and Path(network).is_dir():
        return Path(network)
    return None


def _of_another_form(
    network: pd.DataFrame | AnnData | str | os.PathLike[str], cell_type: str | None
) -> tuple[pd.DataFrame, list[str], dict]:
    """Edges, genes and uns["grn"] of what `read_network` reads."""
    from grn.verbs.read_network import predicted_network

    found = predicted_network(network)
    if cell_type is not None:
        found = found.of_type(cell_type)
    if "cell_type" in found.edges:
        types = ", ".join(map(repr, found.edges["cell_type"].unique()[:5]))
        raise DataError(f"The table has edges of several cell types ({types}); give cell_type= one of them.")
    return found.edges, list(found.genes), {"sign": found.sign}
