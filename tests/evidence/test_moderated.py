"""Moderated variances: as sure as their spread says, and no more than all of them are."""

import numpy as np
import pytest

from grn.evidence.moderated import moderated


def drawn(prior, freedom=2.0, count=20000):
    generator = np.random.default_rng(3)
    true = 0.5 * (prior / generator.chisquare(prior, count) if prior else np.ones(count))
    return true * generator.chisquare(freedom, count) / freedom, np.full(count, freedom)


@pytest.mark.parametrize("prior", [4, 20])
def test_the_degrees_of_freedom_are_those_that_variances_were_drawn_with(prior):
    variance, freedom = drawn(prior)
    degrees = moderated(variance, freedom, np.zeros(len(variance)), np.inf)[1]
    assert 0.6 * prior < degrees[0] - 2 < 1.5 * prior


def test_variances_that_differ_by_chance_alone_become_nearly_one():
    variance, freedom = drawn(0)
    found, degrees = moderated(variance, freedom, np.zeros(len(variance)), 30.0)
    assert 0.48 < found.mean() < 0.52
    assert found.std() < 0.1 * variance.std()
    assert (degrees == 30).all(), "no more than all of them have"


def test_variances_that_grow_with_effects_are_told_as_well():
    variance, freedom = drawn(0)
    size = np.abs(np.random.default_rng(4).normal(size=len(variance))) * 3
    found, degrees = moderated(variance * (1 + size**2), freedom, size, np.inf)
    assert degrees[0] > 30
    assert np.quantile(np.abs(found / (0.5 * (1 + size**2)) - 1), 0.9) < 0.15


def test_a_large_effect_is_no_reason_for_a_smaller_variance():
    variance, freedom = drawn(0)
    size = np.abs(np.random.default_rng(4).normal(size=len(variance))) * 3
    found, _ = moderated(variance / (1 + size**2), freedom, size, np.inf)
    assert found[size > 6].mean() > 3 * (variance / (1 + size**2))[size > 6].mean()


def test_a_unit_changes_nothing_else():
    variance, freedom = drawn(4)
    size = np.zeros(len(variance))
    one, many = (moderated(each * variance, freedom, size, 50.0) for each in (1, 1e4))
    np.testing.assert_allclose(1e4 * one[0], many[0])
    np.testing.assert_allclose(one[1], many[1])


def test_one_variance_is_taken_as_it_is():
    found, degrees = moderated(np.array([2.0]), np.array([3.0]), np.zeros(1), 3.0)
    assert found.tolist() == [2.0] and degrees.tolist() == [3.0]
