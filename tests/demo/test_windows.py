"""The measure by which the demo judges the limiter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo_project.rehearsal.windows import most_by_fixed_windows, most_in_window


@pytest.mark.parametrize(
    ("times", "most"),
    [
        ([], 0),
        ([7], 1),
        ([0, 10], 1),
        ([0, 9], 2),
        ([0, 1, 2, 10, 11, 12], 3),
        ([9, 10, 11, 0], 3),
        ([5, 5, 5], 3),
    ],
)
def test_most_in_window_when_times_are_given_then_counts_a_half_open_window(times, most):
    """A window of 10 holds what is less than 10 apart, in whatever order it comes."""
    assert most_in_window(times, 10) == most


@given(st.lists(st.integers(0, 200)), st.integers(1, 60))
def test_most_in_window_when_compared_with_counting_each_window_then_agrees(times, period):
    """The walk finds what counting every window by itself finds."""
    counted = [sum(end - period < time <= end for time in times) for end in times]

    assert most_in_window(times, period) == max(counted, default=0)


def test_most_by_fixed_windows_when_bursts_surround_a_boundary_then_gives_twice_the_limit():
    """C34: what fixed windows would let through, which the demo's report shows beside what was admitted."""
    tries = [*range(995, 1_000), *range(1_000, 1_005)]

    assert most_by_fixed_windows(tries, limit=3, period=1_000) == 6


def test_most_by_fixed_windows_when_one_window_is_overfull_then_gives_the_limit():
    """Within one window a fixed window keeps its limit."""
    assert most_by_fixed_windows(range(100), limit=3, period=1_000) == 3
