from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from grn.config.files import change_config, dump_config, load_config, shipped_configs
from grn.config.schema import Config, DataConfig, ModelConfig
from grn.runtime.errors import ConfigError

SHIPPED = sorted(path.name for path in shipped_configs().glob("*.yaml"))


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "run.yaml") -> str:
    Path(name).write_text(text)
    return name


def refusal(*overrides: str, name: str = "simulated.yaml") -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        load_config(name, overrides)
    return refused.value


# Finding


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_configuration_loads_and_its_dump_reads_back_equal(name):
    config = load_config(name)
    assert config.data.path
    write(dump_config(config), "dumped.yaml")
    assert load_config("dumped.yaml") == config


def test_the_working_folder_comes_before_the_shipped_configurations():
    assert load_config("pbmc") == load_config("pbmc.yaml")
    write("data: {path: mine.h5ad}", "pbmc.yaml")
    assert load_config("pbmc").data.path == "mine.h5ad"


def test_own_data_shows_every_field_with_its_default():
    shown = yaml.safe_load((shipped_configs() / "own_data.yaml").read_text())
    defaults = Config(data=DataConfig(path=shown["data"]["path"])).model_dump()
    assert shown == defaults


# Reading


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("data:\n  path: a.h5ad\n  genes: all\n  path: b.h5ad\n", 4),
        ("data:\n  path: a.h5ad\n genes: all\n", 3),
        ("data: {path: a.h5ad}\ntrainer:\n  max_epoch: 5\n", 3),
        ("data:\n  path: x\nnetwork: {threshold: 1}\n", 3),
        ("data:\n  path: x.h5ad\nmodel:\n  key_heads: 3\n", 3),
        ("data:\n  path: x\ntrainer: none\n", 3),
        ("data:\n  path: x\n1: 3\n", 3),
        ("data: &a\n  path: x\n  simulated: *a\n", 3),
    ],
)
def test_a_mistake_in_a_file_names_its_line(text, line):
    assert str(refusal(name=write(text))).startswith(f"run.yaml, line {line}: ")


def test_an_empty_section_means_its_defaults():
    assert load_config(write("data:\n  path: a.h5ad\nmodel:\n")).model == ModelConfig()


def test_data_targets_of_earlier_runs_is_read_as_null_and_refused_otherwise():
    assert load_config(write("data: {path: a.h5ad, targets: null}")).data == DataConfig(
        path="a.h5ad"
    )
    assert "data.targets" in str(refusal(name=write("data: {path: a.h5ad, targets: layer:a}")))


def test_mistakes_have_a_sentence_each_in_the_order_of_the_file():
    text = "data:\n  pth: a\n  genes: -1\nmodle:\n  width: 2\n"
    lines = str(refusal(name=write(text))).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        f"run.yaml, line {line}" for line in (2, 3, 4)
    ]


@pytest.mark.parametrize("gene", ["NA", "nan", "no", "on", "1e5", "12:30", "2024-01-01"])
def test_gene_names_that_look_like_something_else_stay_texts(gene):
    plain = gene not in {"1e5"}  # numbers need quotes in every YAML
    config = load_config(
        write(f"data: {{path: a.h5ad, regulators: [{gene if plain else repr(gene)}]}}")
    )
    assert config.data.regulators == [gene]
    write(dump_config(config), "again.yaml")
    assert load_config("again.yaml") == config


# Overrides


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("trainer.learning_rate=1e-3", 1e-3),
        ("trainer.max_epochs=null", None),
        ("trainer.devices=auto", "auto"),
        ("data.genes=all", "all"),
        ("data.genes=500", 500),
        ("data.path=simulated:", "simulated:"),
        ("data.path=scanpy:pbmc3k", "scanpy:pbmc3k"),
        ("data.regulators=[GATA1, SPI1]", ["GATA1", "SPI1"]),
        ("data.counts=layer:counts", "layer:counts"),
        ("data.simulated.cells=30", 30),
    ],
)
def test_an_override_sets_one_field(override, value):
    field = override.partition("=")[0]
    for found in (
        load_config("simulated.yaml", [override]),
        change_config("simulated.yaml", {field: value}),
    ):
        for name in field.split("."):
            found = getattr(found, name)
        assert found == value


@pytest.mark.parametrize(
    "override",
    [
        "trainer.max_steps=many",
        "trainer.max_steps=0",
        "trainer.max_steps=true",
        "data.genes=2.5",
        "data.genes=true",
        "data.genes=[a, b]",
        "data.path=true",
        "data.values=log",
        "data.validation_fraction=1",
        "data.regulators=[GATA1, 7]",
        "network.readout=jacobin",
        "trainer.compile=1.5",
        "trainer.learning_rate=1e300",
        "trainer.learning_rate=1e400",
        "trainer.seed=4294967296",
        "trainer.devices=two",
        "trainer.max_step=5",
        "model.members=100000000",
        "model.layers=101",
        "model.penalty=0",
        "trainer=5",
    ],
)
def test_a_wrong_override_is_one_sentence_about_its_field(override):
    error = refusal(override)
    assert error.field == override.partition("=")[0]
    assert str(error).startswith(error.field) and "\n" not in str(error)


@pytest.mark.parametrize("override", ["trainer", "=1", "data.regulators=[A"])
def test_what_is_no_override_is_refused(override):
    assert str(refusal(override)).startswith(f"--set {override}")


def test_fields_that_contradict_each_other_are_refused():
    assert "query_heads" in str(refusal("model.key_heads=3"))
    assert "data.group_key" in str(refusal("data.group_key=cell_type"))


def test_a_missing_path_is_named():
    assert refusal(name=write("model: {width: 32}")).field == "data.path"


def test_a_tilde_in_a_path_is_the_home_of_the_user(monkeypatch, tmp_path):
    """Which no shell expands in a file, or after an equals sign."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.yaml").write_text("data:\n  path: ~/cells.h5ad\n  regulators: ~/tfs.txt\n")
    found = load_config(
        tmp_path / "run.yaml", ["data.genes=~/genes.txt", "network.prior=~/prior.csv"]
    )
    paths = found.data.path, found.data.regulators, found.data.genes, found.network.prior
    assert paths == tuple(
        str(tmp_path / name) for name in ("cells.h5ad", "tfs.txt", "genes.txt", "prior.csv")
    )
    assert load_config(
        tmp_path / "run.yaml", ["data.genes=5", "data.regulators=[~A]"]
    ).data.regulators == ["~A"]
