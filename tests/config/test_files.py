from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from grn.config.fields import RENAMED, all_fields
from grn.config.files import change_config, dump_config, load_config, shipped_configs
from grn.config.schema import Config, DataConfig, ModelConfig
from grn.errors import ConfigError

SHIPPED = sorted(path.name for path in shipped_configs().glob("*.yaml"))


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "run.yaml") -> str:
    Path(name).write_text(text)
    return name


def refusal(*overrides: str, name: str = "simulated.yaml") -> str:
    with pytest.raises(ConfigError) as refused:
        load_config(name, overrides)
    return str(refused.value)


# Finding


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_configuration_loads(name):
    assert load_config(name).data.path


def test_the_working_folder_comes_before_the_shipped_configurations(working_folder):
    write("data: {path: mine.h5ad}", "pbmc.yaml")
    assert load_config("pbmc.yaml").data.path == "mine.h5ad"


def test_the_suffix_may_be_left_out():
    assert load_config("pbmc") == load_config("pbmc.yaml")


def test_a_missing_configuration_names_the_nearest():
    assert refusal(name="pbm.yaml").endswith("did you mean pbmc.yaml?")


def test_own_data_shows_every_field_with_its_default():
    shown = yaml.safe_load((shipped_configs() / "own_data.yaml").read_text())
    defaults = Config(data=DataConfig(path=shown["data"]["path"])).model_dump()
    assert shown == defaults


def test_own_data_gives_every_field_a_reason():
    """A comment stands above each field, or its section's comment covers it in `simulated`, the seeds and the sizes."""
    lines = (shipped_configs() / "own_data.yaml").read_text().splitlines()
    bare = {"genes", "regulators", "seed", "weight"}  # explained by the section's comment or by the line above
    for above, line in pairwise(lines):
        key = line.split(":")[0].strip()
        if line.startswith("  ") and not line.strip().startswith("#") and not line.endswith(":") and key not in bare:
            assert above.strip().startswith("#"), f"no reason above {line.strip()!r}"


def test_pbmc_lists_human_transcription_factors_once_each():
    regulators = load_config("pbmc.yaml").data.regulators
    assert len(regulators) == len(set(regulators)) == 33


# Reading


def test_a_key_written_twice_names_both_lines():
    write("data:\n  path: a.h5ad\n  genes: all\n  path: b.h5ad\n")
    assert refusal(name="run.yaml") == "run.yaml, line 4: data.path was already set in line 2; keep one of the two."


def test_yaml_errors_name_the_line():
    write("data:\n  path: a.h5ad\n genes: all\n")
    assert refusal(name="run.yaml").startswith("run.yaml, line 3: this is not valid YAML")


def test_a_file_elsewhere_is_named_with_its_folder(working_folder):
    """A run folder's is called config.yaml as every other run's."""
    (working_folder / "run").mkdir()
    write("data:\n  pth: x\n", name="run/config.yaml")
    assert "run/config.yaml, line 2: data.pth is not a field" in refusal(name="run/config.yaml")


def test_an_unknown_key_names_its_line_and_the_nearest_field():
    write("data: {path: a.h5ad}\ntrainer:\n  max_epoch: 5\n")
    assert refusal(name="run.yaml") == (
        "run.yaml, line 3: trainer.max_epoch is not a field; did you mean trainer.max_epochs?"
    )


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_of_a_field_is_refused_with_the_new_one(old, new):
    """In a file, on the command line and from Python; the new name is a field, the old one is none."""
    section, field = old.split(".")
    sentence = f"{old} is now called {new}; set {new} instead."
    write(f"data: {{path: a.h5ad}}\n{section}:\n  {field}: 5\n")
    assert refusal(name="run.yaml") == f"run.yaml, line 3: {sentence}"
    assert refusal(f"{old}=5") == f"--set {old}=5: {sentence}"
    with pytest.raises(ConfigError) as refused:
        change_config("simulated.yaml", {old: 5})
    assert str(refused.value) == f"set {old}=5: {sentence}"
    assert new in all_fields() and old not in all_fields()


def test_a_field_in_the_wrong_section_is_found():
    assert "did you mean trainer.max_epochs?" in refusal("max_epochs=3")


def test_a_file_without_sections_is_refused():
    write("- a\n- b\n")
    assert "holds a list where sections" in refusal(name="run.yaml")


def test_an_empty_section_means_its_defaults():
    write("data:\n  path: a.h5ad\nmodel:\n")
    assert load_config("run.yaml").model == ModelConfig()


def test_every_mistake_is_its_own_sentence():
    sentences = refusal("trainer.max_steps=0", "model.width=wide").splitlines()
    assert [sentence.split(":")[0] for sentence in sentences] == ["--set model.width=wide", "--set trainer.max_steps=0"]


@pytest.mark.parametrize("gene", ["NA", "nan", "no", "on", "1e5", "12:30", "2024-01-01"])
def test_gene_names_that_look_like_something_else_stay_texts(gene):
    plain = gene not in {"1e5"}  # numbers need quotes in every YAML
    write(f"data: {{path: a.h5ad, regulators: [{gene if plain else repr(gene)}]}}")
    config = load_config("run.yaml")
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
    found = load_config("simulated.yaml", [override])
    for name in field.split("."):
        found = getattr(found, name)
    assert found == value


def test_the_last_override_of_a_field_holds():
    assert load_config("simulated.yaml", ["trainer.seed=1", "trainer.seed=2"]).trainer.seed == 2


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.max_steps=many", "trainer.max_steps must be a whole number, not 'many'."),
        ("trainer.max_steps=0", "trainer.max_steps must be at least 1, not 0."),
        ("data.genes=2.5", "data.genes must be a whole number, not 2.5."),
        ("data.validation_fraction=1", "data.validation_fraction must be below 1, not 1."),
        ("network.readout=jacobin", "network.readout must be effect, attention, knockout or jacobian, not 'jacobin'."),
        ("trainer.max_steps=true", "trainer.max_steps must be a whole number, not true."),
        ("data.genes=true", "data.genes must be a whole number, not true."),
        ("model.eps=true", "model.eps must be a number, not true."),
        ("data.path=true", "data.path must be a text (in quotes, if it looks like something else), not true."),
        ("regulation.penalties=[10, true]", "item 2 of regulation.penalties must be a number, not true."),
        ("trainer.compile=1.5", "trainer.compile must be true or false, not 1.5."),
        ("trainer.learning_rate=1e300", "trainer.learning_rate must be at most 100, not 1e+300."),
        ("trainer.learning_rate=1e400", "trainer.learning_rate must be a finite number, not inf."),
        ("trainer.seed=4294967296", "trainer.seed must be at most 4294967295, not 4294967296."),
        ("regulation.members=100000000", "regulation.members must be at most 1000, not 100000000."),
        (
            "trainer.precision=64-true",
            "trainer.precision must be auto, 32-true, bf16-mixed or 16-mixed, not '64-true'.",
        ),
        ("trainer.devices=two", "trainer.devices must be a whole number or auto, not 'two'."),
        ("trainer=5", "trainer is a section, not 5; set its fields, for example trainer.max_epochs."),
        ("data.path.x=1", "data.path is not a section and has no fields; set it alone."),
        ("regulation.penalties=[]", "regulation.penalties must be a list that is not empty, not []."),
        ("regulation.penalties=[0]", "item 1 of regulation.penalties must be above 0, not 0."),
        ("model.width=31", "model: width 31 is not a multiple of query_heads 2; change one of them."),
        (
            "objectives.property.weight=1",
            "objectives.property.weight is above 0, but objectives.property.key names no column of obs; set the key to "
            "a numeric column, or the weight to 0.",
        ),
        (
            "data.regulators=[A",
            "this is not valid YAML (expected ',' or ']', but got '<stream end>'); close its quotes and brackets.",
        ),
    ],
)
def test_a_wrong_override_is_one_sentence_that_quotes_it(override, sentence):
    assert refusal(override) == f"--set {override}: {sentence}"


def test_a_mistake_of_several_fields_quotes_the_override_that_made_it(tmp_path):
    (tmp_path / "run.yaml").write_text("data:\n  path: x.h5ad\nmodel:\n  width: 64\n")
    with pytest.raises(ConfigError, match=r"^--set model\.width=31: model: width 31 is not"):
        load_config(tmp_path / "run.yaml", ["model.width=31", "model.hidden=9"])
    with pytest.raises(ConfigError, match=r"run\.yaml, line 3: model: width 31 is not"):
        (tmp_path / "run.yaml").write_text("data:\n  path: x.h5ad\nmodel:\n  width: 31\n")
        load_config(tmp_path / "run.yaml", ["model.hidden=9"])


def test_a_value_in_the_place_of_a_section_is_a_mistake_of_the_file_and_not_of_the_override(tmp_path):
    (tmp_path / "run.yaml").write_text("data:\n  path: x.h5ad\ntrainer: none\n")
    with pytest.raises(ConfigError, match=r"^\S+run\.yaml, line 3: trainer is a section, not 'none'; set its fields"):
        load_config(tmp_path / "run.yaml", ["trainer.max_steps=2"])


def test_a_file_that_may_not_be_read_is_a_matter_of_permissions(tmp_path, monkeypatch):
    (tmp_path / "run.yaml").write_text("data:\n  path: x.h5ad\n")

    def refuse(self, **how):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(
        ConfigError, match=r"run\.yaml cannot be read \(permission denied\); change its permissions, or"
    ):
        load_config(tmp_path / "run.yaml")


def test_overrides_that_contradict_each_other_are_both_quoted():
    with pytest.raises(ConfigError, match=r"^--set model.width=64 --set model.query_heads=3: model: width 64 is not a"):
        load_config("own_data.yaml", ["model.width=64", "model.query_heads=3"])


def test_the_read_out_effect_needs_the_regulation_layer():
    sentence = (
        "network.readout: effect reads the regulation layer, but regulation.members: 0 trains none; "
        "set regulation.members to 1 or more, or network.readout to knockout."
    )
    assert refusal("regulation.members=0") == f"--set regulation.members=0: {sentence}"
    assert load_config("simulated.yaml", ["regulation.members=0", "network.readout=knockout"]).regulation.members == 0


@pytest.mark.parametrize("without", ["data.label_key=null", "objectives.cell_type.weight=0"])
def test_a_run_needs_something_to_train_for(without):
    nothing = ("objectives.masked_multiplicity.weight=0", without)
    assert refusal(*nothing) == (
        f"--set {nothing[0]} --set {without}: there is no objective to train for: "
        "objectives.masked_multiplicity.weight and the weights of "
        "objectives.property, gene_identity and composition are 0, and cell types need "
        "objectives.cell_type.weight above 0 and data.label_key; set one of them."
    )
    load_config("simulated.yaml", [*nothing, "objectives.property.weight=1", "objectives.property.key=age"])
    load_config("simulated.yaml", nothing[:1])
    for objective in ("gene_identity", "composition"):
        load_config("simulated.yaml", [*nothing, f"objectives.{objective}.weight=1"])


def test_a_wrong_item_of_a_list_is_counted_from_one():
    assert "item 2 of data.regulators must be a text" in refusal("data.regulators=[GATA1, 7]")


def test_an_override_without_a_value_shows_how_to_write_one():
    assert "write for example --set trainer.max_epochs=5" in refusal("trainer")


def test_a_missing_path_says_how_to_set_it():
    write("model: {width: 32}")
    assert refusal(name="run.yaml").startswith("run.yaml: data.path is missing; set it in the file or with --set")


# Writing


@pytest.mark.parametrize("name", SHIPPED)
def test_a_dumped_configuration_reads_back_equal(name):
    config = load_config(name)
    write(dump_config(config), "dumped.yaml")
    assert load_config("dumped.yaml") == config


def test_a_dumped_configuration_has_every_field():
    dumped = yaml.safe_load(dump_config(load_config("pbmc.yaml")))
    for field in all_fields():
        inner = dumped
        for name in field.split("."):
            inner = inner[name]


DEEP = "is nested too deeply for a configuration"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("data:\n  path: a\x07b\n", "special characters are not allowed"),
        ("[" * 5000, DEEP),
        ("a: " * 1 + "{a: " * 2000 + "1" + "}" * 2000, DEEP),
        ("&a [*a]\n", DEEP),
        ("data: &a\n  path: x\n  simulated: *a\n", DEEP),
        (BOMB, "more than 200000 values"),
        ("data:\n  path: x\n~: 3\n", "line 3: this is not valid YAML (the key '~' is not the name of a field)"),
        ("data:\n  path: x\n  1: 3\n", "line 3: this is not valid YAML (the key '1' is not the name of a field)"),
        ("data: {path: x, genes: " + "9" * 5000 + "}", "a number has thousands of digits"),
    ],
)
def test_hostile_yaml_is_refused_in_one_sentence(text, found, tmp_path):
    (tmp_path / "hostile.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "hostile.yaml")
    assert found in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


SPACE = "put a space after the colon, as `{}`."


@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        ("data:\n  path:cells.h5ad\n  label_key: x\n", 2, SPACE.format("path: cells.h5ad")),
        ("data:\n  path: x\n  regulators:tfs.txt\ntrainer:\n", 3, SPACE.format("regulators: tfs.txt")),
        ("\ndata:\n  path:cells.h5ad\n", 2, SPACE.format("path: cells.h5ad")),
        ("data:\n  path: x\n  label_key cell_type\n\n  regulators: t\n", 3, "write each field as `name: value`."),
        ("data:\n  path: x\n  label_key cell_type\n", 3, "write each field as `name: value`."),
        ("data\n  path: x\n", 1, "indent the fields of a section alike, and put a text with a colon in quotes."),
        ("data:\n  path: x\n   label_key: y\n", 3, "alike, and put a text with a colon in quotes."),
        ("data:\n  path: a: b\n", 2, "alike, and put a text with a colon in quotes."),
    ],
)
def test_a_field_without_its_colon_or_space_is_found_in_its_own_line(text, line, advice):
    sentence = refusal(name=write(text))
    assert sentence.startswith(f"run.yaml, line {line}: ") and sentence.endswith(advice)


def test_what_is_no_file_is_named_for_what_it_is(working_folder):
    (working_folder / "folder.yaml").mkdir()
    (working_folder / "link.yaml").symlink_to("nowhere")
    for name, what in {"folder.yaml": "a folder", "link.yaml": "a link to nothing"}.items():
        assert refusal(name=name) == f"{name!r} is {what}, and a configuration is a text file (YAML); give one."


def test_an_override_without_a_name_is_refused():
    assert refusal(".=1").startswith("--set .=1 is not FIELD=VALUE")
