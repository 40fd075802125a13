"""How much worse are cells labelled that were sequenced less deeply than a method's training cells?

    # two sets, five splits: ten minutes of a core
    python benchmarks/depth.py
    # half a minute
    python benchmarks/depth.py --sets pbmc68k_reduced --splits 1

The splits of `classification.py` with all labels. Each method is fitted once to the training cells
as they are, and labels the test cells with all of their counts and with fewer: each count stays
with the same probability (binomial thinning; the counts that are left at 50 % are among those at 70
%). Multiplicities are made from the counts that are left, as those of the training cells from
theirs. grn, and no other method, takes counts away from half of the training cells of each batch
(`grn/cells/loading/thinning.py`).

Columns: as of `classification.py`; depth: share of the counts. Writes `depth.csv` after every fit;
rows of other sets, methods, depths and splits stay. At the end, draws accuracy and macro F1 of all
rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from arguments import PICTURES, RESULTS, Option, all_of, read_options
from classification import by_share, chosen_configurations, configurations, scores
from classifiers import METHODS, OURS, TEST, Fit, LabelledSet, labelled_set
from results_file import merged, ordered, write

from grn.cells.load import cells_in_pieces
from grn.cells.preprocessing.split import split_cells
from grn.plots.style import save

HERE = Path(__file__).parent
SETS = ("pbmc68k_reduced", "pbmc3k")
DEPTHS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1)
KEYS = ["set", "method", "depth", "split"]


COMPARED: dict[str, Fit] = {
    name: METHODS[name] for name in (OURS, "logistic regression", "on 50 components")
}


def thinned(
    one: LabelledSet, rows: np.ndarray, depths: tuple[float, ...], seed: int
) -> Iterator[LabelledSet]:
    """The cells of the rows with a share of their counts,
    for each of the depths, which decrease.
    """
    generator, before = np.random.default_rng(seed), 1.0
    few, config, cells = one.adata[rows].copy(), one.config.data, one.cells
    for depth in depths:
        few = few.copy()
        few.X.data[:] = generator.binomial(np.rint(few.X.data).astype(np.int64), depth / before)
        few.X.eliminate_zeros()
        before = depth
        read = next(
            cells_in_pieces(
                few,
                config,
                cells.vocabulary,
                classes=cells.classes,
                target_total=cells.target_total,
                depth=cells.depth,
                measures_depth=cells.measures_depth,
            ).pieces()
        )
        yield LabelledSet(one.config, read, few, read.multiplicity.toarray())


def main(argv: list[str] | None = None) -> None:
    arguments = read_options(
        __doc__,
        argv,
        sets=Option(SETS, f"default: {' '.join(SETS)}"),
        methods=all_of(COMPARED),
        splits=5,
        first_split=Option(0, "number of the first split, which is its seed"),
        output=RESULTS,
        picture=PICTURES / "depth.png",
    )

    path = arguments.output / "depth.csv"
    for name, config in chosen_configurations(arguments.sets).items():
        one = labelled_set(config)
        for split in range(arguments.first_split, arguments.first_split + arguments.splits):
            test = split_cells(one.targets, None, TEST, split).test
            known = np.setdiff1d(np.flatnonzero(one.targets >= 0), test)
            cells = list(thinned(one, test, DEPTHS, split))
            for method in arguments.methods:
                with tempfile.TemporaryDirectory() as folder:
                    predict = COMPARED[method](one, known, test, split, Path(folder))
                    found = [predict(each, np.arange(len(test))) for each in cells]
                rows = [
                    {"set": name, "method": method, "depth": depth, "split": split}
                    | scores(each, one.targets[test])
                    for depth, each in zip(DEPTHS, found, strict=True)
                ]
                print(
                    f"{name}  {method}  {split} ",
                    *(f"{row['accuracy']:.3f}" for row in rows),
                    flush=True,
                )
                table = merged(path, pd.DataFrame(rows), KEYS)
                write(
                    path,
                    ordered(table, set=list(configurations()), depth=DEPTHS, method=list(COMPARED)),
                )

    table = pd.read_csv(path)
    save(
        by_share(table, "depth", ours=OURS, label="counts of the test cells", shares=DEPTHS),
        arguments.picture,
    )
    print(f"wrote {path} and {arguments.picture}")


if __name__ == "__main__":
    main()
