"""metrics.csv: a row for each time that a run logs; the file is complete at every moment."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from torch import Tensor

from grn.errors import RunFolderError
from grn.io.atomic import replacing_file

METRICS = "metrics.csv"
Rows = list[dict[str, Any]]


class MetricsFile(Logger):
    """Writes metrics.csv, replacing it as a whole each time.

    Lightning's CSVLogger removes an existing file and rewrites it in place, but a resumed run needs its earlier rows.
    rows: of the run until now; new ones follow them.
    """

    def __init__(self, path: Path, rows: Rows):
        super().__init__()
        self.path, self.rows = path, list(rows)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        plain = {name: value.item() if isinstance(value, Tensor) else value for name, value in metrics.items()}
        self.rows.append({"step": step} | plain)
        self.write()

    def log_hyperparams(self, *_: Any) -> None:
        """There are none: config.yaml has every field."""

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    def write(self) -> None:
        columns = sorted(set().union(*self.rows))
        with replacing_file(self.path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def rows_before(step: int, path: Path) -> Rows:
    """The rows of a metrics.csv for steps before `step`, as they were written; none where there is no file.

    Rows with metrics of the test cells are left out: they belong after the last step. Raises RunFolderError.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if "step" not in (reader.fieldnames or ()):
                raise KeyError("step")
            rows = [{name: value for name, value in row.items() if value} for row in reader]
        return [row for row in rows if int(row["step"]) < step and not any(name.startswith("test/") for name in row)]
    except (ValueError, KeyError, AttributeError, csv.Error) as error:
        raise RunFolderError(f"{path} is damaged; move it away to resume without its rows.") from error
