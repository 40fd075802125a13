"""The planted network is what the generator says it is, and can be found."""

import hashlib

import anndata
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grn.cells.simulated.cells
from grn.cells.simulated.cells import read_truth, simulate
from grn.config.schema import Simulation
from grn.runtime.errors import ConfigError


@settings(max_examples=25)
@given(
    regulators=st.integers(1, 10),
    targets=st.integers(1, 20),
    most=st.integers(0, 5),
    types=st.integers(1, 4),
    hubs=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 99),
)
def test_any_network_is_acyclic_signed_and_gives_counts(
    regulators, targets, most, types, hubs, seed
):
    fields = {"regulators_per_target": most, "cell_types": types, "hubs": hubs, "seed": seed}
    genes = regulators + targets
    adata = simulate(Simulation(cells=30, genes=genes, regulators=regulators, **fields))
    counts = adata.X.data
    assert adata.shape == (30, genes) and adata.obs["cell_type"].nunique() == types
    assert (counts >= 0).all() and np.array_equal(counts, np.rint(counts))
    truth, place = read_truth(adata), pd.Series(range(genes), adata.var_names)
    sources, sinks = (place[truth[end]].to_numpy() for end in ("source", "target"))
    assert (sources < sinks).all(), "edges go forward, so there is no cycle"
    assert adata.var["is_regulator"].to_numpy()[sources].all()
    assert set(truth["sign"]) <= {-1, 1} and not truth.duplicated(["source", "target"]).any()
    assert (np.bincount(sinks, minlength=genes) <= most).all()
    assert not most or {*range(regulators, genes)} <= {*sinks}, "every target is regulated"


def test_shares_of_repression_mean_counts_and_hubs():
    """A hub has many targets whatever its abundance: a correlation within three standard errors of
    sixty regulators.
    """
    for share in (0.0, 0.35, 0.9):
        adata = simulate(Simulation(cells=100, genes=300, repression=share, depth=2.0))
        assert (read_truth(adata)["sign"] < 0).mean() == pytest.approx(share, abs=0.06)
        assert adata.X.mean() == pytest.approx(2.0, rel=0.2)
    spread = []
    for hubs in (0.0, 1.5):
        adata = simulate(Simulation(cells=60, genes=3000, regulators=60, hubs=hubs, depth=5))
        truth = read_truth(adata)
        degree = truth[truth["target"].str.startswith("G")]["source"].value_counts()
        degree = degree.reindex(adata.var_names[:60], fill_value=0)
        spread.append(degree.std() / degree.mean())
    assert spread[0] < 0.15 and spread[1] > 0.7
    assert abs(np.corrcoef(degree, adata.to_df()[degree.index].mean())[0, 1]) < 0.35


DIFFERENT = Simulation(
    cells=60, genes=400, regulators=20, cell_types=4, type_specific=0.3, changed_signs=0.2
)


def changed(config, **fields):
    return config.model_copy(update=fields)


def fingerprint(adata):
    truth = read_truth(adata)
    text = "\n".join(f"{edge.source} {edge.target} {edge.sign}" for edge in truth.itertuples())
    found = hashlib.sha256(f"{text}\n{' '.join(adata.obs['cell_type'].astype(str))}".encode())
    for part in (adata.X.data, adata.X.indices, adata.X.indptr):
        found.update(part.astype("<i8").tobytes())
    return found.hexdigest()


def acting(config):
    """The signs of each edge by cell type: pair -> {label: sign}."""
    found = {}
    for edge in read_truth(simulate(config)).itertuples():
        found.setdefault((edge.source, edge.target), {})[edge.cell_type] = edge.sign
    return found


@pytest.mark.parametrize(
    ("config", "known"),
    [
        (
            Simulation(
                cells=60,
                genes=50,
                regulators=7,
                cell_types=3,
                regulators_per_target=2,
                noise=0.5,
                seed=4,
            ),
            "448f7324ce5d76a9f016690b919890a412e7382af2c1a879a83895f1710cb09f",
        ),
        (Simulation(cells=90), "f03809df6c118d272430cb09f59fb4dec9fc2ee40fc2fa2eeb8e391bee605406"),
    ],
)
def test_cells_without_context_are_those_of_the_first_version(config, known):
    adata = simulate(config)
    assert fingerprint(adata) == known
    assert list(read_truth(adata)) == ["source", "target", "sign"] and list(adata.obs) == [
        "cell_type"
    ]


def test_cascades_take_the_place_of_all_other_edges_to_their_genes():
    """Each ends in a target of its own; in every second one the first regulator acts on the target
    directly, too.
    """

    def regulators_of(cascades: int) -> dict[str, set[str]]:
        config = Simulation(cells=30, genes=60, regulators=9, cascades=cascades)
        return read_truth(simulate(config)).groupby("target")["source"].agg(set).to_dict()

    found, plain = regulators_of(11), regulators_of(0)
    masters, middle = {"R1", "R2", "R3", "R4"}, {"R5", "R6", "R7", "R8", "R9"}
    assert all(len(found[gene]) == 1 and found[gene] <= masters for gene in middle)
    ends = [found[gene] for gene in found if gene[0] == "G" and found[gene] != plain[gene]]
    assert len(ends) == 11 and sum(len(each) == 1 for each in ends) == 6
    for end in ends:
        (through,) = end & middle
        assert end - {through} <= found[through]


@pytest.mark.parametrize("types", [2, 3, 4, 7])
def test_shares_of_edges_and_the_types_in_which_they_act(types):
    """An edge that changes its sign acts in every type."""
    edges = acting(changed(DIFFERENT, cell_types=types))
    partial = [signs for signs in edges.values() if len(signs) < types]
    flipped = [signs for signs in edges.values() if len(set(signs.values())) == 2]
    assert len(partial) == round(0.3 * len(edges)) and max(map(len, partial)) <= 2
    assert len(flipped) == pytest.approx(0.2 * len(edges), abs=1)
    in_one = sum(len(signs) == 1 for signs in partial)
    assert in_one == (len(partial) if types == 2 else (len(partial) + 1) // 2)
    assert all(len(signs) == types for signs in flipped)
    plain = simulate(changed(DIFFERENT, cell_types=types, type_specific=0, changed_signs=0))
    planted = read_truth(plain).set_index(["source", "target"])["sign"]
    assert {*planted.index} == edges.keys(), "the edges of a seed do not depend on how they differ"
    for pair, signs in edges.items():
        other = sum(sign != planted[pair] for sign in signs.values())
        assert other in ((types // 2, (types + 1) // 2) if signs in flipped else (0,))


@pytest.mark.parametrize("changes", ["type_specific", "changed_signs"])
def test_edges_and_signs_that_differ_between_types_are_seen_in_their_cells(changes):
    size = {"cells": 4000, "genes": 60, "cell_types": 2, "depth": 50}
    fields = size | {"regulators_per_target": 1, "noise": 0.5, "size_sd": 0, changes: 0.9}
    config = Simulation(**fields)
    adata = simulate(config)
    logs, types = np.log1p(adata.to_df()), adata.obs["cell_type"]
    found = {True: [], False: []}
    for (source, target), signs in acting(config).items():
        for label, cells in logs.groupby(types, observed=True):
            correlation = cells[source].corr(cells[target])
            if changes == "type_specific":
                found[label in signs].append(correlation * next(iter(signs.values())))
            elif len(set(signs.values())) == 2:
                found[True].append(np.sign(correlation) == signs[label])
    if changes == "changed_signs":
        assert len(found[True]) > 80 and np.mean(found[True]) > 0.9
    else:
        assert np.median(found[True]) > 0.15 and abs(np.median(found[False])) < 0.03
        expressed = adata.to_df().groupby(types, observed=True).mean()
        assert (expressed > 0).all(axis=None), "also a gene that a type leaves no regulator"


def test_with_types_the_truth_says_in_which_and_a_file_keeps_it(tmp_path):
    adata = simulate(DIFFERENT)
    truth = read_truth(adata)
    assert list(truth) == ["source", "target", "sign", "cell_type"]
    adata.write_h5ad(tmp_path / "simulated.h5ad")
    again = read_truth(anndata.read_h5ad(tmp_path / "simulated.h5ad"))
    assert again.astype(str).to_numpy().tolist() == truth.astype(str).to_numpy().tolist()


def test_composition_is_the_spread_of_levels_between_types():
    nothing = Simulation(
        cells=2000, genes=300, cell_types=10, regulators_per_target=0, noise=0, size_sd=0, depth=200
    )
    plain, composed = simulate(nothing), simulate(changed(nothing, composition=0.5))
    assert read_truth(composed).empty and list(read_truth(composed)) == ["source", "target", "sign"]
    for adata, expected in ((plain, 0.0), (composed, 0.5)):
        targets = adata[:, ~adata.var["is_regulator"]]
        means = np.log(targets.to_df().groupby(targets.obs["cell_type"], observed=True).mean())
        assert np.sqrt(means.var(ddof=1).mean()) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize(
    "config",
    [Simulation(cells=31, genes=50, seed=3), changed(DIFFERENT, cells=31, composition=0.4)],
)
def test_cells_do_not_depend_on_how_many_are_in_memory_at_a_time(monkeypatch, config):
    whole = simulate(config)
    monkeypatch.setattr(grn.cells.simulated.cells, "BLOCK", 4 * config.genes)
    parts = simulate(config)
    assert (parts.X != whole.X).nnz == 0 and parts.obs.equals(whole.obs)
    assert read_truth(parts).equals(read_truth(whole))
    assert not read_truth(simulate(changed(config, seed=9))).equals(read_truth(whole))


@pytest.mark.parametrize(
    ("names", "values"),
    [
        ("genes regulators", (5, 5)),
        ("type_specific changed_signs", (0.6, 0.5)),
        ("changed_signs cell_types", (0.1, 1)),
        ("cascades regulators", (1, 1)),
    ],
)
def test_networks_that_cannot_be_are_refused(names, values):
    with pytest.raises(ConfigError) as caught:
        simulate(Simulation(**dict(zip(names.split(), values, strict=True))))
    assert caught.value.field == "data.simulated"


def test_guides_that_work_take_a_regulator_away_and_leave_the_network_as_it_was():
    size = {"cells": 300, "genes": 40, "regulators": 8, "cell_types": 2, "depth": 20.0}
    plain = simulate(Simulation(**size))
    screen = simulate(Simulation(**size, interventions=0.25, failing=0.3))
    assert "guides" not in plain.uns and list(plain.obs) == ["cell_type"]
    assert plain.uns["truth"].equals(screen.uns["truth"]), "the network is the same"
    guides = screen.uns["guides"].set_index("guide")
    assert len(guides) == 6 and (~guides["works"]).sum() == 2 and guides["target"].nunique() == 2
    for name, cells in screen.obs.groupby("guide", observed=True):
        counts = screen[cells.index, guides["target"].get(name, "R1")].X.sum()
        assert (counts == 0) == bool(guides["works"].get(name, False))
    controls = screen.obs["intervention"] == "control"
    assert 0.1 < controls.mean() < 0.3


def test_a_knock_down_leaves_a_share_and_two_interventions_act_in_one_cell():
    """Of regulators that no other one reaches."""
    size = {"cells": 2000, "genes": 20, "regulators": 4, "cell_types": 1, "depth": 30.0}
    cells = simulate(Simulation(**size, interventions=0.5, efficiency=0.6, pairs=0.4))
    mean = cells.to_df().groupby(cells.obs["intervention"], observed=True).mean()
    pair = next(name for name in mean.index if "+" in name)
    masters = [gene for gene in pair.split("+") if gene in ("R1", "R2")]
    assert masters
    left = mean.loc[pair, masters] / mean.loc["control", masters]
    np.testing.assert_allclose(left, 0.4, atol=0.06)
    with pytest.raises(ConfigError) as refused:
        simulate(Simulation(**size, interventions=0.1, pairs=0.4))
    assert refused.value.field == "data.simulated.pairs"
