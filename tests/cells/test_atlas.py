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
from grn.cells.readers.registry import source_in_file
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


def atlas_of(path, **fields):
    config = DataConfig(
        path=path, label_key="cell_type", regulators=["R1", "R2", "R3"], sample=SAMPLE, **fields
    )
    cells, split = load_cells(config, 5)
    fold = np.full(len(cells), -1)
    fold[split.train] = np.arange(len(split.train)) % 5
    membership = np.eye(3, dtype=np.float32)[cells.labels]
    return cells, split, fold, Atlas(config, cells, split, membership, fold)


def atlas_of_file(adata, path, **fields):
    adata.write_h5ad(path)
    return atlas_of(str(path), **fields)


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


def test_names_and_columns_of_obs_that_nobody_asks_for_are_not_read(path, adata):
    with source_in_file(
        DataConfig(path=path), everything=False, columns={"donor"}.__contains__
    ) as read:
        assert list(read.obs) == list(adata.obs) and set(read.obs_names) == {""}
        assert list(read.obs["donor"]) == list(adata.obs["donor"]) and not read.obs["treated"].any()


def test_columns_of_one_gene_and_entries_of_one_place_add_up(adata, tmp_path):
    """Each count is stored as two entries, in any order, and half of the counts in a second column
    of its gene.
    """
    stored, counts = adata.copy(), sparse.coo_matrix(adata.X)
    order, second = np.random.default_rng(0).permutation(2 * counts.nnz), counts.data // 2
    column = np.concatenate([counts.col, counts.col + 60])[order]
    row, data = np.tile(counts.row, 2)[order], np.concatenate([counts.data - second, second])[order]
    by_row = np.argsort(np.tile(row, 2), kind="stable")
    ends = np.append(0, np.cumsum(np.bincount(row, minlength=CELLS) * 2))
    halves = (
        np.concatenate([np.floor(data / 2), data - np.floor(data / 2)])[by_row],
        np.tile(column, 2)[by_row],
        ends,
    )
    twice = AnnData(sparse.csr_matrix(halves, shape=(CELLS, 120)), obs=stored.obs)
    twice.var_names = [*stored.var_names, *stored.var_names]
    for name, each in {"once": stored, "twice": twice}.items():
        each.write_h5ad(tmp_path / f"{name}.h5ad")
    paths = (str(tmp_path / f"{name}.h5ad") for name in ("once", "twice"))
    (cells, _, _, once), (_, _, _, other) = (atlas_of(path, duplicates="sum") for path in paths)
    rows = cells.sample[0]
    one, two = (each.table(rows, None, "cpu")[np.arange(len(rows))] for each in (once, other))
    for name in ("value", "cell", "gene", "basal", "unit"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name


def loaded_together(config, count, monkeypatch):
    """The cells, or the error, of so many processes, which are threads here."""
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
    wrong.write_h5ad(tmp_path / "cells.h5ad")
    config = DataConfig(
        path=str(tmp_path / "cells.h5ad"), label_key="cell_type", sample=SAMPLE, values=values
    )
    with pytest.raises(DataError) as alone:
        load_cells(config, 5)
    said = [str(each) for each in loaded_together(config, 3, monkeypatch)]
    assert said == [str(alone.value)] * 3 and f"in cell {adata.obs_names[1300]}" in said[0]


def test_a_matrix_that_is_stored_by_columns_gives_the_sample_alone(adata, tmp_path):
    stored = adata.copy()
    stored.X = sparse.csc_matrix(stored.X)
    stored.write_h5ad(tmp_path / "cells.h5ad")
    config = DataConfig(path=str(tmp_path / "cells.h5ad"), label_key="cell_type", sample=SAMPLE)
    cells, _ = load_cells(config, 5)
    rows = cells.sample.rows
    assert "by columns" in only_the_sample(config, cells, "labels")
    of_all, _ = load_cells(config.model_copy(update={"sample": CELLS}), 5)
    np.testing.assert_array_equal(cells.labels, of_all.labels[rows])


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
    assert len(loads) == buffers + 1 and list(atlas.held) == [
        last.buffer.tobytes(),
        last.following.tobytes(),
    ]
    for each, multiplicity in zip(requests[::7], found[::7], strict=True):
        read = atlas.table(np.sort(each.rows), None, "cpu")[
            np.searchsorted(np.sort(each.rows), each.rows)
        ]
        assert torch.equal(multiplicity, read.dense(read.value))


def test_donors_of_test_cells_are_not_trained_on_and_others_stay_in_one_fold(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    path = str(tmp_path / "cells.h5ad")
    config = DataConfig(path=path, label_key="cell_type", group_key="donor", sample=SAMPLE)
    cells, split = load_cells(config)
    fold = np.where(np.isin(np.arange(len(cells)), split.test), -1, cells.groups % 5)
    atlas = Atlas(config, cells, split, np.eye(3, dtype=np.float32)[cells.labels], fold)
    donors, rows = adata.obs["donor"].to_numpy(str), cells.sample.rows
    assert not set(donors[atlas.rows]) & set(donors[rows[split.test]])
    for donor in np.unique(donors[atlas.rows]):
        assert len(np.unique(atlas.fold[donors == donor])) == 1


def test_copies_of_test_cells_are_not_trained_on(adata, tmp_path):
    """Half of the file are copies, in another order, of the other half."""
    order = np.random.default_rng(0).permutation(CELLS)
    original = np.concatenate([np.arange(CELLS), order])
    twice = adata[original].copy()
    twice.obs_names_make_unique()
    twice.write_h5ad(tmp_path / "cells.h5ad")
    cells, split, fold, atlas = atlas_of(str(tmp_path / "cells.h5ad"))
    rows = cells.sample.rows
    assert not set(original[atlas.rows]) & set(original[rows[split.test]])
    assert len(atlas.rows) == 2 * CELLS - 2 * len(np.unique(original[rows[split.test]]))
    of_original = dict(zip(original[rows], fold, strict=True))
    known = np.isin(original, list(of_original)) & ~np.isin(np.arange(2 * CELLS), rows)
    assert known.sum() > SAMPLE / 2
    assert (atlas.fold[known] == [of_original[each] for each in original[known]]).all()


def test_a_few_copies_of_test_cells_in_the_sample_are_not_trained_on_either(adata, tmp_path):
    """So few that the split takes them for chance. Values differ beyond float32, which is what is
    compared.
    """
    changed = adata.copy()
    rows = np.sort(np.random.default_rng(5).permutation(CELLS)[:SAMPLE])
    test = atlas_of_file(changed, tmp_path / "first.h5ad")[1].test
    train = np.setdiff1d(np.arange(SAMPLE), test)
    values = changed.X.toarray().astype(np.float64)
    values[rows[train[:3]]] = values[rows[test[:3]]] * (1 + 1e-12)
    changed.X = values
    cells, split, _, atlas = atlas_of_file(changed, tmp_path / "second.h5ad", values="expression")
    assert cells.groups is None and np.array_equal(split.test, test)
    assert (
        not np.isin(rows[train[:3]], atlas.rows).any()
        and np.isin(rows[train[3:]], atlas.rows).all()
    )


def test_folds_that_divide_the_cells_of_one_donor_are_those_of_the_sample(adata, tmp_path):
    """With two donors one tests: all cells of the other, in the fold of one of them, would be
    hidden from a member.
    """
    adata.obs["donor"] = np.where(np.arange(len(adata)) % 2, "A", "B")
    adata.write_h5ad(tmp_path / "cells.h5ad")
    config = DataConfig(
        path=str(tmp_path / "cells.h5ad"), label_key="cell_type", group_key="donor", sample=SAMPLE
    )
    cells, split = load_cells(config)
    fold = np.full(len(cells), -1)
    fold[split.train] = np.arange(len(split.train)) % 5
    atlas = Atlas(config, cells, split, np.eye(3, dtype=np.float32)[cells.labels], fold)
    rows = cells.sample.rows
    np.testing.assert_array_equal(atlas.fold[rows], fold)
    assert (np.delete(atlas.fold, rows) == -1).all()


def test_states_are_those_of_cells_with_the_same_label_and_condition(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    config = DataConfig(
        path=str(tmp_path / "cells.h5ad"), label_key="cell_type", state_key="treated", sample=SAMPLE
    )
    cells, split = load_cells(config)
    own = np.eye(6, dtype=np.float32)[cells.labels * 2 + cells.state.astype(int)]
    atlas = Atlas(config, cells, split, own, np.zeros(len(cells), int))
    kind = adata.obs["cell_type"].cat.codes * 2 + (adata.obs["treated"] == "yes")
    np.testing.assert_array_equal(atlas.states[:].argmax(1), kind)
    assert not only_the_sample(config, cells, "conditions") and "states" in only_the_sample(
        config, cells, "found"
    )


def test_a_run_reads_all_cells_and_its_network_the_same_sample_again(adata, tmp_path, capsys):
    adata = adata.copy()
    outside = np.random.default_rng(0).permutation(CELLS)[SAMPLE]  # 0 is the seed
    adata.obs["cell_type"] = np.where(
        np.arange(CELLS) == outside, "rare", adata.obs["cell_type"].astype(str)
    )
    adata.write_h5ad(tmp_path / "cells.h5ad")
    fields = {
        "data.sample": SAMPLE,
        "model.members": 2,
        "trainer.max_steps": 12,
        "trainer.validate_every": 6,
    }
    fields |= {"trainer.batch_size": 256}  # that of a processor
    regulators = list(adata.var_names[:8])
    run = grn.train(
        tmp_path / "cells.h5ad",
        label="cell_type",
        regulators=regulators,
        set=fields,
        output=tmp_path / "run",
    )
    said = capsys.readouterr().out
    assert f"{SAMPLE} cells of {CELLS}" in said and "2300 cells" in said and "'rare'" in said
    options = {
        "label": "cell_type",
        "regulators": regulators,
        "set": fields | {"trainer.batch_size": 64},
    }
    grn.network(tmp_path / "cells.h5ad", **options)
    said = capsys.readouterr().out
    assert "768 of 2400 cells" in said, "nothing is held out to test"
    again = run.read_networks()
    np.testing.assert_array_equal(again.varp["grn"].toarray(), run.network.varp["grn"].toarray())
