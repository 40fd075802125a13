"""What the benchmark of perturbations computes from known changes."""

from __future__ import annotations

import numpy as np
import perturb
import pytest


def test_propagation_adds_the_paths_and_keeps_what_is_knocked_out():
    # A (0) lowers B (1), B raises C (2); all are regulators, at level 1.
    coefficients = np.array([[0.0, 0, 0], [-0.5, 0, 0], [0, 0.4, 0]])
    regulators, level = np.arange(3), np.ones(3)
    one, two, many = (perturb.simple_effects(coefficients, regulators, level, steps)[:, 0] for steps in (1, 2, 9))
    np.testing.assert_allclose(one, [0, 0.5, 0])
    np.testing.assert_allclose(two, [0, 0.5, 0.2])
    np.testing.assert_allclose(many, two)


def test_true_targets_in_front_score_one_and_signs_are_those_of_the_edge():
    truth = np.array([[0, 0], [0, 0], [1, 0], [-1, 1]])
    regulators = np.array([0, 1])
    effect = np.array([[9.0, 0.1], [0.1, 9.0], [-2.0, 0.2], [1.0, -3.0]])  # of knock-outs: opposite to the edges
    found = perturb.target_scores(effect, np.ones(4), truth, regulators)
    assert found["auroc"] == 1 and found["signs"] == found["signs_of_all"] == 1
    assert perturb.target_scores(-effect, np.ones(4), truth, regulators)["signs_of_all"] == 0


def test_equal_changes_correlate_fully_and_the_knocked_out_gene_does_not_count():
    measured = np.random.default_rng(0).normal(size=(12, 12))
    changed = measured.copy()
    np.fill_diagonal(changed, 100)
    found = perturb.measured_scores(changed, measured)
    assert found == pytest.approx(dict.fromkeys(found, 1.0))
    assert perturb.measured_scores(-measured, measured)["directions"] == 0
