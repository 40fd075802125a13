"""pySCENIC's adjacencies, as its step `grn` writes them: TF, target, importance, between tabs.

An importance has no sign. Where our signs mean something, they are in the columns that pySCENIC's `add_cor` adds:
regulation (1 or -1) and rho (here our weight). With both there, `modules_from_adjacencies` and `pyscenic ctx` make
activating and repressing modules from them, and compute no correlations.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from grn.networks.formats.chosen import ChosenEdges


def write(chosen: ChosenEdges, path: Path) -> None:
    edges = chosen.edges
    table = {"TF": edges["source"], "target": edges["target"], "importance": edges["weight"].abs()}
    if chosen.signed:
        table |= {"regulation": np.sign(edges["weight"]).astype(int), "rho": edges["weight"]}
    pd.DataFrame(table).to_csv(path, index=False, sep="\t")
