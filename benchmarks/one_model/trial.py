"""What the one model reaches: error from regulators alone, planted networks, cell types, time.

    python draws.py DIR 401,402 typed,cascades,composition,noisy     # writes planted draws, observed cells and types
    python trial.py DIR observed                # minutes on a GPU; kang, pbmc3k, papalexi by three splits
    python trial.py DIR planted 'typed*'        # a minute a draw and core; tables beside benchmarks/results/context.csv
    python trial.py DIR types                   # pbmc68k_reduced, five splits: half a minute each

Options: --device cuda, --processes 4, --without summary|counting|sparse|members|masked. Every row is printed as it is
found, and at the end the mean and the worst over seeds or splits. The planted weight is `fit.effects`; `net` are the
slopes of the signed blocks alone.
"""

import argparse
import multiprocessing
import time
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import numpy as np
import score
import torch
import yardsticks
from fit import Cells, Settings, choose, effects, fit, folds, labels_of, network, predict
from model import Shape

LONG = dict(steps=1500, batch=256, targets=256)  # of observed cells
WITHOUT = {
    "summary": (dict(summary=0), {}),
    "masked": (dict(masked=0.0), {}),
    "members": (dict(members=1), {}),
    "two heads": (dict(heads=1), {}),
}


def log1p_normalised(counts, regulators):
    """Multiplicities [C, N], log totals [C], what one count adds [C], and the variance that counting makes, [R]."""
    total = counts.sum(1, keepdims=True).clip(1)
    unit = np.median(total) / total
    of = counts[:, regulators]
    noise = ((unit / (1 + of * unit)) ** 2 * of).mean(0)
    return np.log1p(counts * unit), np.log(total[:, 0]), unit[:, 0], noise


def observed(path, split, options):
    f = np.load(path)
    counts, tf, to = f["counts"].astype(np.float32), f["tf"], partial(torch.tensor, device=options.device)
    x, y, rows, values, depth, mean, sd = yardsticks.prepared(counts, tf, split, options.device)
    test, known = rows[2], torch.cat(rows[:2])

    def error(p):
        return float((p - y[test]).square().mean() / y[test].square().mean())

    mlps = [yardsticks.mlp(x, y, rows, seed) for seed in range(5)]
    noise = to(log1p_normalised(counts[known.cpu().numpy()], np.flatnonzero(tf))[3])
    if "counting" in options.without:
        noise = None
    cells = Cells(values[known], to(np.flatnonzero(tf)), depth[known], noise=noise)
    started = time.time()
    penalties = choose(cells, folds(cells, 5, 0))
    shape, settings = shapes(options, genes=len(tf), regulators=int(tf.sum())), Settings(**LONG)
    model, _ = fit(cells, shape, settings, penalties)
    seconds = time.time() - started
    found = predict(
        model,
        Cells(values[test], cells.regulators, depth[test], like=cells),
        torch.arange(len(test), device=options.device),
    )
    found = ((found * cells.sd + cells.mean - mean) / sd)[..., to(~tf)]
    return {
        "set": path.stem,
        "ridge": error(yardsticks.ridge(x[:, :-1], y, rows)),
        "MLP": error(mlps[0]),
        "5 MLPs": error(torch.stack(mlps).mean(0)),
        "one member": float(np.mean([error(p) for p in found])),
        "one model": error(found.mean(0)),
        "seconds": seconds,
    }


def planted(path, _, options):
    f = np.load(path)
    x, depth, _, noise = log1p_normalised(f["counts"].astype(np.float32), f["regulators"])
    to, pooled = partial(torch.tensor, device=options.device), path.name.startswith("noisy")
    state = None if pooled else to(f["state"].astype(np.int64))
    cells = Cells(
        to(x),
        to(f["regulators"]),
        to(depth),
        state,
        1.0,
        None if "counting" in options.without else to(noise.astype(np.float32)),
    )
    started = time.time()
    penalties = choose(cells, folds(cells, 5, 0), **(dict(forms=((0.0, 1.0),)) if "sparse" in options.without else {}))
    model, _ = fit(
        cells,
        shapes(options, genes=x.shape[1], regulators=len(f["regulators"]), states=cells.states),
        Settings(),
        penalties,
    )
    seconds = time.time() - started
    of = score.typed if path.name.startswith("typed") else lambda w, *rest: score.overall(w.mean(0), *rest)
    weight, net = effects(model, cells).cpu().numpy(), network(model).cpu().numpy()
    if path.name.startswith("composition"):
        return {
            "set": path.stem.rsplit("_", 1)[0],
            "rms weight": float(np.sqrt((weight**2).mean())),
            "rms net": float(np.sqrt((net**2).mean())),
        }
    both = {k: float(v) for k, v in of(weight, f["truth"], f["regulators"]).items()}
    both |= {
        f"net {k}": float(v)
        for k, v in of(net, f["truth"], f["regulators"]).items()
        if k in ("auprc", "specificity", "ratio")
    }
    return {"set": path.stem.rsplit("_", 1)[0]} | both | {"seconds": seconds}


def types(path, split, options):
    from sklearn.metrics import f1_score

    f, to = np.load(path), partial(torch.tensor, device=options.device)
    counts, y = f["counts"].astype(np.float32), f["targets"]
    x, depth, unit, _ = log1p_normalised(counts, f["regulators"])
    test, known = f[f"test_{split}"], f[f"known_{options.labels}_{split}"]
    train, labels = np.setdiff1d(np.arange(len(y)), test), np.full(len(y), -1)
    labels[known] = y[known]
    whole = (labels[train] >= 0).all()  # else a cell's state is not known, and the genes' prediction has one state

    def make(rows, like=None):
        return Cells(
            to(x[rows]),
            to(f["regulators"]),
            to(depth[rows]),
            state=to(labels[rows]) if whole and like is None else None,
            like=like,
            labels=to(labels[rows]),
            counts=to(counts[rows]),
            count_unit=to(unit[rows]),
        )

    cells = make(train)
    started = time.time()
    shape = shapes(
        options,
        genes=x.shape[1],
        regulators=len(f["regulators"]),
        members=6,
        states=cells.states,
        types=int(y.max()) + 1,
    )
    model, _ = fit(cells, shape, Settings(seed=split), choose(cells, folds(cells, 6, split)))
    seconds, found = time.time() - started, labels_of(model, make(test, cells)).argmax(1).cpu().numpy()
    macro = f1_score(y[test], found, labels=np.unique(y[test]), average="macro", zero_division=0)
    return {
        "set": path.stem,
        "accuracy": float((found == y[test]).mean()),
        "macro F1": float(macro),
        "seconds": seconds,
    }


def shapes(options, **sizes):
    for name in options.without:
        sizes |= WITHOUT.get(name, ({}, {}))[0]
    return Shape(**sizes)


def run(task):
    what, path, split, options = task
    torch.set_num_threads(options.threads)
    row = {"observed": observed, "planted": planted, "types": types}[what](path, split, options)
    print("  ".join(f"{k} {v:.4f}" if isinstance(v, float) else str(v) for k, v in row.items()), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=("observed", "planted", "types"))
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--labels", default="1.0", help="share of the labels, of types: 1.0 or 0.1")
    parser.add_argument("--without", nargs="*", default=[])
    options = parser.parse_args()
    first = {"observed": ("observed",), "planted": ("typed", "cascades", "composition", "noisy"), "types": ("types",)}[
        options.what
    ]
    paths = [
        p
        for p in sorted(options.folder.glob("*.npz"))
        if p.name.startswith(first) and fnmatchcase(p.stem, options.pattern)
    ]
    splits = {"observed": 3, "planted": 1, "types": 5}[options.what]
    tasks = [(options.what, path, split, options) for path in paths for split in range(splits)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        rows = pool.map(run, tasks, chunksize=1)
    for name in dict.fromkeys(row["set"] for row in rows):
        of = [row for row in rows if row["set"] == name]
        print(
            name,
            "  ".join(
                f"{k} {np.mean([r[k] for r in of]):.3f} ({min(r[k] for r in of):.3f} to {max(r[k] for r in of):.3f})"
                for k in of[0]
                if k != "set"
            ),
        )


if __name__ == "__main__":
    main()
