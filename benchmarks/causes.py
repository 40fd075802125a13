"""How do the scores of the field judge grn beside simple methods?

    python benchmarks/causes.py --cache DIR              # the networks of a run are kept in DIR
    python benchmarks/causes.py --tables vcc2026 --without grn

Three minutes of a core with all networks in DIR; on a busy one the networks took an hour before.

Cells are Papalexi's (three replicates, CRISPR knock-outs) and Kang's (blood cells, half of them
with interferon), in the folder that GRN_BENCHMARK_DATA names.

- vcc2026: the six metrics of the Virtual Cell Challenge 2026 (causes_parts/vcc2026.py), in each
  replicate; methods learn from the two others. `seen`: interventions that these have, too;
  `unseen`: those on genes whose messengers are counted, each without its own cells. A scaled score
  is 0 for the mean of all interventions, which was measured in that replicate itself, and 1 for a
  repetition: half of the replicate's cells against the other half.
- causalbench: mean Wasserstein distance of as many edges as intervened genes have pairs that
  change, and of the 100 strongest, and the false omission rate; in each replicate, by networks of
  the two others.
- genernib: metrics of geneRNIB that need no download: R2 of a ridge on each gene's strongest
  regulators in a group that was left out, ws_precision, t_rec, and gene-set recovery against
  CollecTRI.

Beside grn: Pearson, ridge within types (of Papalexi's cells: replicates), GRNBoost2, a linear model
from gene embeddings, the mean of all interventions, and `mean change`, an intervention's own mean
change in the training cells, which no method has for an intervention that nobody made. Prints
tables, and writes `causes.csv`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from arguments import RESULTS, Option, all_of, read_options
from causes_parts import genernib
from causes_parts.causalbench import CHANGED, Pairs
from causes_parts.fitted import Fitted, fitted, fitted_observed
from causes_parts.networks_of import correlations, interventional, kang, papalexi
from causes_parts.predicted import GRN, boosted_network, seen, unseen
from causes_parts.submissions import cells_of, mean_of_panel, submission
from causes_parts.vcc2026 import Measured, Panel, mean_repetition, mean_scores, scaled
from interventions import SEEN, Screen
from results_file import merged, write
from sets import folder

TABLES = ("vcc2026", "causalbench", "genernib")
KEYS = ["table", "set", "left", "method", "metric", "seed"]
FEWEST_CELLS = 50  # of an intervention in the replicate that is left out
LOWER = {"false_omission"}  # metrics of which less is better
FEW = 100  # edges
ALL = "all"  # interventions of the three replicates together
CAUSED = "grn, caused"  # what interventions caused in the training cells, a column of its edges
TIMES_SD = "weights times sd"
BASELINE, REPLICATE = "baseline", "replicate"
CONTROL = "non-targeting"
ENOUGH = 20  # cells of a type under one condition, so that it is a group of its own


def vcc2026_rows(screen: Screen, fits: dict[str, Fitted], cache: Path, seed: int) -> Iterator[dict]:
    """Yield the six metrics of every method in each replicate, whose cells are predicted from the
    others, and over the interventions of all.
    """
    counts = screen.adata.X.toarray().astype(float)
    for task, names in interventions_of(screen).items():
        kept = np.isin(screen.target, [*names, CONTROL])
        panels = {
            left: Panel(counts[part], screen.target[part], screen.genes, CONTROL)
            for left in np.unique(screen.replicate)
            for part in [kept & (screen.replicate == left)]
        }
        found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
        repeated = {}
        for left, panel in panels.items():
            boosted = boosted_network(screen, screen.replicate != left, cache)
            changes = expected(screen, left, task, names, fits, boosted, seed)
            measured = Measured(panel)
            same = dict.fromkeys(names, mean_of_panel(panel))
            cells = {BASELINE: submission(panel, same, seed)}
            cells |= {way: cells_of(panel, each, seed) for way, each in changes.items()}
            repeated[left] = measured.repetitions()
            for way, each in cells.items():
                found.setdefault(way, {})[left] = measured.scores(each)
        for left in (*panels, ALL):
            parts = panels if left == ALL else [left]
            rows = {REPLICATE: mean_repetition(*(repeated[part] for part in parts))}
            rows |= {
                way: mean_scores(*(each[part] for part in parts)) for way, each in found.items()
            }
            for method, values in rows.items():
                for metric, value in values.items():
                    ends = rows[BASELINE][metric], rows[REPLICATE][metric]
                    yield {
                        "table": "vcc2026",
                        "set": task,
                        "left": left,
                        "method": method,
                        "metric": metric,
                        "value": value,
                        "scaled": scaled(metric, value, *ends),
                    }


def interventions_of(screen: Screen) -> dict[str, list[str]]:
    """Return the interventions of each task: those with enough cells in every replicate."""
    size = pd.crosstab(screen.target, screen.replicate).min(axis=1)
    many = [name for name in screen.targets if size[name] >= FEWEST_CELLS]
    counted = [name for name in many if name in screen.genes]
    return {"seen": many, "seen, of many effects": list(SEEN), "unseen": counted}


def expected(
    screen: Screen,
    left: str,
    task: str,
    names: list[str],
    fits: dict[str, Fitted],
    boosted: pd.DataFrame,
    seed: int,
) -> dict[str, dict[str, np.ndarray]]:
    """Return method -> intervention -> change, learned from all replicates but `left`."""
    training = screen.replicate != left
    if task != "unseen":
        return seen(screen, training, names, fits.get(left))
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        for method, change in unseen(screen, training, name, boosted, seed, left in fits):
            found.setdefault(method, {})[name] = change
    return found


def networks_of_screen(
    screen: Screen, left: str, fit: Fitted | None, cache: Path
) -> dict[str, pd.DataFrame]:
    training = screen.replicate != left
    found = dict(correlations(papalexi(screen, training), cache))
    found |= dict(interventional(screen, training))
    if fit is None:
        return found
    caused = fit.edges.assign(weight=fit.edges["caused"].fillna(0))
    return found | {GRN: fit.edges, CAUSED: caused}


def in_both_units(
    networks: dict[str, pd.DataFrame], sd: pd.Series
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield suffix, method and network: weights as they are, in sds of their targets, and times
    these sds, as distances between distributions are in units of log expression.
    """
    for method, network in networks.items():
        yield "", method, network
        scaled_weight = network["weight"] * network["target"].map(sd)
        yield f", {TIMES_SD}", method, network.assign(weight=scaled_weight)


def causalbench_rows(
    left: str, networks: dict[str, pd.DataFrame], pairs: Pairs, sd: pd.Series
) -> Iterator[dict]:
    """Yield distance and false omissions of every network in the replicate `left`.

    sd: of each gene in the training cells.
    """
    sources = {source for source, _ in pairs.distance}
    changed = sum(p < CHANGED for p in pairs.p.values())
    for suffix, method, network in in_both_units(networks, sd):
        own = network[network["source"].isin(sources)]
        for count, name in ((FEW, f"{FEW} edges"), (changed, "as many as change")):
            edges = strongest_pairs(own, count)
            for metric, value in pairs.scores(edges).items():
                yield {
                    "table": "causalbench",
                    "set": name + suffix,
                    "left": left,
                    "method": method,
                    "metric": metric,
                    "value": value,
                }


def strongest_pairs(network: pd.DataFrame, count: int) -> list[tuple[str, str]]:
    order = network[network["source"] != network["target"]]
    order = order.loc[order["weight"].abs().sort_values(ascending=False, kind="stable").index]
    return list(order[["source", "target"]].head(count).itertuples(index=False, name=None))


def genernib_rows(
    screen: Screen, left: str, networks: dict[str, pd.DataFrame], pairs: Pairs, seed: int
) -> Iterator[dict]:
    """Yield geneRNIB's metrics of every network in the replicate `left`: R2 of ridges that learn
    from the two others.
    """
    here = screen.replicate == left
    base = screen.values[here & screen.control]
    sd = np.maximum(base.std(0), 1e-6)
    change = {
        source: (screen.values[here & (screen.target == source)].mean(0) - base.mean(0)) / sd
        for source in sorted({source for source, _ in pairs.distance})
    }
    regulators = set(papalexi(screen, ~here).regulators)
    sd_of = pd.Series(screen.values[~here].std(0), index=screen.genes)
    for suffix, method, network in in_both_units(networks, sd_of):
        known = network[network["source"].isin(regulators)]
        found = {}
        for count in genernib.STRONGEST:
            percentile = genernib.distance_percentile(known, pairs, count)
            found[f"ws_precision, {count}{suffix}"] = float(np.mean(list(percentile.values())))
            if suffix:  # the other metrics do not depend on it, or are of effects in sds
                continue
            if len(set(known["source"])) > len(change):  # of a few regulators it would be no R2
                r2 = genernib.explained_in(known, screen.values, screen.genes, ~here, count)
                found[f"r2, {count}"] = float(np.mean(list(r2.values())))
            given = known, change, screen.genes, count, seed
            found[f"t_rec, {count}"] = genernib.recovered_regulators(*given)
        for metric, value in found.items():
            yield {
                "table": "genernib",
                "set": "papalexi",
                "left": left,
                "method": method,
                "metric": metric,
                "value": value,
            }


def kang_rows(cache: Path, seed: int, grn: bool) -> Iterator[dict]:
    """Yield R2 by condition and type, and gene-set recovery, of networks of Kang's cells."""
    observed, condition = kang()
    networks = dict(correlations(observed, cache))
    if grn:
        networks[GRN] = fitted_observed(observed, seed, cache)
    kinds = np.char.add(np.char.add(condition, ", "), observed.group)
    size = pd.Series(kinds).value_counts()
    enough = np.isin(kinds, size[size >= ENOUGH].index)
    sets = regulons()
    samples = np.stack(
        [observed.values[kinds == kind].mean(0) for kind in np.unique(kinds[enough])]
    )
    groups = {"condition": condition, "type": observed.group, "condition and type": kinds}
    for method, network in networks.items():
        found = {}
        for name, group in groups.items():
            for count in genernib.STRONGEST:
                r2 = genernib.explained(
                    network, observed.values[enough], observed.genes, group[enough], count
                )
                found[f"r2 by {name}, {count}"] = float(np.mean(list(r2.values())))
        recovered = genernib.recovered_sets(network, sets, samples, observed.genes)
        found |= {f"gs_{name}": recovered[name] for name in ("precision", "recall", "f1")}
        for metric, value in found.items():
            yield {
                "table": "genernib",
                "set": "kang",
                "left": "none",
                "method": method,
                "metric": metric,
                "value": value,
            }


def regulons() -> dict[str, set[str]]:
    """Return CollecTRI's targets of every factor; not of complexes."""
    table = pd.read_csv(folder() / "omnipath_tf_target_signed.csv.gz", keep_default_na=False)
    table = table[table["collectri"] & ~table["source"].str.startswith("COMPLEX")]
    return {name: set(part["target"]) for name, part in table.groupby("source")}


def shown(table: pd.DataFrame) -> Iterator[str]:
    """Yield tables of means and worst values, and of ranks."""
    for (name, one), part in table.groupby(["table", "set"], sort=False):
        value = "scaled" if name == "vcc2026" else "value"
        whole, each = part[part["left"] == ALL], part[part["left"] != ALL]
        wide = each.pivot_table(value, "method", "metric", ["mean", "min", "max"], sort=False)
        metrics = list(dict.fromkeys(part["metric"]))
        lower = LOWER if value == "value" else set()
        ends = {each: wide["max" if each in lower else "min"].get(each) for each in metrics}
        worst = pd.DataFrame(ends, index=wide.index)
        mean = wide["mean"]
        if len(whole):
            mean = whole.pivot_table(value, "method", "metric", sort=False)
        mean = mean.reindex(columns=metrics)  # without those that are NaN everywhere
        both = mean.map("{:.3f}".format) + worst.astype(float).map(", {:.3f}".format)
        yield f"{name}, {one}: mean, worst replicate\n{both.to_string()}"
    part = table[table["table"] == "genernib"]
    if len(part):
        yield f"genernib: percentile of ranks\n{percentiles(part).to_string(float_format='%.2f')}"


def percentiles(table: pd.DataFrame) -> pd.DataFrame:
    """Return each method's median and mean percentile over sets, metrics and replicates: the share
    of other methods that are worse, ties half.
    """
    wide = table.pivot_table("value", ["set", "left", "metric"], "method")
    sign = np.where(wide.index.get_level_values("metric").isin(LOWER), -1.0, 1.0)
    wide = wide.mul(sign, axis=0)
    share = (wide.rank(axis=1) - 1).div(wide.notna().sum(axis=1) - 1, axis=0)
    by = share.agg(["median", "mean", "min"]).T
    return by.sort_values("median", ascending=False)


def rows_of(tables: list[str], cache: Path, seed: int, grn: bool) -> Iterator[dict]:
    screen = Screen()
    replicates = np.unique(screen.replicate)
    regulators = papalexi(screen, ~screen.control).regulators
    fits = {left: fitted(screen, left, seed, regulators, cache) for left in replicates if grn}
    if "vcc2026" in tables:
        yield from vcc2026_rows(screen, fits, cache, seed)
    for left in replicates if {"causalbench", "genernib"} & set(tables) else ():
        here = screen.replicate == left
        pairs = Pairs.of(screen.values[here], screen.target[here], screen.genes, CONTROL)
        networks = networks_of_screen(screen, left, fits.get(left), cache)
        if "causalbench" in tables:
            sd = pd.Series(screen.values[~here].std(0), index=screen.genes)
            yield from causalbench_rows(left, networks, pairs, sd)
        if "genernib" in tables:
            yield from genernib_rows(screen, left, networks, pairs, seed)
    if "genernib" in tables:
        yield from kang_rows(cache, seed, grn)


def main() -> None:
    arguments = read_options(
        __doc__,
        tables=all_of(TABLES),
        cache=Option(help="where networks are kept", kind=Path),
        seed=Option(0),
        without=Option(help="without our own method", choices=[GRN], several=True),
        output=RESULTS,
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder_of_run:
        cache = arguments.cache or Path(folder_of_run)
        grn = GRN not in (arguments.without or [])
        table = pd.DataFrame(rows_of(arguments.tables, cache, arguments.seed, grn))
    table["seed"] = arguments.seed
    path = arguments.output / "causes.csv"
    write(path, merged(path, table, KEYS))
    for text in shown(table):
        print(f"\n{text}", flush=True)
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
