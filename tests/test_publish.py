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


def read(name: str) -> dict:
    return yaml.safe_load((PUBLISH / name).read_text())


def test_the_metadata_of_the_wheel_is_valid_and_its_description_is_the_readme(
    monkeypatch, tmp_path
):
    """An index refuses what this refuses: fields that are unknown, malformed, or newer than their
    version.
    """
    monkeypatch.chdir(ROOT)
    found = tmp_path / prepare_metadata_for_build_wheel(str(tmp_path)) / "METADATA"
    metadata = Metadata.from_email(found.read_bytes(), validate=True)
    assert (metadata.name, str(metadata.version)) == ("grn", grn.__version__)
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.description_content_type == "text/markdown"
    required = [each for each in metadata.requires_dist if "extra" not in str(each.marker)]
    assert required and "triton" not in {each.name for each in required}, "torch brings it"


def test_versions_and_licences_are_the_same_everywhere():
    recipe, entry = read("recipe.yaml"), read("scverse.yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    versions = {str(recipe["context"]["version"]), str(citation["version"])}
    assert versions == {grn.__version__} and entry["install"]["pypi"] == grn.__name__
    licences = {recipe["about"]["license"], entry["license"], citation["license"]}
    assert licences == {PROJECT["license"]}


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
