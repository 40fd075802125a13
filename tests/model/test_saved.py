"""A trained model as a folder of plain files."""

import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from grn.errors import RunFolderError
from grn.model.folder import CONTENT, FILES, hash_of
from grn.model.saved import TrainedModel

VOCABULARY = ("NA", "nan", "CD8A", "HLA-DRA", "β2M", "1", "null", "MT-ND1", "true", "a\x0bb", "a b", "C1orf112")
CLASSES = ("T/NK cell", "β", "")
MEASURES = np.arange(12) % 3 > 0
SHARE = MEASURES / MEASURES.sum()


@pytest.fixture
def trained(make_model) -> TrainedModel:
    model = make_model(dtype=torch.float32, property=True, members=2, states=3)
    return TrainedModel(
        model, VOCABULARY, CLASSES, "counts", "log1p_normalised", 1234.5, (7.25, 0.1), MEASURES, SHARE, "age"
    )


@pytest.fixture
def folder(trained, tmp_path):
    trained.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_round_trip_changes_no_bit(trained, folder, make_bags):
    loaded, bags = TrainedModel.load(folder), make_bags(dtype=torch.float32)
    before, after = trained.model(bags), loaded.model(bags)
    for name in ("multiplicity", "cell", "logits", "property"):
        assert torch.equal(getattr(before, name), getattr(after, name))
    for name in ("vocabulary", "classes", "values", "multiplicity", "target_total", "depth", "property_key", "hash"):
        assert getattr(loaded, name) == getattr(trained, name)
    assert loaded.model.config == trained.model.config
    regulation = loaded.model.regulation
    assert regulation.level_error == 0.75
    cells, states = bags.multiplicity[:, [0, 3, 5]], torch.eye(3)[[0, 1, 2, 2, 1]]
    for known in (None, states):
        assert torch.equal(regulation(cells, bags.basal, known), trained.model.regulation(cells, bags.basal, known))
    assert not any(parameter.requires_grad for parameter in regulation.parameters())
    assert np.array_equal(loaded.regulators, [0, 3, 5])
    assert np.array_equal(loaded.measures_depth, MEASURES) and loaded.measures_depth.dtype == bool
    assert np.array_equal(loaded.depth_share, SHARE)
    assert not loaded.model.training


def test_gene_names_come_back_whatever_line_ends_they_contain(trained, tmp_path):
    names = ("a\r", "a\r\n", "\n", "\r", "", "a\x85b", "a\u2028b", "a\x1cb", "a\\nb", "a\\", "\\\n", " a ")
    replace(trained, vocabulary=names).save(tmp_path / "odd")
    assert TrainedModel.load(tmp_path / "odd").vocabulary == names


def test_models_without_heads_and_normalisation_come_back(make_model, tmp_path):
    model = make_model(dtype=torch.float32, classes=0, property=False, regulators=None)
    TrainedModel(model, VOCABULARY, (), "expression", "log1p", None, None, MEASURES, SHARE).save(tmp_path / "model")
    loaded = TrainedModel.load(tmp_path / "model")
    assert (loaded.classes, loaded.target_total, loaded.depth, loaded.property_key) == ((), None, None, None)
    assert loaded.model.cell_type is None and loaded.model.property is None
    assert len(loaded.regulators) == 12 and loaded.model.regulation is None


def test_a_regulation_without_states_comes_back_without(make_model, tmp_path):
    model = make_model(dtype=torch.float32, members=2)
    TrainedModel(model, VOCABULARY, CLASSES, "counts", "log1p", None, None, MEASURES, SHARE, "age").save(tmp_path / "m")
    regulation = TrainedModel.load(tmp_path / "m").model.regulation
    assert regulation.by_state is None and regulation.level_error is None and not regulation.pooled.deviates
    assert regulation.pooled.states == 1 and regulation.pooled.members == 2


def test_a_run_folder_is_loaded_as_its_model(trained, folder):
    assert TrainedModel.load(folder.parent).hash == trained.hash


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": CLASSES[::-1]},
        {"vocabulary": VOCABULARY[::-1]},
        {"values": "expression"},
        {"multiplicity": "log1p"},
        {"target_total": 1234.6},
        {"depth": None},
        {"property_key": "dose"},
        {"cells": "0" * 32},
    ],
)
def test_everything_that_is_saved_enters_the_hash(trained, changes):
    assert replace(trained, **changes).hash != trained.hash


def test_the_hash_is_that_of_the_tensors(trained, folder):
    before = trained.hash
    assert TrainedModel.load(folder).hash == before
    with torch.no_grad():
        trained.model.norm.weight[0] += 1
    assert trained.hash != before
    assert replace(trained, measures_depth=~MEASURES).hash != trained.hash


def test_there_is_no_pickle(folder):
    """A checkpoint of torch is a zip with a pickle; other pickles begin with their protocol."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    for path in folder.iterdir():
        assert not zipfile.is_zipfile(path)
        assert not path.read_bytes().startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))


def test_saving_again_replaces_the_folder(trained, folder):
    (folder / "left over").touch()
    trained.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(RunFolderError, match=rf"model is damaged, as {name} is missing; restore it, or") as caught:
        TrainedModel.load(folder)
    assert "\n" not in str(caught.value)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(RunFolderError, match="nowhere does not exist; give a run folder or its model/"):
        TrainedModel.load(tmp_path / "nowhere")


def test_a_file_is_not_a_model(folder):
    with pytest.raises(RunFolderError, match=r"card\.json is a file, where a model is expected"):
        TrainedModel.load(folder / "card.json")


def rewrite(folder, card):
    """Writes card.json with the hash that belongs to it and to the other files, as someone who means it would."""
    content = {name: (folder / name).read_bytes() for name in CONTENT}
    (folder / "card.json").write_text(json.dumps(card | {"hash": hash_of(card, content)}))


def change_card(**values):
    def change(folder):
        card = json.loads((folder / "card.json").read_text())
        rewrite(folder, card | values)

    return change


def change_pooled(**values):
    def change(folder):
        card = json.loads((folder / "card.json").read_text())
        card["regulation"]["pooled"] |= values
        rewrite(folder, card)

    return change


def change_regulation(**values):
    def change(folder):
        card = json.loads((folder / "card.json").read_text())
        card["regulation"] |= values
        rewrite(folder, card)

    return change


def without_card_entry(name):
    def change(folder):
        card = json.loads((folder / "card.json").read_text())
        del card[name]
        (folder / "card.json").write_text(json.dumps(card))

    return change


def writing(name, content: bytes):
    def change(folder):
        card = json.loads((folder / "card.json").read_text())
        (folder / name).write_bytes(content)
        if name != "card.json":
            rewrite(folder, card)

    return change


def flip_one_bit_of_a_tensor(folder):
    whole = bytearray((folder / "model.safetensors").read_bytes())
    whole[-5] ^= 1
    (folder / "model.safetensors").write_bytes(whole)


def truncate_tensors(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def drop_a_gene(folder):
    genes = (folder / "vocabulary.txt").read_text().split("\n")
    (folder / "vocabulary.txt").write_text("\n".join(genes[1:]))


@pytest.mark.parametrize(
    "damage",
    [
        truncate_tensors,
        flip_one_bit_of_a_tensor,
        drop_a_gene,
        writing("model.safetensors", b""),
        writing("card.json", b"{"),
        writing("card.json", b"[]"),
        writing("card.json", b"\xff\xfe"),
        without_card_entry("format"),
        without_card_entry("target_total"),
        without_card_entry("hash"),
        change_card(depth=1.5),
        change_card(regulation=None),
        change_card(regulation={"members": 2}),
        change_pooled(members=3),
        change_pooled(states=2),
        change_pooled(colour="red"),
        change_regulation(by_state=None),
        change_regulation(pooled=None),
        change_card(regulation="one"),
        without_card_entry("regulation"),
        writing("config.yaml", b"width: sixteen\nlayers: x"),
        writing("config.yaml", b"width: 32"),
        writing("config.yaml", b"widht: 16"),
        writing("config.yaml", b"- 1"),
        writing("config.yaml", b"a: [\n"),
        writing("vocabulary.txt", b"\xff\xfe"),
        writing("labels.json", b"null"),
        writing("labels.json", b'["one"]'),
    ],
)
def test_damage_is_reported_in_one_sentence(folder, damage):
    damage(folder)
    with pytest.raises(RunFolderError, match=r"model is damaged.*restore it") as caught:
        TrainedModel.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_of_any_file_is_refused(folder, name):
    whole = (folder / name).read_bytes()
    for place in np.random.default_rng(0).permutation(len(whole))[:40]:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (folder / name).write_bytes(damaged)
        if name == "card.json" and same_card(damaged, whole):
            continue
        with pytest.raises(RunFolderError, match=r"restore it|was trained|version that wrote it"):
            TrainedModel.load(folder)


def same_card(one, other) -> bool:
    """Whether two texts of a card say the same, as where a blank became another one."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def reverse_labels(folder):
    labels = json.loads((folder / "labels.json").read_text())
    (folder / "labels.json").write_text(json.dumps(labels[::-1]))


def other_genes(change):
    def apply(folder):
        genes = (folder / "vocabulary.txt").read_text().split("\n")[:-1]
        (folder / "vocabulary.txt").write_text("".join(f"{gene}\n" for gene in change(genes)))

    return apply


def other_setting(name, value):
    def apply(folder):
        values = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump(values | {name: value}))

    return apply


@pytest.mark.parametrize(
    "change",
    [
        reverse_labels,
        other_genes(lambda genes: genes[::-1]),
        other_genes(lambda genes: ["X", *genes[1:]]),
        other_genes(lambda genes: [genes[1], *genes[1:]]),
        other_setting("iterations", 3),
        other_setting("dropout", 0.5),
    ],
)
def test_files_that_still_fit_but_are_not_those_that_were_written_are_refused(folder, change):
    change(folder)
    with pytest.raises(RunFolderError, match=r"the hash of its files is not the one in card\.json"):
        TrainedModel.load(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"multiplicity": "log2"},
        {"values": "count"},
        {"target_total": 0},
        {"target_total": -1.0},
        {"target_total": None},
        {"target_total": "many"},
        {"target_total": True},
        {"depth": [7.25, 0.0]},
        {"depth": [7.25]},
        {"depth": [float("nan"), 1.0]},
        {"property_key": 3},
        {"cells": 3},
        {"colour": "red"},
    ],
)
def test_a_card_that_says_what_no_run_writes_is_refused_even_with_the_right_hash(folder, values):
    change_card(**values)(folder)
    with pytest.raises(RunFolderError, match="model is damaged"):
        TrainedModel.load(folder)


def test_names_that_are_listed_twice_are_refused_even_with_the_right_hash(folder):
    other_genes(lambda genes: [genes[1], *genes[1:]])(folder)
    change_card()(folder)
    with pytest.raises(RunFolderError, match=r"vocabulary\.txt has a name twice"):
        TrainedModel.load(folder)


def test_another_format_is_named(folder):
    change_card(format=99)(folder)
    with pytest.raises(RunFolderError, match="has format 99 and this version reads 7"):
        TrainedModel.load(folder)
