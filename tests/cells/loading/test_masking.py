"""Random numbers by counter."""

import subprocess
import sys

import numpy as np
import pytest

from grn.cells.loading.batches import cell_states, gene_bits, threshold, uniform


def test_a_cells_numbers_do_not_depend_on_its_batch():
    together = uniform(5, 0, 2, np.array([3, 8, 1]), 40)
    for row, cell in enumerate([3, 8, 1]):
        np.testing.assert_array_equal(uniform(5, 0, 2, np.array([cell]), 40)[0], together[row])
    np.testing.assert_array_equal(uniform(5, 0, 2, np.array([3]), 10)[0], together[0, :10])


@pytest.mark.parametrize("changed", [(6, 0, 2, 3), (5, 1, 2, 3), (5, 0, 3, 3), (5, 0, 2, 4)])
def test_every_part_of_the_counter_counts(changed):
    seed, stream, epoch, cell = changed
    one = uniform(5, 0, 2, np.array([3]), 2000)[0]
    other = uniform(seed, stream, epoch, np.array([cell]), 2000)[0]
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    assert not np.isin(one, other).any()


def test_the_numbers_are_uniform_and_independent():
    numbers = uniform(0, 0, 0, np.arange(300), 300)
    assert numbers.min() >= 0 and numbers.max() < 1
    share = np.histogram(numbers, bins=20, range=(0, 1))[0] / numbers.size
    assert np.abs(share - 0.05).max() < 6 * np.sqrt(0.05 * 0.95 / numbers.size)
    # Row and column means have the spread of independent numbers: sd of a mean of 300 is 1 / sqrt(12 * 300).
    for axis in (0, 1):
        assert 0.8 < numbers.mean(axis=axis).std() * np.sqrt(12 * 300) < 1.25


def test_another_process_draws_the_same():
    code = (
        "import numpy as np; from grn.cells.loading.batches import uniform; "
        "print(uniform(7, 1, 4, np.array([9]), 3).tolist())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == str(uniform(7, 1, 4, np.array([9]), 3).tolist())


def test_the_numbers_stay_as_they_were_released():
    """Resumed runs depend on them: a change is a change of format."""
    np.testing.assert_allclose(uniform(0, 0, 0, np.array([0]), 3)[0], RELEASED, rtol=0, atol=1e-15)


RELEASED = [0.47141042966848024, 0.7247520786262142, 0.3030308965844536]


def test_a_threshold_is_the_number_below_which_it_is():
    states = cell_states(5, 0, 2, np.array([3, 8]))
    numbers, bits = uniform(5, 0, 2, np.array([3, 8]), 500), gene_bits(states, 500)
    for p in (0.0, 0.3, 0.03, float(numbers[1, 7]), np.nextafter(float(numbers[0, 4]), 1), 1 - 2.0**-53):
        np.testing.assert_array_equal(bits < threshold(p), numbers < p)
    np.testing.assert_array_equal(gene_bits(states[1], 500), bits[1])
