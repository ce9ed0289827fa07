"""Turns: one process at a time works, nobody is locked out for good, and who waited need not work again."""

from __future__ import annotations

import threading
import time

import pytest

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store import turns
from ratelimit_app.store.turns import Turn, turn


@pytest.fixture
def key():
    """The key of the turn that these tests take."""
    return f"{conf.keys.root}:turn:work"


def test_turn_when_free_is_taken_with_a_time_to_live_and_given_back(valkey, key):
    """C108: a claim has a token and a non-zero time to live, and is gone after the work."""
    with turn("work") as mine:
        assert mine is not None
        assert len(valkey.get(key)) >= 16
        assert 0 < valkey.pttl(key) <= turns.TURN_TTL * 1_000
    assert not valkey.exists(key)


def test_turn_while_another_works_waits_and_need_not_work_again():
    """C108: of two at once, one does the work and the other sees that it is done."""
    began, waited = threading.Event(), []

    def second() -> None:
        began.set()
        with turn("work") as other:
            waited.append(other)

    with turn("work") as mine:
        assert mine is not None
        thread = threading.Thread(target=second)
        thread.start()
        began.wait(5)
        time.sleep(3 * turns.POLL_INTERVAL)
        assert waited == []
    thread.join(5)
    assert waited == [None]


def test_turn_of_a_holder_that_was_killed_goes_to_the_next_after_its_time_to_live(valkey, key):
    """A killed process keeps the others out for its time to live, and no longer."""
    valkey.set(key, "of one who was killed", px=150)
    with turn("work") as mine:
        assert mine is not None


def test_turn_of_a_holder_that_failed_goes_to_the_one_who_waits(valkey, key):
    """Work that failed is not done: whoever waited for it does it."""
    first, second = Turn("work"), Turn("work")
    assert first.take()
    timer = threading.Timer(2 * turns.POLL_INTERVAL, lambda: valkey.delete(key))
    timer.start()
    assert second.take()
    timer.join()


def test_turn_of_a_holder_that_lives_on_is_waited_for_only_so_long(monkeypatch, valkey, key):
    """A long run does not keep a second worker for ever."""
    monkeypatch.setattr(turns, "TURN_TTL", 0.1)
    monkeypatch.setattr(turns, "WAIT_SLACK", 0)
    valkey.set(key, "of one who works on", ex=60)
    with turn("work") as mine:
        assert mine is None
    assert valkey.get(key) == b"of one who works on"


def test_release_of_a_turn_that_another_has_now_leaves_it_alone(valkey, key):
    """C108: who lost the turn deletes nobody's."""
    mine = Turn("work")
    assert mine.take()
    valkey.set(key, "of another", ex=60)
    mine.renew()
    mine.release()
    assert valkey.get(key) == b"of another"


def test_renew_while_working_lengthens_the_time_to_live(valkey, key):
    """A long run keeps its turn as long as it goes on."""
    with turn("work") as mine:
        assert mine is not None
        valkey.pexpire(key, 50)
        mine.renew()
        assert valkey.pttl(key) > 1_000


def test_turn_when_redis_is_away_says_so(settings):
    """Without Redis there is no turn, and the caller is told."""
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock?db=0"}
    }
    with pytest.raises(StoreUnavailable), turn("work"):
        pytest.fail("nobody gave the turn")


def test_turn_whose_work_fails_passes_the_error_on(valkey, key):
    """An error is not hidden, and the turn is free again."""
    with pytest.raises(LookupError), turn("work"):
        raise LookupError
    assert not valkey.exists(key)
    assert not valkey.exists(f"{key}:done")
