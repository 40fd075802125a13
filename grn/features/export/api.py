"""A network as a file for another program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from grn.features.arguments.checked import Positive, Share, checked
from grn.features.given_networks import only_certain, predicted_network
from grn.features.run import Run, as_run
from grn.runtime.errors import ConfigError, DataError
from grn.runtime.messages import show, silent

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData


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
    certain: bool = True,
    quiet: bool = False,
) -> pd.DataFrame:
    """Write the certain edges of a network, all of them, or a choice as one file for another
    program; return them.

    Args:
        network: a Run or its folder, a table of edges as `read_network` gives, or any network that
            it reads.
        output: the file to make; what its name must end in depends on the format. It never replaces
            a file.
        format: parquet, csv, h5ad, graphml, cytoscape, pyscenic, gmt, beeline, decoupler or
            genernib (docs/outputs.md says what each is for); huggingface: of a run, the model as a
            folder with a card.
        cell_type: the label of a cell type: its network; of our runs only.
        regulators: the edges of these regulators: names, or a file with one a line.
        targets: the edges into these genes: names, or a file with one a line.
        sign: edges that raise their target (`up`), or that lower it (`down`).
        min_weight: least size of a weight.
        min_confidence: least confidence, 0 to 1.
        max_q_value: largest q-value, 0 to 1.
        top_k: most regulators of each target, the strongest ones among those left by all of the
            above.
        certain: of a network with q-values, only the edges with one of at most .05, by association
            or by intervention, unless `max_q_value` says otherwise; False: all edges.
        quiet: print nothing; otherwise a line about what was written.

    Returns:
        The edges that were written, by q-value and then strongest first: `source`, `target`,
        `weight`, and `sd`, `effect`, `effect_se`, `q_value`, `confidence`, `programme`, `between`,
        `indirect` and `cells` where they are known. Edges whose weight is 0 are left out.

    Raises:
        ConfigError: no such format, or the file's name ends otherwise than its program expects.
        DataError: no edge is certain, none is left, or a choice by a column that the network lacks.
        RunFolderError: the run cannot be read, or the file not be made.

    Examples:
        >>> import grn, pandas, tempfile
        >>> from pathlib import Path
        >>> pairs = {"source": ["A", "A", "B"], "target": ["B", "C", "C"]}
        >>> net = pandas.DataFrame(pairs | {"weight": [3.0, -2.0, 1.0]})
        >>> with tempfile.TemporaryDirectory() as home:
        ...     written = grn.export(net, f"{home}/sets.gmt", format="gmt", top_k=1, quiet=True)
        ...     print(Path(home, "sets.gmt").read_text().expandtabs(2), end="")
        A(+)  genes that A raises in all cells  B
        A(-)  genes that A lowers in all cells  C
    """
    from grn.edges.choose import choose, gene_names
    from grn.edges.formats import refuse_output, write_file
    from grn.networks.run_files import read_edges

    path, say = Path(output), silent if quiet else show
    filters: dict[str, Any] = {
        "regulators": regulators,
        "targets": targets,
        "sign": sign,
        "min_weight": min_weight,
    }
    filters |= {"min_confidence": min_confidence, "max_q_value": max_q_value, "top_k": top_k}
    if format == "huggingface":
        from grn.features.export.model_card import export_model

        edges_alone = {"cell_type": cell_type, **filters}
        if given := [name for name, option in edges_alone.items() if option is not None]:
            raise ConfigError(
                "{field} chooses edges, and huggingface is the whole model", field=given[0]
            )
        run = as_run(network)
        export_model(run.folder, run.metrics, path, say)
        return run.edges
    refuse_output(format, path)
    filters |= {name: gene_names(filters[name], name) for name in ("regulators", "targets")}
    folder = network.folder if isinstance(network, Run) else network
    if isinstance(folder, (str, os.PathLike)) and Path(folder).is_dir():
        edges, genes, about = read_edges(Path(folder), cell_type)
    else:
        found = predicted_network(network).of_type(cell_type)
        edges, genes = found.edges, list(found.genes)
        about = {"sign": found.sign or getattr(network, "attrs", {}).get("sign", "")}
        if "cell_type" in edges:
            types = ", ".join(map(repr, edges["cell_type"].unique()[:5]))
            raise DataError(
                f"The table has edges of several cell types ({types}); give one", field="cell_type"
            )
    if certain and max_q_value is None and len(edges):
        edges = only_certain(edges)
        if edges.empty:
            raise DataError(
                "No edge of this network is certain",
                field="certain",
                advice="use {field} for all of them",
            )
    chosen = choose(
        edges, genes, about, filters, cells=cell_type or str(about.get("cell_type", "all cells"))
    )
    write_file(chosen, path, format, say)
    return chosen.edges
