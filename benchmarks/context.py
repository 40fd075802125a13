"""Which method tells a cell type's network from another's, and regulation from composition?

    python benchmarks/context.py                  # hours of one thread with grn
    python benchmarks/context.py --without grn    # 3 minutes
    python benchmarks/context.py --kinds typed composition --seeds 101 --methods grn ridge_shared

Five kinds of fresh draws (`draws.py`), five seeds each; all methods read the same values, log1p of
scaled counts. The table has the mean over the seeds and the worst in brackets; `context.csv` has a
row for each draw, seed and method, is written after each draw, and keeps the rows that were not
measured again. --missing measures only what it lacks.

    typed        AUPRC of each type's network; share of its edges with the right sign; AUROC of
                 |weight| for the edges that this type has against those that only others have;
                 share of right signs among edges whose sign changes between types (one network
                 for all with the majority of signs gets .64). Means over types.
    noisy        AUPRC and early precision over their densities, at 60 to 90 % zeros
    shuffled     the same where nothing but each gene's values is left: less is better, 1 is
                 chance. `abundance`, the product of mean multiplicities, shows what can be had
                 from these alone
    cascades     chains A -> B -> C, half of them with A -> C beside: AUPRC of the direct edges;
                 share of the pure chains whose A -> C is weaker than both of its edges; precision
                 at q <= .2, and the edges found there
    composition  no edges, but levels that differ between types: share of the pairs at q <= .05
                 and .1, and the root mean square of the weights over that on cells with networks
                 (`typed`, of the same size)

The AUPRC of a type counts all pairs of a regulator and another gene, by the ranking of `evaluate`,
which leaves out genes that have no edge in the reference: types would have different universes.

Letters: N genes, R regulators.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from arguments import RESULTS, Option, all_of, read_options
from draws import (
    Draw,
    cascades,
    composition,
    sergio_like,
    sergio_noise,
    shuffled,
    simulated_cascades,
    typed,
)
from networks import score
from peers_by_type import by_label, pearson_each, ridge_each, ridge_shared, ridge_within
from results_file import merged, ordered, write
from scipy.stats import false_discovery_control, rankdata
from scipy.stats import t as student
from sets import NetworkSet, sergio
from sklearn.metrics import average_precision_score, roc_auc_score
from threadpoolctl import threadpool_limits

from grn.networks.baselines import pearson, ridge

START = {"trainer.max_steps": 1, "trainer.learning_rate": 1e-9}
KEYS = ["kind", "draw", "seed", "method"]
SIZES = [(depth, cells) for depth in (4, 1) for cells in (600, 150)]
ZEROS = (0.6, 0.7, 0.8, 0.9)
CASCADES = [(depth, types) for depth in (8, 2) for types in (1, 4)]
LEVELS = {"q_05": 0.05, "q_10": 0.1}


@dataclass(frozen=True, eq=False)
class Found:
    """The networks that a method found on one draw.

    overall: source, target, weight; None: there is none.
    by_type: label -> the same; None: overall is for all.
    q: q-values of the pairs of one or several networks, any shape; None where the method has none.
    """

    overall: pd.DataFrame | None = None
    by_type: dict[str, pd.DataFrame] | None = None
    q: np.ndarray | None = None

    def of(self, label: str) -> pd.DataFrame:
        table = self.overall if self.by_type is None else self.by_type[label]
        assert table is not None
        return table


# -------------------------------------------------------------------------------------- the methods


def infer(method: str, one: NetworkSet, seed: int, q_values: bool = False) -> Found:
    inputs = (one.multiplicities(), one.genes, one.regulators or one.genes)
    typed_inputs = (inputs[0], one.labels, *inputs[1:])
    if method.startswith("grn"):
        from ours import infer_in_context

        known = replace(one, labels=None) if method == "grn_unlabelled" else one
        ours = infer_in_context(
            known, seed, q_values=q_values, changes=START if method == "grn_start" else {}
        )
        by_type = ours.by_type if known is one else ours.of_labels(one.labels or [])
        return Found(
            ours.overall, by_type, ours.overall["q_value"].to_numpy() if q_values else None
        )
    if method == "pearson":
        table = pearson(*inputs)
        return Found(table, q=correlation_q(table, one.cells - 2))
    if method == "pearson_each":
        tables = pearson_each(*typed_inputs)
        sizes = {label: len(rows) for label, rows in by_label(one.labels or []).items()}
        return Found(
            None,
            tables,
            np.stack([correlation_q(tables[label], sizes[label] - 2) for label in tables]),
        )
    if method == "ridge_each":
        return Found(None, ridge_each(*typed_inputs))
    if method == "ridge_shared":
        return Found(None, ridge_shared(*typed_inputs, seed=seed)[0])
    if method == "ridge_within":
        return Found(ridge_within(*typed_inputs))
    return Found({"abundance": abundance, "spearman": spearman, "ridge": ridge}[method](*inputs))


METHODS = (
    "grn",
    # is not told the types; a type's network is that of the state that most of its cells are in
    "grn_unlabelled",
    "grn_start",  # where training starts: the exact solution of the linear problem
    "abundance",
    "pearson",
    "spearman",
    "ridge",
    "ridge_within",
    "pearson_each",
    "ridge_each",
    "ridge_shared",
)
CHAINS = ("grn", "grn_start", "pearson", "ridge", "ridge_within")
GLOBAL = (
    "grn",
    "grn_start",
    "abundance",
    "pearson",
    "spearman",
    "ridge",
)  # in draws whose network is the same in all types
TYPED = tuple(method for method in METHODS if method not in ("abundance", "pearson", "spearman"))


def abundance(matrix: np.ndarray, genes: list[str], regulators: list[str]) -> pd.DataFrame:
    """No method: the product of the two genes' mean multiplicities, which shows what abundance
    alone tells.
    """
    mean = pd.Series(np.asarray(matrix, dtype=np.float64).mean(0), genes)
    pairs = pd.MultiIndex.from_product([regulators, genes], names=["source", "target"]).to_frame(
        index=False
    )
    pairs = pairs[pairs["source"] != pairs["target"]].reset_index(drop=True)
    return pairs.assign(weight=mean[pairs["source"]].to_numpy() * mean[pairs["target"]].to_numpy())


def spearman(matrix: np.ndarray, genes: list[str], regulators: list[str]) -> pd.DataFrame:
    """`pearson` of the ranks of the cells."""
    return pearson(rankdata(np.asarray(matrix), axis=0), genes, regulators)


def correlation_q(table: pd.DataFrame, freedom: int) -> np.ndarray:
    """q-values of correlations, by Student's t and Benjamini and Hochberg."""
    r = np.clip(table["weight"].to_numpy(), -1 + 1e-15, 1 - 1e-15)
    return false_discovery_control(
        2 * student.sf(np.abs(r) * np.sqrt(freedom / (1 - r**2)), freedom)
    )


# --------------------------------------------------------------------------------------- the scores


def dense(one: NetworkSet, table: pd.DataFrame, column: str = "weight") -> np.ndarray:
    """[R, N], 0 where the table has no row."""
    regulators, genes = pd.Index(one.regulators or one.genes), pd.Index(one.genes)
    values = np.zeros((len(regulators), len(genes)))
    values[regulators.get_indexer(table["source"]), genes.get_indexer(table["target"])] = table[
        column
    ]
    return values


def candidates(one: NetworkSet) -> np.ndarray:
    """bool [R, N]: all pairs of a regulator and another gene."""
    return np.array(one.regulators or one.genes)[:, None] != np.array(one.genes)


def typed_scores(draw: Draw, found: Found) -> dict[str, float]:
    """Scores of the networks of all types, means over the types (changed_signs: over edges and
    types).
    """
    one, truth = draw.one, draw.by_type
    assert truth is not None
    labels = list(by_label(one.labels or []))
    sign = np.array([dense(one, truth[truth["cell_type"] == label], "sign") for label in labels])
    weight = np.array([dense(one, found.of(label)) for label in labels])
    pairs = candidates(one)
    active = sign != 0
    some = active.any(0) & ~active.all(0)
    changing = active.all(0) & (np.abs(sign.sum(0)) < len(labels))
    right = np.sign(weight) == sign
    return {
        "auprc": float(
            np.mean([auprc(w[pairs], a[pairs]) for w, a in zip(weight, active, strict=True)])
        ),
        "signs": float(np.mean([r[a].mean() for r, a in zip(right, active, strict=True)])),
        "specificity": float(
            np.mean([auroc(np.abs(w[some]), a[some]) for w, a in zip(weight, active, strict=True)])
        ),
        "changed_signs": float(right[:, changing].mean()),
    }


def auprc(weight: np.ndarray, edge: np.ndarray) -> float:
    return float(average_precision_score(edge, np.abs(weight)))


def auroc(value: np.ndarray, positive: np.ndarray) -> float:
    """nan without positives or without others."""
    return float(roc_auc_score(positive, value)) if 0 < positive.mean() < 1 else np.nan


def network_scores(draw: Draw, found: Found) -> dict[str, float]:
    assert found.overall is not None
    scores = score(draw.one, found.overall)
    return {name: scores[name] for name in ("auprc_ratio", "early_precision_ratio")}


def cascade_scores(draw: Draw, found: Found) -> dict[str, float]:
    """Of one network over all cells. A pure chain is A -> B -> C without an edge A -> C."""
    one = draw.one
    assert found.overall is not None
    weight, edge = np.abs(dense(one, found.overall)), dense(one, one.reference, "sign") != 0
    # of the regulators among the genes
    place = pd.Index(one.genes).get_indexer(pd.Index(one.regulators or one.genes))
    chains = [
        weight[a, c] < min(weight[b, c], weight[a, place[b]])
        for b, c in zip(*edge.nonzero(), strict=True)
        for a in edge[:, place[b]].nonzero()[0]
        if not edge[a, c] and place[a] != c
    ]
    pairs = candidates(one)
    scores = {"auprc": auprc(weight[pairs], edge[pairs]), "chains": float(np.mean(chains))}
    if found.q is not None:
        discovered = dense(one, found.overall.assign(found=found.q <= 0.2), "found") > 0
        scores["precision"] = float((discovered & edge).sum() / max(discovered.sum(), 1))
        scores["found"] = float((discovered & edge).sum() / edge.sum())
    return scores


def size(one: NetworkSet, found: Found) -> float:
    """Root mean square of the weights of all pairs, of the types' networks where there are any."""
    tables = found.by_type.values() if found.by_type is not None else [found.overall]
    pairs = candidates(one)
    return float(
        np.sqrt(np.mean([dense(one, table)[pairs] ** 2 for table in tables if table is not None]))
    )


# ---------------------------------------------------------------------------------------- the kinds


@dataclass(frozen=True)
class Kind:
    """A kind of draws, and how it is scored.

    draws: name -> a function of the seed.
    metrics: column -> title.
    methods: those that are compared.
    measure: method, name of the draw, seed -> scores.
    worst: min, or max where less is better.
    """

    draws: dict[str, Callable[[int], Draw]]
    metrics: dict[str, str]
    methods: tuple[str, ...]
    measure: Callable[[str, str, int], dict[str, float]]
    worst: str = "min"


@cache
def drawn(kind: str, name: str, seed: int) -> Draw:
    return KINDS[kind].draws[name](seed)


@cache
def inferred(kind: str, name: str, seed: int, method: str) -> Found:
    return infer(
        method, drawn(kind, name, seed).one, seed, q_values=kind in ("composition", "cascades")
    )


def measured_by(
    kind: str, scores: Callable[[Draw, Found], dict[str, float]]
) -> Callable[[str, str, int], dict[str, float]]:
    return lambda method, name, seed: scores(
        drawn(kind, name, seed), inferred(kind, name, seed, method)
    )


def measure_composition(method: str, name: str, seed: int) -> dict[str, float]:
    """Shares of pairs with small q-values, and the size of weights over that on typed cells."""
    key = name, seed
    found, regulated = inferred("composition", *key, method), inferred("typed", *key, method)
    shares = {
        name: np.nan if found.q is None else float((found.q <= level).mean())
        for name, level in LEVELS.items()
    }
    sizes = size(drawn("composition", *key).one, found), size(drawn("typed", *key).one, regulated)
    return shares | {"size_ratio": sizes[0] / sizes[1]}


def sized(make: Callable[..., Draw]) -> dict[str, Callable[[int], Draw]]:
    return {
        f"depth {d}, {c} cells a type": partial(make, depth=d, cells_per_type=c) for d, c in SIZES
    }


def shuffled_noise(seed: int, zeros: float) -> Draw:
    return shuffled(sergio_noise("sergio_ds1", seed, zeros).one, seed)


RATIOS = {"auprc_ratio": "AUPRC ratio", "early_precision_ratio": "early precision ratio"}
KINDS = {
    "typed": Kind(
        sized(typed),
        {
            "auprc": "AUPRC",
            "signs": "signs",
            "specificity": "specificity",
            "changed_signs": "changed signs",
        },
        TYPED,
        measured_by("typed", typed_scores),
    ),
    "noisy": Kind(
        {f"sergio_like {zeros:g}": partial(sergio_like, zeros=zeros) for zeros in ZEROS}
        | {
            f"{name} {zeros:g}": partial(sergio_noise, name, zeros=zeros)
            for name in ("sergio_ds1", "sergio_ds2")
            for zeros in ZEROS
        },
        RATIOS,
        GLOBAL,
        measured_by("noisy", network_scores),
    ),
    "shuffled": Kind(
        {"sergio_ds1": lambda seed: shuffled(sergio("sergio_ds1", clean=False), seed)}
        | {f"sergio_ds1 {zeros:g}": partial(shuffled_noise, zeros=zeros) for zeros in ZEROS},
        RATIOS,
        GLOBAL,
        measured_by("shuffled", network_scores),
        worst="max",
    ),
    "cascades": Kind(
        {
            f"depth {depth}, {types} types": partial(cascades, depth=depth, types=types)
            for depth, types in CASCADES
        }
        | {
            f"simulated:, depth {depth}, {types} types": partial(
                simulated_cascades, depth=depth, types=types
            )
            for depth, types in CASCADES
        },
        {
            "auprc": "AUPRC",
            "chains": "chains",
            "precision": "precision at q <= .2",
            "found": "found at q <= .2",
        },
        CHAINS,
        measured_by("cascades", cascade_scores),
    ),
    "composition": Kind(
        sized(composition),
        {"q_05": "q <= .05", "q_10": "q <= .1", "size_ratio": "size ratio"},
        ("pearson", *TYPED),
        measure_composition,
        worst="max",
    ),
}


def measured(arguments: argparse.Namespace, results: Path) -> Iterator[pd.DataFrame]:
    """The rows of one draw after the other."""
    before = (
        pd.read_csv(results)
        if arguments.missing and results.exists()
        else pd.DataFrame(columns=KEYS)
    )
    there = set(before[KEYS].itertuples(index=False, name=None))
    for kind_name in arguments.kinds:
        kind = KINDS[kind_name]
        for name in kind.draws:
            if not any(fnmatchcase(name, pattern) for pattern in arguments.draws):
                continue
            for seed in arguments.seeds:
                rows: list[dict[str, Any]] = []
                for method in arguments.methods:
                    key = (kind_name, name, seed, method)
                    if method in kind.methods and key not in there:
                        rows.append(
                            dict(zip(KEYS, key, strict=True)) | kind.measure(method, name, seed)
                        )
                if kind_name in (
                    "noisy",
                    "shuffled",
                ):  # composition is compared with what was inferred for typed
                    drawn.cache_clear()
                    inferred.cache_clear()
                if rows:
                    yield pd.DataFrame(rows)


def readable(table: pd.DataFrame, name: str) -> str:
    """A line for each draw and method: the mean of each score over the seeds, and the worst in
    brackets.
    """
    kind = KINDS[name]
    lines = []
    for (draw, method), rows in table[table["kind"] == name].groupby(
        ["draw", "method"], sort=False
    ):
        line = {"draw": draw, "method": method, "seeds": len(rows)}
        for column, title in kind.metrics.items():
            known = rows[column].dropna()
            line[title] = f"{known.mean():.3f} ({known.agg(kind.worst):.3f})" if len(known) else ""
        lines.append(line)
    shown = pd.DataFrame(lines)
    shown["draw"] = shown["draw"].where(~shown["draw"].duplicated(), "")
    return f"{name}: mean over the seeds (worst)\n{shown.to_string(index=False)}"


def main() -> None:
    arguments = read_options(
        __doc__,
        kinds=all_of(KINDS),
        draws=Option(["*"], "names or patterns (default: all)"),
        seeds=[401, 402, 403, 404, 405],
        methods=all_of(METHODS),
        without=Option([], "methods to leave out", choices=METHODS),
        missing=Option(False, "measure only what the results lack"),
        output=RESULTS,
    )

    arguments.methods = [method for method in arguments.methods if method not in arguments.without]
    torch.set_num_threads(1)
    results = arguments.output / "context.csv"
    names = [name for kind in KINDS.values() for name in kind.draws]
    with threadpool_limits(1):
        for rows in measured(arguments, results):
            table = merged(results, rows, KEYS)
            order = {"kind": list(KINDS), "draw": list(dict.fromkeys(names)), "method": METHODS}
            write(results, ordered(table, **order, seed=sorted(set(table["seed"]))))
    if not results.exists():
        raise SystemExit("Nothing was measured: no draw has one of these names.")
    table = pd.read_csv(results)
    chosen = table[table["seed"].isin(arguments.seeds) & table["method"].isin(arguments.methods)]
    for kind in arguments.kinds:
        if (chosen["kind"] == kind).any():
            print(readable(chosen, kind), end="\n\n")
    print(f"wrote {results}")


if __name__ == "__main__":
    main()
