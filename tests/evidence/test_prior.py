"""A prior network: what it restricts, and how it weighs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import grn
from grn.cli.main import main
from grn.config.files import change_config, dump_config
from grn.edges.weights import Network
from grn.evidence.prior import read_prior
from grn.runtime.errors import DataError

GENES = ("R1", "R2", "a", "b", "c")
REGULATORS = np.array([0, 1])
NAMED = [f"R{number}" for number in range(1, 7)]
EVERY = pd.DataFrame({"source": [*NAMED, *NAMED], "target": [*["G1"] * 6, *["G2"] * 6]})


def written(tmp_path, table, name="prior.csv"):
    path = tmp_path / name
    table.to_parquet(path) if name.endswith("parquet") else table.to_csv(path, index=False)
    return str(path)


@pytest.fixture
def pairs() -> pd.DataFrame:
    """Two pairs among the genes, one listed twice, a self loop, one of a gene that is no regulator
    and one unknown.
    """
    sources, targets = ["R1", "R1", "R1", "R2", "a", "X"], ["a", "a", "R1", "c", "b", "b"]
    return pd.DataFrame(
        {"source": sources, "target": targets, "weight": [1.0, 4.0, 9.0, -2.0, 1.0, 1.0]}
    )


@pytest.mark.parametrize("name", ["prior.csv", "prior.parquet"])
def test_pairs_are_placed_by_target_and_regulator(name, pairs, tmp_path):
    prior = read_prior(written(tmp_path, pairs, name), "restrict", GENES, ["R1", "R2"])
    assert (prior.listed, prior.pairs) == (2, 6)
    np.testing.assert_array_equal(prior.factor, [[0, 0], [0, 0], [1, 0], [0, 0], [0, 1]])
    weighed = read_prior(written(tmp_path, pairs, name), "weigh", GENES, ["R1", "R2"])
    np.testing.assert_allclose(
        weighed.factor, [[0.5, 0.5], [0.5, 0.5], [1, 0.5], [0.5, 0.5], [0.5, 0.75]]
    )


def test_the_guides_of_a_gene_have_its_pairs(pairs, tmp_path):
    prior = read_prior(written(tmp_path, pairs), "restrict", GENES, ["R1", "R2", "R2", "X"])
    np.testing.assert_array_equal(prior.factor[:, :2], [[0, 0], [0, 0], [1, 0], [0, 0], [0, 1]])
    np.testing.assert_array_equal(prior.factor[:, 2], prior.factor[:, 1])
    assert prior.factor[:, 3].tolist() == [0, 0, 0, 1, 0], (
        "a gene that was not measured, but intervened on"
    )
    assert prior.listed == 3


def network(sure: bool = True) -> Network:
    """With what knock-offs say of it, or without."""
    generator = np.random.default_rng(0)
    weight, sd, total, indirect, between = generator.normal(size=(5, 5, 2)).astype(np.float32)
    confidence, q = generator.uniform(0.5, 1, (2, 5, 2)) if sure else (None, None)
    cells = np.arange(10).reshape(5, 2)
    one = Network(weight, sd, total, indirect, between, cells, confidence=confidence, q=q)
    return replace(one, of_states={"B": replace(one, weight=2 * weight)})


@pytest.mark.parametrize("sure", [True, False])
def test_what_is_no_candidate_has_no_weight_and_what_is_one_keeps_its_own(pairs, tmp_path, sure):
    prior = read_prior(written(tmp_path, pairs), "restrict", GENES, ["R1", "R2"])
    before = network(sure)
    after, kept = prior.applied(before), prior.factor > 0
    otherwise = dict.fromkeys(("weight", "sd", "total"), 0) | {"confidence": 0.5, "q": 1}
    for one, own in ((after, before), (after.of_states["B"], before.of_states["B"])):
        for name, value in otherwise.items():
            given, found = getattr(own, name), getattr(one, name)
            assert (found is None) == (given is None)
            if given is not None:
                np.testing.assert_array_equal(found, np.where(kept, given, value))
        assert one.between is own.between and one.cells is own.cells
        assert one.indirect is own.indirect
    ends = {"source": ["R1", "R1", "R2"], "target": ["a", "b", "c"], "weight": [1.0, 0.0, 2.0]}
    candidates = prior.candidates(pd.DataFrame(ends), GENES, REGULATORS)
    assert candidates["target"].tolist() == ["a", "c"]


def test_weighing_keeps_every_pair_and_is_for_the_fit_to_do(pairs, tmp_path):
    prior, before = read_prior(written(tmp_path, pairs), "weigh", GENES, ["R1", "R2"]), network()
    assert prior.applied(before) is before
    np.testing.assert_allclose(prior.strength, [[0, 0], [0, 0], [1, 0], [0, 0], [0, 0.5]])
    assert prior.candidates(pairs, GENES, REGULATORS) is pairs


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.rename(columns={"source": "gene"}),
        lambda table: table.assign(source="ENSG1"),
        lambda table: table.assign(weight="high"),
        lambda table: table.assign(weight="0,5"),
        lambda table: table.assign(weight=0),
        lambda table: table.assign(source=table["source"].str.lower()),
    ],
)
def test_a_prior_that_cannot_be_used_is_refused(change, pairs, tmp_path):
    with pytest.raises(DataError):
        read_prior(written(tmp_path, change(pairs)), "restrict", GENES, ["R1", "R2"])


def test_a_run_with_a_prior_has_its_candidates_alone(make_config, tmp_path):
    table = pd.DataFrame({"source": ["R1", "R1", "R2"], "target": ["R2", "R3", "R4"]})
    changes = {"network.prior": written(tmp_path, table), "trainer.max_steps": 2}
    (tmp_path / "run.yaml").write_text(dump_config(change_config(make_config(), changes)))
    assert main(["train", str(tmp_path / "run.yaml"), "--output", str(tmp_path / "run")]) == 0
    run = grn.load(tmp_path / "run")
    expected = {*table.itertuples(index=False, name=None)}
    assert {*zip(run.edges["source"], run.edges["target"], strict=True)} == expected
    by_type = pd.read_parquet(tmp_path / "run" / "edges_by_type.parquet")
    assert len(by_type) == 6 and run.network.varp["grn"].nnz <= 3
    assert run.network.uns["grn"]["prior"] == {"use": "restrict", "pairs": 3}


def test_a_prior_and_interventions_go_together(tmp_path):
    """Edges are those of the prior, and what was caused stands beside them."""
    screen = {"cells": 300, "genes": 30, "regulators": 6, "cell_types": 1, "interventions": 0.5}
    own = {f"data.simulated.{name}": value for name, value in screen.items()}
    own |= {"data.intervention_key": "intervention", "model.members": 2}
    own |= {"network.prior": written(tmp_path, EVERY)}
    run = grn.train("simulated:", regulators=NAMED, max_steps=5, set=own, quiet=True)
    found, listed = run.edges, {*EVERY.itertuples(index=False, name=None)}
    assert found["caused"].notna().any()
    assert {*zip(found["source"], found["target"], strict=True)} <= listed
    assert run.network.uns["grn"]["prior"]["pairs"] == len(listed)


def test_a_wrong_prior_is_refused_before_anything_is_trained(make_config, tmp_path, capsys):
    config = change_config(make_config(), {"network.prior": "none.csv"})
    (tmp_path / "run.yaml").write_text(dump_config(config))
    assert main(["train", str(tmp_path / "run.yaml"), "--output", str(tmp_path / "run")]) == 2
    assert "none.csv does not exist" in capsys.readouterr().err and not (tmp_path / "run").exists()
