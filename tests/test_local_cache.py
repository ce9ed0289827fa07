"""The process's deny cache and penalty box: one of each, as the settings say, and a fork's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from django.test import override_settings

from ratelimit_app import local_cache
from ratelimit_app.core.deny_cache import Denial

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = b"key"
DENIAL = Denial(
    until=10.0, cost=1, definition=b"d", identity="ip:1+user:1", marks=frozenset(), remaining=0, reset=10.0
)


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    """Begin and end without anything made."""
    local_cache._cache.start_anew()
    yield
    local_cache._cache.start_anew()


def given(**settings: Any) -> override_settings:
    """Set some of the app's settings."""
    return override_settings(RATELIMIT_APP=settings)


def fill() -> None:
    """Remember one denial, and box one key."""
    local_cache.local().denials.put(KEY, DENIAL, local_cache.local().denials.generation)
    box = local_cache.local().penalties
    if box:
        box.note(KEY, 1.0, DENIAL.identity)


def known() -> tuple[bool, bool]:
    """Whether the denial is known, and the key boxed."""
    box = local_cache.local().penalties
    return bool(local_cache.local().denials.find(KEY, 1.0)), bool(box and box.boxed_until(KEY, 1.0))


def test_the_caches_when_asked_for_again_are_the_same() -> None:
    """They are the process's, whichever door asks, so that the second denial is local (C157)."""
    with given(LOCAL_BLOCK_AFTER=1):
        fill()
        assert (True, True) == known()
        assert local_cache.local().denials is local_cache.local().denials
        assert local_cache.local().penalties is local_cache.local().penalties


def test_the_penalty_box_when_not_asked_for_is_off() -> None:
    """`LOCAL_BLOCK_AFTER` is `None` by default; without room there is none either."""
    with given():
        assert local_cache.local().penalties is None
    with given(LOCAL_BLOCK_AFTER=5, LOCAL_CACHE_SIZE=0):
        assert local_cache.local().penalties is None


def test_the_caches_when_settings_say_have_their_size_and_terms() -> None:
    """`LOCAL_CACHE_SIZE` bounds both, and `LOCAL_BLOCK_*` are the terms; a change makes them anew."""
    for size in (1, 2):
        with given(
            LOCAL_CACHE_SIZE=size, LOCAL_BLOCK_AFTER=2, LOCAL_BLOCK_WINDOW=4, LOCAL_BLOCK_PERIOD=20 + size
        ):
            cache, box = local_cache.local().denials, local_cache.local().penalties
            assert box
            for number in range(3):
                cache.put(b"%d" % number, DENIAL, cache.generation)
            assert size == cache.counters().size
            box.note(KEY, 1.0, "ip:1")
            assert box.boxed_until(KEY, 1.0) is None
            box.note(KEY, 3.0, "ip:1")
            assert 23.0 + size == box.boxed_until(KEY, 3.0)
    assert local_cache.local().penalties is None


def test_the_caches_when_the_server_is_another_know_nothing() -> None:
    """What one Redis has denied says nothing of another."""
    fill()
    with override_settings(
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost:1"}}
    ):
        assert (False, False) == known()


@pytest.mark.parametrize(("names", "expected"), [(["user:1"], (False, False)), (["user:2"], (True, True))])
def test_forgetting_when_identities_are_named_reaches_both(
    names: list[str], expected: tuple[bool, bool]
) -> None:
    """An unblock frees from the deny cache and from the penalty box."""
    with given(LOCAL_BLOCK_AFTER=1):
        fill()
        local_cache.forget(names)
        assert expected == known()


def test_clearing_when_both_are_full_empties_both() -> None:
    """And without a penalty box it clears what there is."""
    for settings in ({"LOCAL_BLOCK_AFTER": 1}, {}):
        with given(**settings):
            fill()
            local_cache.forget(None)
            assert (False, False) == known()


def test_forgetting_when_nothing_was_made_yet_does_nothing() -> None:
    """The refresh thread may come first."""
    local_cache.forget(["ip:1"])
    local_cache.forget(None)
    assert [] == local_cache._cache.made()


def test_a_name_when_no_cache_is_an_attribute_error() -> None:
    """A typing error in our own code is told as Python does."""
    with pytest.raises(AttributeError, match="denial"):
        _ = local_cache._cache.denial


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_when_its_parent_knew_denials_begins_empty_and_works() -> None:
    """A thread of the parent may have held the locks; the child has locks of its own, the parent keeps all."""
    with given(LOCAL_BLOCK_AFTER=1):
        fill()
        box = local_cache.local().penalties
        assert box
        with local_cache.local().denials._lock, box._lock:
            pid = os.fork()
            if pid == 0:  # pragma: no cover - the child is measured by its exit status
                status = 1
                try:
                    inherited = known()
                    fill()
                    status = 0 if (inherited, known()) == ((False, False), (True, True)) else 2
                finally:
                    os._exit(status)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert (True, True) == known()
