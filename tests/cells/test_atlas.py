"""Cells in a file of which a sample is in memory: the same values, no test cell, and a run that
reads them all.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from anndata import AnnData, settings
from scipy import sparse

import grn
from grn.cells.atlas import Atlas, only_the_sample
from grn.cells.load import load_cells
from grn.cells.loading.batches import BagMaker
from grn.cells.loading.order import EpochOrder
from grn.cells.simulated.cells import simulate
from grn.config.schema import DataConfig, SimulatedConfig
from grn.runtime.errors import DataError
from grn.runtime.processes import Processes

CELLS, SAMPLE = 2400, 1000
gpu = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
)


@pytest.fixture(scope="module")
def adata():
    adata = simulate(SimulatedConfig(cells=CELLS, genes=60, regulators=8, cell_types=3, seed=3))
    adata.obs["donor"] = [f"donor {number // 7 % 20}" for number in range(CELLS)]
    adata.obs["treated"] = np.where(np.arange(CELLS) % 5 < 2, "yes", "no")
    return adata


@pytest.fixture
def of_file(tmp_path):
    """The same of cells that are written to a file first, of which each stays open."""

    def write(adata, **fields):
        path = tmp_path / f"cells{len(list(tmp_path.iterdir()))}.h5ad"
        adata.write_h5ad(path)
        return atlas_of(path, **fields)

    return write


def of_int64(values) -> sparse.csr_matrix:
    matrix = sparse.csr_matrix(values, dtype=np.int64)
    matrix.indices = matrix.indices.astype(np.int64)
    return matrix


def dense(values) -> np.ndarray:
    return values.toarray()


FORMS = {
    "csr": sparse.csr_matrix,
    "int64": of_int64,
    "dense": dense,
    "zarr": sparse.csr_matrix,
    "zarr dense": dense,
}


@pytest.fixture(scope="module", params=FORMS)
def path(request, adata, tmp_path_factory):
    stored, form = adata.copy(), request.param
    stored.X = FORMS[form](stored.X)
    # as anndata 0.13 writes them
    stored.obs_names = stored.obs_names.astype("string" if "dense" in form else object)
    path = tmp_path_factory.mktemp("atlas") / ("cells.zarr" if "zarr" in form else "cells.h5ad")
    with settings.override(allow_write_nullable_strings=True):
        stored.write_zarr(path) if "zarr" in form else stored.write_h5ad(path, compression="gzip")
    return str(path)


def atlas_of(path, *, of_groups: bool = False, **fields):
    """The sample of a file, its split and folds (of_groups: groups stay in one), and the atlas."""
    given = {"label_key": "cell_type", "sample": SAMPLE} | fields
    config = DataConfig(path=str(path), **given)
    cells, split = load_cells(config, 5)
    fold = np.full(len(cells), -1)
    place = cells.groups[split.train] if of_groups else np.arange(len(split.train))
    fold[split.train] = place % 5
    membership = np.eye(3, dtype=np.float32)[cells.labels]
    return cells, split, fold, Atlas(config, cells, split, membership, fold)


@pytest.mark.parametrize("device", ["cpu", gpu])
def test_every_cell_is_read_as_the_sample_is(path, adata, device):
    cells, split, fold, atlas = atlas_of(path)
    rows, mark, _ = cells.sample
    assert len(mark) == CELLS and len(rows) == len(cells) == SAMPLE
    shuffled = np.random.default_rng(0).permutation(SAMPLE)
    there = atlas.table(rows, None, device)
    assert there.value.device.type == device
    own, other = BagMaker(cells).whole[shuffled], there[shuffled].to("cpu")
    for name in ("cell", "gene", "basal", "unit"):
        assert torch.equal(getattr(own, name), getattr(other, name)), name
    # the logarithms are NumPy's and torch's
    torch.testing.assert_close(own.value, other.value, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(atlas.labels[rows], cells.labels)
    np.testing.assert_array_equal(atlas.states[:], np.eye(3)[atlas.labels])
    np.testing.assert_array_equal(atlas.fold[rows], fold)
    assert not only_the_sample(atlas.config, cells, "labels") and list(cells.obs_names) == list(
        adata.obs_names[rows]
    )
    assert (
        len(atlas.rows) == CELLS - len(split.test)
        and not np.isin(rows[split.test], atlas.rows).any()
    )


def test_columns_of_one_gene_and_entries_of_one_place_add_up(adata, of_file):
    """Each count is stored in two columns of its gene, and each of these as two entries, in any
    order.
    """
    counts, generator = sparse.coo_matrix(adata.X), np.random.default_rng(0)
    parts = np.floor(counts.data * [[0.25], [0.25], [0.25], [0]])
    parts[3] = counts.data - parts.sum(0)
    order = generator.permutation(parts.size)
    column = np.add.outer([0, 0, 60, 60], counts.col).ravel()[order]
    row, data = np.tile(counts.row, 4)[order], parts.ravel()[order]
    by_row = np.argsort(row, kind="stable")
    ends = np.append(0, np.cumsum(np.bincount(row, minlength=CELLS)))
    stored = sparse.csr_matrix((data[by_row], column[by_row], ends), shape=(CELLS, 120))
    twice = AnnData(stored, obs=adata.obs)
    twice.var_names = [*adata.var_names, *adata.var_names]
    tables = []
    for each in (adata, twice):
        cells, _, _, atlas = of_file(each, duplicates="sum")
        tables.append(atlas.table(cells.sample.rows, None, "cpu")[np.arange(SAMPLE)])
    for name in ("value", "cell", "gene", "basal", "unit"):
        assert torch.equal(*(getattr(table, name) for table in tables)), name


def loaded_together(config, count, monkeypatch):
    """The cells, or the error, that each of so many processes has, which are threads here."""
    barrier, slots = Barrier(count), [None] * count

    def told(own, rank):
        slots[rank] = own
        barrier.wait(60)
        return slots

    def gather(found, own, rank):
        found[:] = told(own, rank)
        barrier.wait(60)

    def send(tensor, source, rank):
        tensor.copy_(told(tensor, rank)[source])
        barrier.wait(60)

    def load(rank):
        try:
            return load_cells(config, 5, processes=Processes(rank, count, rank))[0]
        except DataError as error:
            return error

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    monkeypatch.setattr("torch.distributed.broadcast", send)
    monkeypatch.setattr("grn.cells.load.PIECE", 256)  # of 2400 cells
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(load, range(count)))


@pytest.mark.parametrize("count", [2, 11])  # one of 11 has nothing to read
def test_processes_that_share_a_file_know_of_it_what_one_knows(path, count, monkeypatch):
    config = DataConfig(path=path, label_key="cell_type", sample=SAMPLE)
    alone, _ = load_cells(config, 5)
    for cells in loaded_together(config, count, monkeypatch):
        assert cells.digest == alone.digest and cells.notes == alone.notes
        np.testing.assert_array_equal(cells.sample.mark, alone.sample.mark)


@pytest.mark.parametrize("values", ["counts", "expression"])
def test_what_one_process_finds_wrong_all_of_them_say(adata, tmp_path, values, monkeypatch):
    wrong = adata.copy()
    wrong.X = wrong.X.toarray()
    wrong.X[1300, 7] = wrong.X[2000, 3] = -2
    path = tmp_path / "cells.h5ad"
    wrong.write_h5ad(path)
    config = DataConfig(path=str(path), label_key="cell_type", sample=SAMPLE, values=values)
    with pytest.raises(DataError, match=f"in cell {adata.obs_names[1300]}") as alone:
        load_cells(config, 5)
    said = [str(each) for each in loaded_together(config, 3, monkeypatch)]
    assert said == [str(alone.value)] * 3


def test_a_matrix_that_is_stored_by_columns_gives_the_sample_alone(adata, tmp_path):
    stored, path = adata.copy(), tmp_path / "cells.h5ad"
    stored.X = sparse.csc_matrix(stored.X)
    stored.write_h5ad(path)
    config = DataConfig(path=str(path), label_key="cell_type", sample=SAMPLE)
    cells, _ = load_cells(config, 5)
    assert "by columns" in only_the_sample(config, cells, "labels")
    of_all, _ = load_cells(config.model_copy(update={"sample": CELLS}), 5)
    np.testing.assert_array_equal(cells.labels, of_all.labels[cells.sample.rows])


def test_buffers_are_read_once_and_give_the_same_cells(path, monkeypatch):
    monkeypatch.setattr("grn.cells.loading.order.BUFFER", 512)
    _, _, _, atlas = atlas_of(path)
    loads, load = [], atlas._load
    monkeypatch.setattr(
        atlas, "_load", lambda rows, device: loads.append(len(rows)) or load(rows, device)
    )
    order, maker = EpochOrder(atlas.rows, 50, 0, buffered=True), BagMaker(atlas)
    requests = list(order)
    order.epoch = 1
    requests += list(order)
    found = [maker[each].bags.multiplicity for each in requests]
    buffers = len({id(each.buffer) for each in requests})
    assert sum(loads) == 50 * len(requests) and len(loads) == buffers
    last = requests[-1]
    # beside a GPU, the next buffer is read meanwhile, here that of the pass to come
    for _ in range(2):
        atlas.table(last.buffer, last.following, "cpu")
        atlas.held[last.following.tobytes()].result()
    assert len(loads) == buffers + 1
    for each, multiplicity in zip(requests[::7], found[::7], strict=True):
        rows = np.sort(each.rows)
        read = atlas.table(rows, None, "cpu")[np.searchsorted(rows, each.rows)]
        assert torch.equal(multiplicity, read.dense(read.value))


def test_donors_of_test_cells_are_not_trained_on_and_others_stay_in_one_fold(adata, of_file):
    cells, split, _, atlas = of_file(adata, group_key="donor", of_groups=True)
    donors, rows = adata.obs["donor"].to_numpy(str), cells.sample.rows
    assert not set(donors[atlas.rows]) & set(donors[rows[split.test]])
    for donor in np.unique(donors[atlas.rows]):
        assert len(np.unique(atlas.fold[donors == donor])) == 1


def test_copies_of_test_cells_are_not_trained_on(adata, of_file):
    """Half of the file are copies, in another order, of the other half."""
    order = np.random.default_rng(0).permutation(CELLS)
    original = np.concatenate([np.arange(CELLS), order])
    twice = adata[original].copy()
    twice.obs_names_make_unique()
    cells, split, fold, atlas = of_file(twice)
    rows = cells.sample.rows
    tests = np.isin(original, original[rows[split.test]])
    np.testing.assert_array_equal(atlas.rows, np.flatnonzero(~tests))
    of_original = dict(zip(original[rows], fold, strict=True))
    known = np.isin(original, list(of_original)) & ~np.isin(np.arange(2 * CELLS), rows)
    assert known.sum() > SAMPLE / 2
    assert (atlas.fold[known] == [of_original[each] for each in original[known]]).all()


def test_a_few_copies_of_test_cells_in_the_sample_are_not_trained_on_either(adata, of_file):
    """So few that the split takes them for chance. Values differ beyond float32, which is what is
    compared.
    """
    cells, split, _, _ = of_file(adata)
    rows, copies = cells.sample.rows, split.train[:3]
    changed = adata.copy()
    changed.X = changed.X.toarray().astype(np.float64)
    changed.X[rows[copies]] = changed.X[rows[split.test[:3]]] * (1 + 1e-12)
    cells, again, _, atlas = of_file(changed, values="expression")
    assert cells.groups is None and np.array_equal(again.test, split.test)
    assert not np.isin(rows[copies], atlas.rows).any()
    assert np.isin(rows[split.train[3:]], atlas.rows).all()


def test_folds_that_divide_the_cells_of_one_donor_are_those_of_the_sample(adata, of_file):
    """With two donors one tests: all cells of the other, in the fold of one of them, would be
    hidden from a member.
    """
    adata = adata.copy()
    adata.obs["donor"] = np.where(np.arange(CELLS) % 2, "A", "B")
    cells, _, fold, atlas = of_file(adata, group_key="donor")
    rows = cells.sample.rows
    np.testing.assert_array_equal(atlas.fold[rows], fold)
    assert (np.delete(atlas.fold, rows) == -1).all()


def test_states_are_those_of_cells_with_the_same_label_and_condition(adata, of_file):
    cells, split, fold, atlas = of_file(adata, state_key="treated")
    own = np.eye(6, dtype=np.float32)[cells.labels * 2 + cells.state.astype(int)]
    states = Atlas(atlas.config, cells, split, own, fold).states
    kind = adata.obs["cell_type"].cat.codes * 2 + (adata.obs["treated"] == "yes")
    np.testing.assert_array_equal(states[:].argmax(1), kind)
    assert not only_the_sample(atlas.config, cells, "conditions")
    assert "states" in only_the_sample(atlas.config, cells, "found")


def test_a_run_reads_all_cells_and_its_network_the_same_sample_again(adata, tmp_path, capsys):
    adata, path = adata.copy(), tmp_path / "cells.h5ad"
    types = adata.obs["cell_type"].astype(str)
    types.iloc[np.random.default_rng(0).permutation(CELLS)[SAMPLE]] = "rare"  # not in the sample
    adata.obs["cell_type"] = types
    adata.write_h5ad(path)
    fields = {"data.sample": SAMPLE, "model.members": 2, "trainer.batch_size": 256}
    fields |= {"trainer.max_steps": 12, "trainer.validate_every": 6}
    options = {"label": "cell_type", "regulators": list(adata.var_names[:8])}
    run = grn.train(path, **options, set=fields, output=tmp_path / "run")
    said = capsys.readouterr().out
    assert f"{SAMPLE} cells of {CELLS}" in said and "2300 cells" in said and "'rare'" in said
    grn.network(path, **options, set=fields | {"trainer.batch_size": 64})
    assert "768 of 2400 cells" in capsys.readouterr().out, "nothing is held out to test"
    again = run.read_networks()
    np.testing.assert_array_equal(again.varp["grn"].toarray(), run.network.varp["grn"].toarray())
