"""Writes planted draws, observed cells and cells with types to .npz files, for machines without anndata and grn.

python draws.py DIR 401,402 typed,cascades,composition,noisy     # planted; a second each
python draws.py DIR 0 observed,types                             # of the folder that GRN_BENCHMARK_DATA names
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def planted(folder, kind, seed):
    import context

    for name, make in context.KINDS[kind].draws.items():
        draw = make(seed)
        one, labels = draw.one, list(dict.fromkeys(draw.one.labels or ["all"]))
        regulators, genes = list(one.regulators), {gene: i for i, gene in enumerate(one.genes)}
        table = draw.by_type if draw.by_type is not None and len(draw.by_type) else one.reference
        truth = np.zeros((len(labels), len(regulators), len(genes)), np.int8)  # 2: an edge of unknown sign
        for edge in table.to_dict("records"):
            rows = [labels.index(edge["cell_type"])] if "cell_type" in edge else range(len(labels))
            truth[rows, regulators.index(edge["source"]), genes[edge["target"]]] = edge["sign"] or 2
        state = [labels.index(a) for a in one.labels] if one.labels else np.zeros(one.cells, int)
        path = folder / f"{kind}_{name.replace(' ', '').replace(',', '_').replace(':', '')}_{seed}.npz"
        counts = one.matrix.astype(np.uint16)
        np.savez_compressed(path, counts=counts, regulators=[genes[r] for r in regulators], state=state, truth=truth)


def observed(folder, *_):
    """Regulators, and the 600 most variable of the other genes; few factors were measured on Papalexi's cells."""
    import anndata
    from sets import folder as data

    factors = (data() / "human_tfs.txt").read_text().split()
    for name, file in {"kang": "kang_ifnb", "papalexi": "papalexi_eccite_thp1", "pbmc3k": "pbmc3k"}.items():
        cells = anndata.read_h5ad(data() / f"{file}.h5ad")
        x, tf = cells.X.toarray().astype(np.float32), np.isin(cells.var_names, factors)
        if name == "papalexi":
            tf |= np.random.default_rng(1).random(len(tf)) < 0.35
        seen, values = (x > 0).mean(0) > 0.05, np.log1p(x / x.sum(1, keepdims=True) * np.median(x.sum(1)))
        targets = np.where(seen & ~tf)[0]
        targets = targets[np.argsort(-(values[:, targets].var(0) / (values[:, targets].mean(0) + 0.1)))[:600]]
        keep = np.r_[np.where(seen & tf)[0], targets]
        np.savez_compressed(folder / f"observed_{name}.npz", counts=x[:, keep].astype(np.uint16), tf=tf[keep])


def types(folder, *_):
    import classification
    from classification_parts.methods import labelled_set

    from grn.data.preprocessing.split import split_cells

    for name in ("pbmc68k_reduced", "pbmc3k"):
        one, rows = labelled_set(classification.configurations()[name]), {}
        for split in range(5):
            test = rows[f"test_{split}"] = split_cells(one.targets, None, 0.0, classification.TEST, split).test
            rest = np.setdiff1d(np.flatnonzero(one.targets >= 0), test)
            for share in (1.0, 0.1):
                rows[f"known_{share}_{split}"] = classification.labelled_rows(one.targets, rest, share, split)
        counts = one.adata.X.toarray().astype(np.uint16)
        np.savez_compressed(
            folder / f"types_{name}.npz", counts=counts, regulators=one.cells.regulators, targets=one.targets, **rows
        )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True, parents=True)
    for kind in sys.argv[3].split(","):
        for seed in map(int, sys.argv[2].split(",")):
            {"observed": observed, "types": types}.get(kind, planted)(folder, kind, seed)
