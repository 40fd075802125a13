"""What is published agrees with pyproject.toml, as far as that can be seen without a network."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from hatchling.build import prepare_metadata_for_build_wheel
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import grn

ROOT = Path(__file__).parents[1]
PUBLISH = ROOT / "publish"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
# Of the registry's schema; project_home, documentation_home and contact need a public repository.
REQUIRED = {"name", "description", "install", "primary_category", "tags", "license", "language"}
OPTIONAL = {"tutorials_home", "publications", "logo", "test_command", "category", "inventory"}
TAGS = {  # those of its vocabulary that fit
    "scRNA-seq",
    "gene regulatory networks",
    "cell-type annotation",
    "deep learning",
    "benchmarking",
}


def read(name: str) -> dict:
    return yaml.safe_load((PUBLISH / name).read_text())


def test_the_metadata_of_the_wheel_is_valid_and_its_description_is_the_readme(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(ROOT)
    found = (tmp_path / prepare_metadata_for_build_wheel(str(tmp_path)) / "METADATA").read_bytes()
    # An index refuses what this refuses: fields that are unknown, malformed, or newer than their
    # version.
    metadata = Metadata.from_email(found, validate=True)
    assert (metadata.name, str(metadata.version), metadata.license_expression) == (
        "grn",
        grn.__version__,
        "MIT",
    )
    assert metadata.description == (ROOT / "README.md").read_text()
    assert (
        metadata.description_content_type == "text/markdown"
        and metadata.summary == PROJECT["description"]
    )
    assert len(metadata.summary) <= 512 and "LICENSE" in metadata.license_files


def test_versions_and_licences_are_the_same_everywhere():
    recipe, entry = read("recipe.yaml"), read("scverse.yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    versions = [recipe["context"]["version"], citation["version"]]
    assert set(map(str, versions)) == {grn.__version__}
    assert {recipe["about"]["license"], entry["license"], citation["license"]} == {
        PROJECT["license"]
    }
    assert recipe["about"]["summary"] == PROJECT["description"]


def test_the_entry_of_scverse_has_the_fields_and_the_tags_of_its_schema():
    entry = read("scverse.yaml")
    assert REQUIRED <= set(entry) <= REQUIRED | OPTIONAL
    assert entry["primary_category"] in entry["tags"] and set(entry["tags"]) <= TAGS
    assert len(set(entry["tags"])) == len(entry["tags"])
    assert set(entry["install"]) <= {"pypi", "conda"} and entry["install"]["pypi"] == grn.__name__
    sentences = entry["description"].strip().split(". ")
    assert len(sentences) <= 2, "one or two, as the schema says"


def test_the_recipe_has_the_dependencies_and_the_command_of_the_project():
    recipe = read("recipe.yaml")
    wanted = {f"python {PROJECT['requires-python']}"}
    for requirement in map(Requirement, PROJECT["dependencies"]):
        bounds = ",".join(sorted(map(str, requirement.specifier), reverse=True))
        wanted.add(f"{CONDA_NAMES.get(requirement.name, requirement.name)} {bounds}")
    assert set(recipe["requirements"]["run"]) == wanted
    (command,) = PROJECT["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(command)]


@pytest.mark.parametrize(
    "line", re.findall(r"^COPY (.+) \S+$", (PUBLISH / "Containerfile").read_text(), re.M)
)
def test_what_the_image_copies_exists(line):
    assert [name for name in line.split() if not (ROOT / name).exists()] == []
