"""A trained model as a folder of plain files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load, save

from grn.model.folder import CONTENT, WEIGHTS, hash_of, packed, unpacked
from grn.model.saved import TrainedModel, packed_parameters, round_as_saved, unpacked_parameters
from grn.runtime.errors import RunFolderError

VOCABULARY = (
    "NA",
    "nan",
    "CD8A",
    "HLA-DRA",
    "β2M",
    "1",
    "null",
    "MT-ND1",
    "true",
    "a\x0bb",
    "a b",
    "C1orf112",
)
CLASSES = ("T/NK cell", "β", "")
MEASURES = np.arange(12) % 3 > 0
SHARE = MEASURES / MEASURES.sum()


@pytest.fixture
def trained(make_model) -> TrainedModel:
    model = make_model(dtype=torch.float32, members=2, states=3)
    round_as_saved(model)
    return TrainedModel(
        model,
        VOCABULARY,
        CLASSES,
        "counts",
        "log1p_normalised",
        1234.5,
        (7.25, 0.1),
        MEASURES,
        SHARE,
    )


@pytest.fixture
def folder(trained, tmp_path):
    trained.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_round_trip_changes_no_bit(trained, folder, make_bags):
    loaded, bags = TrainedModel.load(folder), make_bags(dtype=torch.float32, states=3)
    before, after = trained.model(bags), loaded.model(bags)
    for name in ("multiplicity", "cell", "logits"):
        assert torch.equal(getattr(before, name), getattr(after, name))
    known = ("vocabulary", "classes", "values", "multiplicity", "target_total", "depth", "hash")
    for name in known:
        assert getattr(loaded, name) == getattr(trained, name)
    for name in ("regulators", "measures_depth", "depth_share"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(trained, name), strict=True)
    model, own = loaded.model, trained.model
    assert model.config == own.config and len(model.share) == 3 and not model.training
    assert model.identity.threshold(0.5) == own.identity.threshold(0.5)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@given(
    arrays(np.int32, 2**16, elements=st.integers(-999, 999)),
    st.sampled_from([1e-6, 1 / 128, 1.0, 1e6]),
)
def test_large_tables_are_whole_multiples_of_a_step_rounded_once(numbers, scale):
    """To 1/64 of their row's largest number; rounding again changes nothing, and the file holds
    just that.
    """
    of_rows = np.array([1.0, 1e-3, 1e-36, 0.0]).repeat(16)[:, None]
    values = torch.from_numpy((numbers.reshape(64, 2**10) * scale * of_rows).astype(np.float32))
    table = torch.nn.Linear(2**10, 64, bias=False)
    table.weight.data.copy_(values)
    round_as_saved(table)
    rounded = table.weight.detach().clone()
    assert ((rounded - values).abs() <= values.abs().amax(1, keepdim=True) / 64 + 1e-30).all()
    kept = packed_parameters(table.named_parameters())
    assert kept["weight"].dtype == torch.int8 and kept["weight"].abs().max() <= 127
    file = save(packed({name: tensor.numpy() for name, tensor in kept.items()}))
    read = {name: torch.from_numpy(each.copy()) for name, each in unpacked(load(file)).items()}
    assert torch.equal(unpacked_parameters(read)["weight"], rounded)
    round_as_saved(table)
    assert torch.equal(table.weight, rounded)


def test_gene_names_come_back_whatever_line_ends_they_contain(trained, tmp_path):
    odd = ("a\r", "a\r\n", "\n", "\r", "", "a\x85b", "a\u2028b", "a\x1cb", "a\\nb", "\\\n")
    names = (*odd, "a\\", " a ")
    replace(trained, vocabulary=names).save(tmp_path / "odd")
    assert TrainedModel.load(tmp_path / "odd").vocabulary == names


def test_models_without_heads_and_normalisation_come_back(make_model, tmp_path):
    model = make_model(dtype=torch.float32, classes=0, regulators=None, genes_train=False)
    TrainedModel(model, VOCABULARY, (), "expression", "log1p", None, None, MEASURES, SHARE).save(
        tmp_path / "model"
    )
    loaded = TrainedModel.load(tmp_path / "model")
    assert (loaded.classes, loaded.target_total, loaded.depth) == ((), None, None)
    assert loaded.model.classes == 0
    assert len(loaded.regulators) == 12 and not loaded.model.genes_train


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": CLASSES[::-1]},
        {"vocabulary": VOCABULARY[::-1]},
        {"values": "expression"},
        {"multiplicity": "log1p"},
        {"target_total": 1234.6},
        {"depth": None},
        {"measures_depth": ~MEASURES},
        {"cells": "0" * 32},
    ],
)
def test_everything_that_is_saved_enters_the_hash(trained, changes):
    before = trained.hash
    assert replace(trained, **changes).hash != before
    trained.model.blocks[0].bias.data[0] += 1
    assert trained.hash != before


def rewrite(folder, name: str, content: bytes) -> None:
    """Write a file of the folder, and the hash that belongs to it into the card, as someone who
    means it would.
    """
    (folder / name).write_bytes(content)
    card = json.loads((folder / "card.json").read_text())
    files = {each: (folder / each).read_bytes() for each in CONTENT}
    own = hash_of(card, files, unpacked(load(files[WEIGHTS])))
    (folder / "card.json").write_text(json.dumps(card | {"hash": own}))


def with_a_card(**values):
    def change(folder):
        card = json.loads((folder / "card.json").read_text()) | values
        rewrite(folder, "card.json", json.dumps(card).encode())

    return change


def with_a_weight(value: float):
    """Such a model would label every cell alike, with the confidence NaN."""

    def change(folder):
        tensors = load((folder / WEIGHTS).read_bytes())
        tensors["basal.output"][0, 3] = value
        rewrite(folder, WEIGHTS, save(tensors))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "labels.json").unlink(),
        lambda folder: (folder / WEIGHTS).write_bytes(b""),
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-99]),
        lambda folder: (folder / "card.json").write_bytes(b"{"),
        lambda folder: (folder / "card.json").write_bytes(b'{"format": 9}'),
        with_a_card(identity=None),
        with_a_card(states=2),
        with_a_card(format=99),
        with_a_card(format=7),  # of the three models that this one replaced
        lambda folder: rewrite(folder, "config.yaml", b"width: sixteen\nlayers: x"),
        lambda folder: rewrite(folder, "config.yaml", b"width: 32"),
        lambda folder: rewrite(folder, "config.yaml", b"widht: 16"),
        lambda folder: rewrite(folder, "labels.json", b'["one"]'),
        with_a_weight(float("nan")),
        with_a_weight(float("inf")),
    ],
)
def test_damage_is_reported_in_one_sentence(folder, damage):
    damage(folder)
    with pytest.raises(RunFolderError) as caught:
        TrainedModel.load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_a_path_without_a_model_is_named(folder):
    for path in (folder / "nowhere", folder / "card.json"):
        with pytest.raises(RunFolderError, match=path.name):
            TrainedModel.load(path)
