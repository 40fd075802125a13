"""Cell types of other cells, written into their AnnData."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from grn.errors import reworded
from grn.messages import silent
from grn.verbs.cells import checked_anndata, is_anndata, writing_into_views
from grn.verbs.checked import Share, checked
from grn.verbs.run import Run, as_run

if TYPE_CHECKING:
    from anndata import AnnData

WORDS = {
    "set data.duplicates: sum to add their counts, or data.gene_key to": "add their counts first, or set gene_key to",
    " to a matrix that holds counts, or data.values: expression": " to a matrix that holds counts",
    ", or set data.values: expression to use the values as they are": "",
    "set data.path to a file or to": "give a file or",
    "set data.orientation to": "give orientation=",
    "data.orientation": "orientation",
    "data.counts": "counts",
    "data.gene_key": "gene_key",
    "--key-added": "key_added",
    "--error": "error",
    "--map": "map",
    "--labels": "labels",
}
"""What messages say of fields -> what they say to a caller of `predict`."""


@checked()
def predict(
    adata: AnnData | str | os.PathLike[str],
    run: Run | str | os.PathLike[str],
    *,
    key_added: str = "grn",
    copy: bool = False,
    counts: str | None = None,
    gene_key: str | None = None,
    orientation: Literal["cells_by_genes", "genes_by_cells"] | None = None,
    error: Share | None = None,
    map: Mapping[str, str] | str | os.PathLike[str] | None = None,
    labels: str | None = None,
    quiet: bool = False,
) -> AnnData:
    """Predicts the cell types of cells, and represents them as the model does, into their AnnData.

    Genes that the cells lack count as absent; those that the model does not know are not read. What is written, with
    KEY for `key_added`; what was there under these names is replaced:

        obs["KEY_cell_type"]             categorical: the most probable type
        obs["KEY_cell_type_confidence"]  its probability, 0 to 1
        obsm["KEY_probabilities"]        float32 [cells, types], columns in the order of uns["KEY"]["classes"]
        obsm["X_KEY"]                    float32 [cells, width]: the cell's representation, as for scanpy's neighbours
        obs["KEY_property"]              where the model was trained to predict one, in its own unit

    Args:
        adata: cells: an AnnData, cells x genes, or what `data.path` may name. Nothing is written to disk.
        run: the run whose model predicts: a Run, its folder, or its model folder.
        key_added: KEY above.
        copy: write into a copy and leave `adata` as it is.
        counts: where the counts are: `X`, `raw`, `layer:NAME`, `recover`; None: as in training.
        gene_key: column of var with the gene names; None: as in training.
        orientation: what the rows of a text file are; None: as in training.
        error: the share of wrong labels that is accepted: cells that are less certain than that are "unassigned". The
            threshold is that of held-out cells of the training, and in uns["KEY"]; None: every cell has a label.
        map: other names for cell types, {"CD8 T": "T", ...} or a csv file with the columns from,to. Probabilities of
            types with one name are added, and given labels are renamed, too.
        labels: a column of obs with labels to compare with. uns["KEY"] then has `accuracy`, `macro_f1` and `confusion`
            (cells by given type, rows in the order of `given`, and predicted type, columns in that of `predicted`).
        quiet: print nothing; otherwise what was found of the model's genes, in a few lines.

    Returns:
        `adata` itself, or the copy, or what was read from the path.

    Raises:
        VocabularyMismatch: the cells have fewer than half of the model's genes.
        DataError: negative counts, log values given as counts, a column that is missing, ...
        RunFolderError: the run cannot be read.

    Source: arXiv 2505.09326.

    Examples:
        >>> import anndata, numpy, grn
        >>> counts = numpy.random.default_rng(0).poisson(2.0, (100, 20)).astype("float32")
        >>> adata = anndata.AnnData(counts, obs={"type": ["a", "b"] * 50})
        >>> tiny = {"regulation.steps": 20, "regulation.members": 1}
        >>> run = grn.train(adata, label_key="type", max_steps=20, set=tiny, quiet=True)
        >>> adata = grn.predict(adata, run, quiet=True)
        >>> adata.obs["grn_cell_type"].cat.categories.tolist()
        ['a', 'b']
        >>> adata.obsm["X_grn"].shape
        (100, 64)
    """
    from grn.analysis.predict import annotate, data_config, refuse_error, refuse_key
    from grn.cells.readers.registry import MEMORY, open_source

    with reworded(WORDS):
        refuse_key(key_added)
        in_memory = is_anndata(adata)
        opened = as_run(run)
        refuse_error(error, opened._trained)
        path = Path(MEMORY if in_memory else adata)  # type: ignore[arg-type]
        options = {"counts": counts, "gene_key": gene_key, "orientation": orientation}
        config = data_config(opened._trained, opened.folder, path, **options)
        if is_anndata(adata):
            cells = checked_anndata(adata)
            if copy:
                cells = cells.to_memory() if cells.isbacked else cells.copy()
        else:
            cells = checked_anndata(open_source(config))
        with writing_into_views():
            say = silent if quiet else print
            annotate(cells, opened._trained, config, key_added, say, error=error, names=map, labels=labels)
        return cells
