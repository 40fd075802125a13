"""Metrics of classes and objectives that only some cells, or none, have something for.

Run as a script, this file is one of two processes of which only the second has labelled cells.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from grn.cells.load import load_cells
from grn.errors import DataError
from grn.model.objectives import Loss
from grn.training.metrics import Evaluation

CLASSES = 4
WEIGHTS = {"cell_type": 0.5, "property": 2.0}


def part(labels: list[int], logits: torch.Tensor, *, property: float | None = None):
    """Arguments of `update` for some cells: their losses are 1 a labelled cell, and `property` for one cell."""
    labels = torch.tensor(labels)
    known = (labels >= 0).sum()
    losses = {
        "cell_type": Loss(known.float(), known),
        "property": Loss(torch.tensor(property or 0.0), torch.tensor(int(property is not None))),
    }
    return SimpleNamespace(logits=logits), SimpleNamespace(labels=labels), None, losses


def right(labels: list[int]) -> torch.Tensor:
    """Logits of predictions that are all right, and sure."""
    return 9.0 * torch.nn.functional.one_hot(torch.tensor(labels).clamp(min=0), CLASSES).float()


def evaluated(*parts, objectives=("cell_type", "property"), alone=True) -> dict[str, torch.Tensor]:
    evaluation = Evaluation(list(objectives), WEIGHTS, CLASSES, alone=alone)
    for prediction, batch, model, losses in parts:
        evaluation.update(prediction, batch, model, {name: losses[name] for name in objectives})
    return evaluation.compute()


def test_means_over_classes_are_those_of_scikit_learn_over_the_classes_with_cells():
    generator = torch.Generator().manual_seed(0)
    labels = [0, 3, 0, 3, 1, 1, 0, 3, 1, 0]
    logits = torch.randn(len(labels), CLASSES, generator=generator)
    truth, scores = np.array(labels), logits.softmax(-1).numpy()
    expected = np.mean([roc_auc_score(truth == label, scores[:, label]) for label in (0, 1, 3)])
    batches = [part(labels[:4], logits[:4]), part([-1], logits[:1]), part(labels[4:], logits[4:])]
    for parts in ([part(labels, logits)], batches):
        found = evaluated(*parts)
        assert float(found["auroc"]) == pytest.approx(expected)
        assert float(found["macro_f1"]) == pytest.approx(
            f1_score(truth, scores.argmax(1), average="macro", labels=[0, 1, 3], zero_division=0)
        )


def test_a_loss_that_no_cell_has_does_not_count():
    unlabelled = [-1, -1, -1]
    found = evaluated(part(unlabelled, right(unlabelled), property=3.0), alone=False)
    assert {name: float(value) for name, value in found.items()} == {"property_loss": 3.0, "loss": 6.0}
    found = evaluated(part([0, 1], right([0, 1])), alone=False)
    assert "property_loss" not in found and float(found["loss"]) == 0.5 * float(found["cell_type_loss"]) == 0.5


def test_losses_are_means_over_what_counts_in_all_batches():
    first, second = part([0, 1, -1], right([0, 1, -1])), part([-1], right([-1]), property=5.0)
    second[3]["cell_type"] = Loss(torch.tensor(4.0), torch.tensor(2))
    found = evaluated(first, second)
    assert float(found["cell_type_loss"]) == pytest.approx((2 + 4) / (2 + 2))
    assert float(found["loss"]) == pytest.approx(0.5 * 1.5 + 2.0 * 5.0)


def test_a_loss_that_is_nan_stays_nan():
    spoiled = part([0], right([0]), property=float("nan"))
    assert evaluated(spoiled)["loss"].isnan()


def test_no_loss_at_all_is_nan_after_training_and_one_sentence_in_training():
    unlabelled = part([-1], right([-1]))
    assert evaluated(unlabelled, objectives=["cell_type"])["loss"].isnan()
    with pytest.raises(DataError, match="No validation cell has a label or value that the objectives use") as caught:
        evaluated(unlabelled, objectives=["cell_type"], alone=False)
    assert "\n" not in str(caught.value)


def test_a_run_whose_validation_cells_have_no_label_goes_through(make_config, tmp_path, monkeypatch):
    from grn.training import run

    config = make_config()
    cells, split = load_cells(config.data, seed=config.trainer.seed)
    labels = cells.labels.copy()
    labels[np.concatenate([split.validation, split.test])] = -1
    unlabelled = replace(cells, labels=labels)
    monkeypatch.setattr(run, "load_cells", lambda *args, **options: (unlabelled, split))
    result = run.train(config, tmp_path / "run", say=lambda line: None)
    metrics = pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert np.isfinite(metrics["validation/loss"].dropna()).all() and metrics["validation/loss"].notna().sum() == 3
    assert not {"validation/accuracy", "validation/cell_type_loss", "test/auroc"} & set(metrics)
    assert np.isfinite(result.metrics["loss"]) and "accuracy" not in result.metrics


def test_processes_without_labelled_cells_take_part(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
    done = subprocess.run([*command, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    labels = [0, 0, 1, 2]
    expected = evaluated(part(labels, right(labels), property=3.0))
    for rank in (0, 1):
        for found in json.loads((tmp_path / f"{rank}.json").read_text()):
            assert found == {name: value.tolist() for name, value in expected.items()}


def main(folder: str) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    evaluation, found = Evaluation(["cell_type", "property"], WEIGHTS, CLASSES), []
    for first in ([[-1, -1]], []):  # the first process has no labelled cells, then no cells
        evaluation.reset()
        for labels in [first, [[0, 0], [1, 2]]][rank]:
            evaluation.update(*part(labels, right(labels), property=3.0 if labels == [0, 0] else None))
        found.append({name: value.tolist() for name, value in evaluation.compute().items()})
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(found, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
