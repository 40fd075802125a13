"""The fit of the cell reader: folds, members that judge, probabilities that mean something, types that are found."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import sparse

import grn
from grn.cells.load import load_cells
from grn.cells.preprocessing.moments import mean_and_sd
from grn.cells.preprocessing.multiplicity import basal_multiplicity, counting_of, depth_scale, to_multiplicity
from grn.cells.simulated import simulate
from grn.config.schema import Config
from grn.errors import ConfigError
from grn.model.cell_reader import CellReader, ReaderShape
from grn.model.folder import hash_of
from grn.model.saved import TrainedModel
from grn.training.reader_fit import (
    FOLDS,
    ReaderCells,
    ReaderSettings,
    fit_reader,
    folds_of,
    kind_importance,
    train_members,
)
from grn.training.run import train
from grn.training.thinning import Thinning


def test_folds_are_stratified_and_leave_out_cells_without_label_and_single_ones():
    labels = np.repeat([0, 1, 2, -1], [80, 16, 1, 20])
    folds = folds_of(labels, None, 0)
    assert (folds[labels == -1] == -1).all() and (folds[labels == 2] == -1).all()
    for label, cells in ((0, 10), (1, 2)):
        assert np.bincount(folds[labels == label]).tolist() == [cells] * FOLDS


def test_cells_of_a_group_are_in_one_fold():
    groups = np.repeat(np.arange(10), 6)
    folds = folds_of(np.tile([0, 1, -1], 20), groups, 0)
    for group in range(10):
        assert len(np.unique(folds[(groups == group) & (folds >= 0)])) == 1
    assert (folds == -1).sum() == 20


def test_a_member_that_judges_cells_has_seen_neither_their_labels_nor_their_genes(make_config):
    """A member that had learned the genes of held-out cells was .08 surer of new cells than right."""
    config = make_config().model_copy(update={"cell_reader": ReaderSettings(members=4, batch_size=30)})
    generator = torch.Generator().manual_seed(0)
    x, labels, fold = torch.rand(30, 12, generator=generator), torch.arange(30) % 3, torch.arange(30) % FOLDS
    heads = []
    for change in (0.0, 1.0):
        changed = x + change * torch.rand(30, 12, generator=torch.Generator().manual_seed(1)) * (fold == 0)[:, None]
        read = ReaderCells(sparse.csr_matrix(changed.numpy()), torch.ones(30), labels, fold, None)
        torch.manual_seed(0)
        reader = CellReader(12, 3, ReaderShape(4, 1, 4, 3, 6, 7, 4))
        predict = torch.nn.Parameter(torch.zeros(4, 6, 12))
        heads.append(train_members(config, reader, predict, read, 5, 0.01)[0].head)
    same = [bool(torch.equal(*pair)) for pair in zip(*heads, strict=True)]
    assert same == [True, True, False, False], "fold 0 is held out from members 0 and 1"


def test_the_kind_that_held_out_cells_agree_with_counts_for_more():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (400,), generator=generator)
    knows = (2 * torch.nn.functional.one_hot(labels, 3) + torch.randn(400, 3, generator=generator)).log_softmax(-1)
    guesses = torch.randn(400, 3, generator=generator).log_softmax(-1)
    found = kind_importance(torch.stack([knows, guesses]), labels)
    assert found[0] > 5 * found[1]
    nothing = kind_importance(torch.empty(2, 0, 3), torch.empty(0, dtype=torch.int64))
    assert nothing.tolist() == [0.5, 0.5]


@pytest.fixture(scope="module")
def typed(make_config):
    """Cells of four types, of which a fifth have no label and thirty are for the test, and the fitted reader."""
    found = make_config(max_steps=60).model_dump()
    found["data"]["simulated"] |= {"cells": 300, "cell_types": 4, "genes": 30}
    found["data"]["test_fraction"] = 0.4
    found["cell_reader"] = ReaderSettings(members=4, width=8, rank=8, summary=16)
    config = Config.model_validate(found)
    adata = simulate(config.data.simulated)
    truth = adata.obs["cell_type"].astype(str).to_numpy()
    adata.obs["cell_type"] = np.where(np.arange(300) % 5 == 0, None, truth)
    cells, split = load_cells(config.data, None, 0, adata)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    said: list[str] = []
    reader = fit_reader(config, cells, split, mean, sd, 4, said.append)
    return config, cells, split, reader, truth, said


def test_types_of_cells_that_were_not_seen_are_found(typed):
    _, cells, split, reader, truth, said = typed
    x = torch.from_numpy(cells.multiplicity[split.test].toarray())
    with torch.no_grad():
        cell, logits = reader(x, torch.from_numpy(cells.basal[split.test]))
    named = np.array(cells.classes)[logits.argmax(-1).numpy()]
    assert (named == truth[split.test]).mean() > 0.5, "four types, so that guessing finds a quarter"
    assert cell.shape == (len(split.test), 16)
    assert reader.right.float().mean() > 0.4 and "cells that they had not seen" in said[-1]
    assert not any(parameter.requires_grad for parameter in reader.parameters())


def test_labels_of_test_cells_are_never_read(typed):
    config, cells, split, reader, _, _ = typed
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    other = cells.labels.copy()
    other[split.test] = 0
    changed = type(cells)(**(vars(cells) | {"labels": other}))
    again = fit_reader(config, changed, split, mean, sd, 4, lambda line: None)
    for name, tensor in reader.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_run_predicts_with_the_reader_that_its_metrics_are_of(typed, tmp_path):
    config = typed[0]
    adata = simulate(config.data.simulated)
    quick = config.model_dump()
    quick["trainer"]["max_steps"] = 6
    quick["regulation"]["members"], quick["network"]["readout"] = 0, "attention"
    result = train(Config.model_validate(quick), tmp_path / "run", adata=adata, say=lambda line: None)
    found = grn.predict(adata, tmp_path / "run", copy=True, quiet=True)
    own = load_cells(config.data, None, 0, adata)[1].test
    right = found.obs["grn_cell_type"].to_numpy().astype(str)[own] == adata.obs["cell_type"].to_numpy()[own].astype(str)
    assert result.metrics["accuracy"] == pytest.approx(right.mean())
    assert np.allclose(found.obsm["grn_probabilities"].sum(1), 1, atol=1e-5)

    strict = grn.predict(adata, tmp_path / "run", error=0.3, copy=True, quiet=True)
    threshold = strict.uns["grn"]["threshold"]
    assert threshold == result.trained.model.reader.threshold(0.3)
    unsure = found.obs["grn_cell_type_confidence"].to_numpy() < threshold
    assert ((strict.obs["grn_cell_type"] == "unassigned").to_numpy() == unsure).all()
    same = strict.obs["grn_cell_type"].astype(str) == found.obs["grn_cell_type"].astype(str)
    assert same[~unsure].all()


def test_a_folder_of_the_format_before_the_reader_is_still_read(make_config, tmp_path):
    config = make_config().model_dump()
    config["cell_reader"]["members"] = 0
    trained = train(Config.model_validate(config), tmp_path / "run", say=lambda line: None).trained
    folder = (tmp_path / "run" / "model").rename(tmp_path / "model")  # apart from tables that hold its hash
    card = json.loads((folder / "card.json").read_text())
    del card["reader"]
    card["format"] = 6
    names = ("config.yaml", "vocabulary.txt", "labels.json", "model.safetensors")
    card["hash"] = hash_of(card, {name: (folder / name).read_bytes() for name in names})
    (folder / "card.json").write_text(json.dumps(card))
    assert TrainedModel.load(folder).classes == trained.classes
    with pytest.raises(ConfigError, match="cell reader"):
        grn.predict(simulate(make_config().data.simulated), folder, error=0.1, quiet=True)


CELLS, GENES, TARGET = 40, 200, 500.0


@pytest.mark.parametrize("transform", ["counts", "log1p", "log1p_normalised"])
def test_a_thinned_cell_is_what_its_fewer_counts_give(transform):
    counts = sparse.csr_matrix(np.random.default_rng(0).poisson(3.0, (CELLS, GENES)).astype(np.float32))
    total = np.asarray(counts.sum(1)).ravel()
    scale = depth_scale(total)
    unit = counting_of(transform, total, TARGET).unit
    thinning = Thinning(
        None if unit is None else torch.from_numpy(unit).float(), transform == "log1p_normalised", scale[1]
    )
    x = torch.from_numpy(to_multiplicity(counts, transform, total, TARGET).toarray())
    basal = torch.from_numpy(basal_multiplicity(total, scale))
    share = torch.full((CELLS,), 0.5)
    share[0] = 1
    thin, lower = thinning.thinned(x, basal, torch.arange(CELLS), share, torch.Generator().manual_seed(0))

    assert torch.equal(thin[0], x[0]) and lower[0] == basal[0], "a share of 1 leaves the cell as it was"
    # What the thinned multiplicities say the counts are, at half of the cell's total.
    if transform == "counts":
        found = thin
    else:
        half = counting_of(transform, total / 2, TARGET).unit
        found = torch.expm1(thin.double()) / torch.from_numpy(half)[:, None]
    found, all_counts = found[1:], torch.from_numpy(counts.toarray())[1:]
    assert torch.allclose(found, found.round().to(found.dtype), atol=1e-3) and (found <= all_counts + 1e-3).all()
    assert float(found.sum() / all_counts.sum()) == pytest.approx(0.5, abs=0.02)
    assert torch.allclose(lower[1:], torch.from_numpy(basal_multiplicity(total[1:] / 2, scale)), atol=0.01)
