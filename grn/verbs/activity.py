"""The activity of regulators in cells, written into their AnnData."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from grn.errors import DataError
from grn.messages import silent
from grn.verbs.checked import Positive, checked
from grn.verbs.given_cells import checked_anndata, writing_into_views
from grn.verbs.read_network import predicted_network
from grn.verbs.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData


@checked()
def activity(
    adata: AnnData,
    network: Run | pd.DataFrame | AnnData | str | os.PathLike[str],
    *,
    cell_type: str | None = None,
    method: Literal["ulm", "aucell"] = "ulm",
    targets: Positive | None = 50,
    min_targets: Positive = 5,
    layer: str | None = None,
    key_added: str = "regulon",
    copy: bool = False,
    quiet: bool = False,
) -> AnnData:
    """How active each regulator is in each cell, as the levels of its targets say, into `obsm["X_regulon"]`.

    A regulator is active where genes that it raises are high and those that it lowers are low. A weight counts as far
    as its sign is known, where the network has confidences: times 2 x confidence - 1. Needs decoupler:
    pip install 'grn[decoupler]'. With KEY for `key_added`:

        obsm["X_KEY"]      DataFrame float32 [cells, regulators]; of ulm a t-value, of aucell a difference of two AUCs
        obsm["padj_KEY"]   of ulm alone: p-values, adjusted over the regulators of a cell
        uns["KEY"]         method, targets, min_targets, layer, cell_type

    Args:
        adata: cells x genes. Counts are turned into log1p at the median total; other values are used as they are.
        network: a Run or its folder, a table of edges, or anything that `read_network` reads. Its signs must mean
            something.
        cell_type: the network of this cell type, for all cells; of our runs only.
        method: `ulm`, the t-value of a regression of the cell's values on the weights; or `aucell`, the share of the
            genes raised among the cell's highest ones, minus that of the genes lowered.
        targets: strongest targets of each regulator that count; None: all.
        min_targets: regulators with fewer targets among the genes are left out.
        layer: the values to use; None: X.
        key_added: KEY above.
        copy: write into a copy and leave `adata` as it is.
        quiet: print nothing; otherwise what was used, in a few lines.

    Returns:
        `adata` itself, or the copy.

    Raises:
        ConfigError: decoupler is not installed, or an argument cannot be used.
        DataError: no regulator has enough targets, values that are not finite, a network whose signs mean nothing.
        VocabularyMismatch: no target of the network is a gene of the cells.

    Source: Badia-i-Mompel et al. 2022 (decoupler); Aibar et al. 2017 (AUCell).

    Examples:
        >>> import anndata, numpy, pandas, grn
        >>> counts = numpy.random.default_rng(0).poisson(5.0, (20, 12)).astype("float32")
        >>> counts[:10, :4] += 20  # the genes that A raises are high in the first ten cells
        >>> adata = anndata.AnnData(counts, var=pandas.DataFrame(index=[f"g{i}" for i in range(12)]))
        >>> net = pandas.DataFrame({"source": "A", "target": adata.var_names[:8], "weight": [1.0] * 4 + [-1.0] * 4})
        >>> adata = grn.activity(adata, net, quiet=True)
        >>> bool(adata.obsm["X_regulon"]["A"][:10].min() > adata.obsm["X_regulon"]["A"][10:].max())
        True
    """
    from grn.analysis.activity import regulon_activity

    found = predicted_network(network).of_type(cell_type)
    if not found.signs_have_meaning:
        raise DataError("The signs of these weights mean nothing, and activity needs them; give a network of effects.")
    if "cell_type" in found.edges and len(types := found.edges["cell_type"].unique()) > 1:
        raise DataError(f"The network has edges of several cell types ({', '.join(types[:5])}); choose one.")
    say = silent if quiet else print
    if not found.signed:
        say(
            "No weight of the network is negative, as in networks without signs: a regulator counts as active where "
            "its targets are high, whether it raises or lowers them."
        )
    cells = checked_anndata(adata)
    options: dict[str, Any] = {"method": method, "targets": targets, "min_targets": min_targets, "layer": layer}
    scores, p = regulon_activity(cells, found.edges, **options, say=say)
    cells = cells.copy() if copy else cells
    with writing_into_views():
        cells.obsm[f"X_{key_added}"] = scores
        cells.obsm.pop(f"padj_{key_added}", None)
        if p is not None:
            cells.obsm[f"padj_{key_added}"] = p
        cells.uns[key_added] = options | {"targets": targets or 0, "layer": layer or "X", "cell_type": cell_type or ""}
    return cells
