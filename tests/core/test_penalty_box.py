"""The penalty box: never for too few denials, at the latest within nine tenths of the window, for its period."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.penalty_box import PenaltyBox, Terms

KEY = b"key"
TERMS = Terms(after=3, window=10.0, period=300.0)


def box_of(*times: float, terms: Terms = TERMS, size: int = 10) -> PenaltyBox:
    """Give a box that has noted denials of `KEY` at these times."""
    box = PenaltyBox(size, terms)
    for now in times:
        box.note(KEY, now, "ip:1")
    return box


def test_a_box_when_too_few_were_denied_is_open() -> None:
    """Two denials are not three."""
    assert box_of(1.0, 2.0).boxed_until(KEY, 2.0) is None


def test_a_box_when_enough_were_denied_closes_for_its_period() -> None:
    """From the denial that was one too many, to the instant that the period is over."""
    box = box_of(1.0, 2.0, 3.0)
    assert 303.0 == box.boxed_until(KEY, 3.0)
    assert 303.0 == box.boxed_until(KEY, 302.999)
    assert box.boxed_until(KEY, 303.0) is None
    assert box.boxed_until(b"another", 3.0) is None


def test_a_box_when_one_denial_is_enough_closes_at_once() -> None:
    """`LOCAL_BLOCK_AFTER = 1`."""
    assert 301.0 == box_of(1.0, terms=TERMS._replace(after=1)).boxed_until(KEY, 1.0)


def test_a_box_when_more_is_denied_meanwhile_is_not_closed_for_longer() -> None:
    """The process's own answers do not lengthen it, and do not count for the next one."""
    box = box_of(1.0, 2.0, 3.0, *(float(now) for now in range(4, 303)))
    assert 303.0 == box.boxed_until(KEY, 302.0)
    box.note(KEY, 303.0, "ip:1")
    box.note(KEY, 304.0, "ip:1")
    assert box.boxed_until(KEY, 304.0) is None
    box.note(KEY, 305.0, "ip:1")
    assert 605.0 == box.boxed_until(KEY, 305.0)


@given(
    gaps=st.lists(st.integers(0, 300), max_size=60),
    after=st.integers(1, 8),
    window=st.sampled_from([10.0, 2.5, 40.0]),
)
def test_a_box_when_denials_come_at_any_times_keeps_its_bounds(
    gaps: list[int], after: int, window: float
) -> None:
    """Whoever is boxed had `after` denials within the window, and nobody is let off who had them in 0.9 of it."""
    box = PenaltyBox(10, Terms(after, window, 7.0))
    now, times = 0.0, list[float]()
    for gap in gaps:
        now += gap / 64
        if box.boxed_until(KEY, now):
            continue
        times.append(now)
        box.note(KEY, now, "ip:1")
        if boxed := box.boxed_until(KEY, now):
            assert now + 7.0 == boxed
            assert after <= sum(time > now - window for time in times)
            times.clear()
        else:
            assert after > sum(time > now - 0.9 * window for time in times)


def test_a_box_when_a_thread_is_late_counts_its_denial_as_new() -> None:
    """Threads read the clock in one order and may come in another."""
    assert 310.5 == box_of(11.0, 12.0, 10.5).boxed_until(KEY, 12.0)


@pytest.mark.parametrize("names", [["ip:1"], ["user:1+ip:1"], ["user:3", "user:1"]])
def test_a_box_when_its_identity_is_forgotten_opens(names: list[str]) -> None:
    """A reset or an unblock frees whoever is boxed, and forgets what was counted."""
    box = PenaltyBox(10, TERMS)
    for now in (1.0, 2.0, 3.0):
        box.note(KEY, now, "user:1+ip:1")
        box.note(b"other", now, "user:2+ip:2")
    box.forget(names)
    assert box.boxed_until(KEY, 3.0) is None
    assert 303.0 == box.boxed_until(b"other", 3.0)
    box.note(KEY, 4.0, "user:1+ip:1")
    assert box.boxed_until(KEY, 4.0) is None


def test_a_box_when_cleared_opens_for_all() -> None:
    """Nothing is left."""
    box = box_of(1.0, 2.0, 3.0)
    box.clear()
    assert box.boxed_until(KEY, 3.0) is None


def test_a_box_when_more_are_denied_than_it_has_room_for_keeps_its_size() -> None:
    """It counts as many as it may, and whoever is boxed stays before those who are only counted."""
    box = box_of(1.0, 2.0, 3.0, size=4)
    for number in range(100):
        box.note(b"%d" % number, 4.0, "ip:2")
    assert 4 == len(box._rows) == len(box._slots)
    assert 303.0 == box.boxed_until(KEY, 4.0)


def test_a_box_when_its_size_is_zero_boxes_nobody() -> None:
    """There is no room to count in."""
    assert box_of(1.0, 2.0, 3.0, size=0).boxed_until(KEY, 3.0) is None


@pytest.mark.usefixtures("_restless")
def test_a_box_when_threads_note_together_counts_each_once() -> None:
    """Eight denials close a box of eight and not one of nine, whichever thread is first to count a key."""
    boxes = [PenaltyBox(5_000, Terms(after, 10.0, 5.0)) for after in (8, 9)]
    keys, ready = [b"%d" % number for number in range(3_000)], threading.Barrier(8)

    def note() -> None:
        ready.wait()
        for key in keys:
            for box in boxes:
                box.note(key, 1.0, "ip:1")

    threads = [threading.Thread(target=note) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [{6.0}, {None}] == [{box.boxed_until(key, 1.0) for key in keys} for box in boxes]
