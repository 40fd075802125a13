"""Real and published sets, where the folder of benchmark data is at hand (GRN_BENCHMARK_DATA)."""

import os
from pathlib import Path

import anndata
import numpy as np
import pytest

from grn.cells.load import load_cells
from grn.cells.preprocessing.recover import recovery
from grn.cells.readers.matrix import to_csr
from grn.config.schema import DataConfig
from grn.errors import DataError

FOLDER = Path(os.environ.get("GRN_BENCHMARK_DATA", ""))
pytestmark = pytest.mark.skipif("GRN_BENCHMARK_DATA" not in os.environ, reason="GRN_BENCHMARK_DATA is not set")


def test_pbmc3k_log_layer_is_refused_as_counts_and_recovers_them():
    path = str(FOLDER / "pbmc3k.h5ad")
    with pytest.raises(DataError, match=r"set data\.counts to X"):
        load_cells(DataConfig(path=path, counts="layer:lognorm"))
    adata = anndata.read_h5ad(path)
    counts, values = adata.X.toarray(), to_csr(adata.layers["lognorm"], "lognorm")
    recovered = recovery(lambda: [values], adata.obs_names, "lognorm").counts(values).toarray()
    # Among these 2000 genes a few cells may have no gene with a single count.
    single = np.array([row[row > 0].min() == 1 for row in counts])
    assert single.mean() > 0.99
    np.testing.assert_array_equal(recovered[single], counts[single])


@pytest.mark.parametrize(("name", "genes", "regulators"), [("sergio_ds1", 100, 10), ("sergio_ds2", 400, 37)])
def test_sergio(name, genes, regulators):
    path = str(FOLDER / f"{name}.h5ad")
    var = anndata.read_h5ad(path).var
    cells, _ = load_cells(DataConfig(path=path, regulators=list(map(str, var.index[var["is_regulator"]]))))
    assert (len(cells.vocabulary), cells.regulators.size) == (genes, regulators)
