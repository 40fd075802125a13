"""From counts to multiplicities: depth, transforms, and the noise of counting."""

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from grn.cells.load import cells_in_pieces, load_cells
from grn.cells.preprocessing.multiplicity import (
    FEWEST,
    LEAST,
    basal_multiplicity,
    counting_of,
    depth_scale,
    detected,
    measures_depth,
    median_total,
    to_multiplicity,
    totals,
    zeros_reflect_depth,
)
from grn.cells.readers.registry import open_source
from grn.config.files import load_config
from grn.config.schema import DataConfig
from grn.features.predict.predictions import data_config
from grn.model.saved import TrainedModel

COUNTS = sparse.csr_matrix(np.array([[1.0, 3, 0], [0, 0, 8], [0, 0, 0]], np.float32))
TOTALS = np.array([4.0, 8, 0])


@pytest.mark.parametrize(
    ("transform", "totals", "expected"),
    [
        ("counts", TOTALS, COUNTS.toarray()),
        ("log1p", TOTALS, np.log1p(COUNTS.toarray())),
        ("log1p_normalised", TOTALS, np.log1p([[1.5, 4.5, 0], [0, 0, 6], [0, 0, 0]])),
        ("log1p_normalised", np.array([1.0, 8, 0]), np.log1p([[6, 18, 0], [0, 0, 6], [0, 0, 0]])),
    ],
)
def test_each_transform_keeps_zeros_and_leaves_the_counts_as_they_were(transform, totals, expected):
    """Totals may leave out genes, which are scaled, too:
    the sum of a cell may be above the target.
    """
    before = COUNTS.copy()
    found = to_multiplicity(COUNTS, transform, totals, 6.0)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
    assert found.dtype == np.float32 and found.nnz == COUNTS.nnz
    np.testing.assert_array_equal(COUNTS.toarray(), before.toarray())
    assert median_total(TOTALS) == 6.0, "of the cells that have counts"


@pytest.mark.parametrize(
    ("regulators", "measured"),
    [
        (None, [1, 1, 1]),
        ([2], [1, 1, 0]),
        ([0], [0, 1, 1]),
        ([0, 2], [1, 1, 1]),
        ([1, 2], [1, 0, 0]),
    ],
)
def test_regulators_are_left_out_where_the_others_hold_half_of_the_counts(regulators, measured):
    counts = sparse.csr_matrix([[4, 0, 1], [1, 2, 2.0]])  # 5, 2 and 3 counts of a gene
    found = measures_depth(counts, None if regulators is None else np.array(regulators))
    assert found.dtype == bool and found.tolist() == [bool(gene) for gene in measured]


def test_the_basal_multiplicity_is_one_at_the_mean_depth_and_never_below_its_minimum():
    total = np.array([30.0, 40, 50, 0])
    mean, sd = scale = depth_scale(total[:3])
    found = basal_multiplicity(total, scale)
    np.testing.assert_allclose(found[1:3], 1 + 0.5 * (np.log1p(total[1:3]) - mean) / sd, rtol=1e-6)
    assert found[0] == found[3] == LEAST and found.dtype == np.float32
    assert basal_multiplicity(np.expm1([mean]), scale) == pytest.approx(1)
    assert depth_scale(np.full(3, 7.0)) is None
    assert (basal_multiplicity(total, None) == 1).all()


def log_normalised(genes, seed=0, cells=60):
    """Counts of cells of different depths, each divided by its total."""
    generator = np.random.default_rng(seed)
    counts = generator.poisson(generator.uniform(0.2, 2, (cells, 1)), (cells, genes))
    return np.log1p(100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)).astype(np.float32)


def test_the_depth_of_values_that_are_not_counts_is_estimated_from_their_zeros(load):
    values = log_normalised(FEWEST + 3)
    regulators = ["gene0", "gene1", "gene2"]
    config = {"values": "expression", "genes": "all", "regulators": regulators}
    cells, split = load(AnnData(values, var=named(values)), **config)
    seen = (values[:, 3:] > 0).sum(1)
    assert np.array_equal(totals(detected(sparse.csr_matrix(values)), cells.measures_depth), seen)
    assert cells.depth == depth_scale(seen[split.train])
    np.testing.assert_array_equal(cells.basal, basal_multiplicity(seen, cells.depth))
    np.testing.assert_array_equal(cells.multiplicity.toarray(), values)
    assert np.corrcoef(cells.basal, seen)[0, 1] > 0.9
    known = ("regulators", "depth", "measures_depth")
    model = {name: getattr(cells, name) for name in known}
    new, config = AnnData(values[:10], var=named(values)), DataConfig(path="new.h5ad", **config)
    again = next(cells_in_pieces(new, config, cells.vocabulary, **model).pieces())
    np.testing.assert_array_equal(again.basal, cells.basal[:10])


def test_zeros_reflect_depth_where_cells_differ_by_more_than_independent_zeros_would():
    generator = np.random.default_rng(0)
    alike, unlike = (
        sparse.csr_matrix(generator.random((500, 80)) < rate, dtype=np.float32)
        for rate in (generator.uniform(0.2, 0.99, shape) for shape in (80, (500, 1)))
    )
    all_genes = np.ones(80, bool)
    assert not zeros_reflect_depth(alike, all_genes) and zeros_reflect_depth(unlike, all_genes)
    assert not zeros_reflect_depth(unlike, np.arange(80) < FEWEST - 1)


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        (log_normalised(FEWEST - 1), {"values": "expression"}),
        (log_normalised(FEWEST) + 1, {"values": "expression"}),
        (log_normalised(FEWEST + 3), {"values": "expression", "depth": "none"}),
        (np.rint(log_normalised(FEWEST + 3)), {"depth": "none", "multiplicity": "log1p"}),
    ],
    ids=["few genes", "no zeros", "expression", "counts"],
)
def test_cells_without_depth_have_the_same_basal_multiplicity(load, values, fields):
    cells, _ = load(AnnData(values, var=named(values)), genes="all", **fields)
    assert cells.depth is None and (cells.basal == 1).all()


def named(values):
    return pd.DataFrame(index=[f"gene{number}" for number in range(values.shape[1])])


def test_the_depth_of_a_cell_does_not_change_when_a_regulator_s_count_does(adata, load):
    """Neither does the multiplicity of any other gene, nor anything that is estimated."""
    regulators = ["gene2", "gene5"]
    config = {"genes": "all", "regulators": regulators, "multiplicity": "log1p_normalised"}
    before, split = load(adata, **config)
    measured = np.array(before.vocabulary)[before.measures_depth]
    assert set(before.vocabulary) - {*measured} == {*regulators}
    counts = adata.X.toarray()
    counts[split.train[:5], 2] += 3
    counts[split.test[:3], 5] += 7
    adata.X = sparse.csr_matrix(counts)
    after, _ = load(adata, **config)
    for name in ("basal", "measures_depth", "target_total", "depth"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    others = before.measures_depth
    np.testing.assert_array_equal(
        after.multiplicity[:, others].toarray(), before.multiplicity[:, others].toarray()
    )
    assert (after.multiplicity != before.multiplicity).nnz == 8


@pytest.fixture
def new_cells(tiny_run):
    """A trained model, its cells, their source, and how others become cells for the model."""
    trained, run = TrainedModel.load(tiny_run), load_config(tiny_run / "config.yaml").data
    config = data_config(trained, tiny_run, tiny_run)
    known = ("regulators", "target_total", "depth", "measures_depth")
    model = {name: getattr(trained, name) for name in known}

    def read(adata, share=None):
        pieces = cells_in_pieces(adata, config, trained.vocabulary, share_of_depth=share, **model)
        return next(pieces.pieces())

    return trained, load_cells(run)[0], open_source(run), read


def test_new_cells_have_their_depth_over_the_genes_of_the_training(new_cells):
    """The new data have far larger counts of the regulators than the data of the training."""
    trained, cells, adata, read = new_cells
    assert np.array_equal(trained.measures_depth, cells.measures_depth)
    assert np.flatnonzero(~trained.measures_depth).tolist() == trained.regulators.tolist()
    counts = adata.X.toarray()
    counts[:, np.isin(adata.var_names, np.array(trained.vocabulary)[trained.regulators])] += 100
    adata.X = sparse.csr_matrix(counts)
    np.testing.assert_array_equal(read(adata).basal, cells.basal)
    assert np.ptp(cells.basal) > 0.5


def test_cells_that_lack_genes_have_the_depth_that_they_would_have_with_them(new_cells):
    """A quarter of the genes, with a third of the counts or more, is missing; the others keep their
    multiplicities.
    """
    trained, cells, adata, read = new_cells
    rank = np.argsort(-np.asarray(adata.X.sum(0)).ravel())
    regulators = np.isin(adata.var_names, np.array(trained.vocabulary)[trained.regulators])
    gone = [gene for gene in rank if not regulators[gene]][: adata.n_vars // 4]
    lost = trained.depth_share[np.isin(trained.vocabulary, adata.var_names[gone])].sum()
    assert lost > 0.3
    fewer = adata[:, [gene for gene in range(adata.n_vars) if gene not in gone]].copy()
    corrected, plain = read(fewer, trained.depth_share), read(fewer)
    there = np.isin(trained.vocabulary, fewer.var_names)
    multiplicity, basal = (
        [abs(of(each) - of(cells)).mean() for each in (corrected, plain)]
        for of in (lambda each: each.multiplicity[:, there], lambda each: each.basal)
    )
    assert multiplicity[0] < 0.3 * multiplicity[1] and basal[0] < 0.5 * basal[1]
    assert f"They held {lost:.0%} of the training cells' depth" in corrected.notes[0]


@pytest.mark.parametrize("transform", ["counts", "log1p", "log1p_normalised"])
@pytest.mark.parametrize("mean", [0.1, 1.0, 8.0])
def test_the_noise_of_counting_is_the_variance_of_repeated_counts(transform, mean):
    """At most by a sixth more (a function that is not linear), and never less than by chance."""
    draws = 200_000
    counts = sparse.csr_matrix(
        np.random.default_rng(0).poisson(mean, (draws, 1)).astype(np.float32)
    )
    arguments = (transform, np.repeat([500.0, 1000], draws // 2), 1000.0)  # cells of two sizes
    multiplicity = to_multiplicity(counts, *arguments)
    found = counting_of(*arguments).variance(multiplicity).toarray()
    for size in np.split(np.arange(draws), 2):
        assert 0.98 < found[size].mean() / multiplicity.toarray()[size].var() < 1.17
