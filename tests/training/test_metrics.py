"""Metrics of test cells: of classes and objectives that only some cells, or none, have something
for.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch.nn import functional as F

from grn.bags import Bags, Batch
from grn.cells.load import load_cells
from grn.cells.simulated.cells import simulate
from grn.config.files import change_config
from grn.model.regulation import Prediction
from grn.runtime.messages import silent
from grn.training import run
from grn.training.metrics import Scored, metrics_of, scalars

CLASSES = 4


def part(labels: list[int], logits: torch.Tensor | None) -> tuple[Prediction, Batch]:
    """Some cells and their predictions: genes by their mean."""
    count = len(labels)
    values = torch.rand(count, 12, generator=torch.Generator().manual_seed(count))
    batch = Batch(Bags(values), torch.arange(count), torch.tensor(labels), torch.full((count,), -1))
    return Prediction(torch.zeros(count, 12), torch.zeros(count, 6), logits), batch


def right(labels: list[int]) -> torch.Tensor:
    """Logits of predictions that are all right, and sure."""
    return 9.0 * F.one_hot(torch.tensor(labels).clamp(min=0), CLASSES).float()


@pytest.fixture
def evaluated(make_model):
    def call(*parts, genes: bool = False) -> dict[str, torch.Tensor]:
        model = make_model(dtype=torch.float32, genes_train=genes)
        return metrics_of([Scored.of(prediction, batch, model) for prediction, batch in parts])

    return call


def test_means_over_classes_are_those_of_scikit_learn_over_the_classes_with_cells(evaluated):
    labels = [0, 3, 0, 3, 1, 1, 0, 3, 1, 0]
    logits = torch.randn(len(labels), CLASSES, generator=torch.Generator().manual_seed(0))
    truth, scores = np.array(labels), logits.softmax(-1).numpy()
    seen = {"labels": [0, 1, 3], "average": "macro", "zero_division": 0}
    expected = {
        "auroc": np.mean([roc_auc_score(truth == each, scores[:, each]) for each in (0, 1, 3)]),
        "macro_f1": f1_score(truth, scores.argmax(1), **seen),
        "cell_type_loss": float(F.cross_entropy(logits, torch.tensor(labels))),
        "accuracy": (scores.argmax(1) == truth).mean(),
    }
    batches = [part(labels[:4], logits[:4]), part([-1], logits[:1]), part(labels[4:], logits[4:])]
    for parts in ([part(labels, logits)], batches):
        found = evaluated(*parts)
        of_test = {f"test/{name}": pytest.approx(value) for name, value in expected.items()}
        assert scalars(found, "test") == of_test
        assert found["confusion"].sum() == 10


def test_what_no_cell_has_does_not_count(evaluated):
    unlabelled = part([-1, -1], right([0, 1]))
    assert evaluated(unlabelled) == {}
    assert float(evaluated(unlabelled, part([0, 1], right([0, 1])))["accuracy"]) == 1


def test_genes_count_in_sds_over_all_cells(evaluated, make_model):
    """The r2 is of the test cells' own variance around their mean."""
    prediction, batch = part([0, 1, 2, 3, 1], right([0, 1, 2, 3, 1]))
    model = make_model(dtype=torch.float32)
    guess = replace(prediction, multiplicity=batch.bags.multiplicity + 0.2)
    found = evaluated((guess, batch), genes=True)
    mean, sd = model.identity.mean, model.identity.sd
    error = (0.2 / sd).square().mean()
    assert float(found["masked_multiplicity_loss"]) == pytest.approx(float(error), rel=1e-4)
    spread = ((batch.bags.multiplicity - mean) / sd).var(correction=0)
    assert float(found["r2"]) == pytest.approx(float(1 - error / spread), rel=1e-4)


def test_a_prediction_that_is_nan_stays_nan(evaluated):
    prediction, batch = part([0, 1], right([0, 1]))
    spoiled = replace(prediction, multiplicity=torch.full((2, 12), torch.nan))
    assert evaluated((spoiled, batch), genes=True)["masked_multiplicity_loss"].isnan()


def test_a_run_whose_test_cells_have_no_label_goes_through(make_config, tmp_path):
    """Donors decide the split here, so that no label does."""
    config = change_config(make_config(max_steps=2), {"data.group_key": "donor"})
    adata = simulate(config.data.simulated)
    adata.obs["donor"] = np.where(np.arange(80) % 2, "a", "b")
    test = load_cells(config.data, config.trainer.seed, adata)[1].test
    adata.obs.loc[adata.obs_names[test], "cell_type"] = None
    result = run.train(config, tmp_path / "run", adata=adata, say=silent)
    assert "accuracy" not in result.metrics and np.isfinite(result.metrics["error"])
