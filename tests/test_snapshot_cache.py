"""The snapshot of a process: loaded from Redis, refreshed beside the requests, kept when Redis is away."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from ipaddress import ip_address
from typing import Any

import pytest
from django.test import override_settings

from ratelimit_app import snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.access_lists import NEVER
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.snapshot import EMPTY, dump
from ratelimit_app.snapshot_cache import SnapshotCache
from ratelimit_app.store import networks, notices
from ratelimit_app.store.processes import processes

GRAB = {"name": "grab", "rate": "5/s", "key": "ip"}
OFFLINE = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/at-all.sock?db=0"},
}


def told(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    """Give our log lines about something; the process's own refresh may be writing others."""
    return [line for record in caplog.records if what in (line := record.getMessage())]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> SnapshotCache:
    """Give a process's cache of its own, which refreshes only when told to; the process's real one rests."""
    monkeypatch.setattr(snapshot_cache._cache, "refresh", lambda: None)
    made = SnapshotCache()
    made._periodic.start = lambda: None  # type: ignore[method-assign]
    return made


def publish(valkey: Any, version: str = "e:1", *rules: dict[str, Any], **fields: Any) -> None:
    """Write a snapshot where the publisher writes it."""
    base: dict[str, Any] = {"allowlist": {}, "kinds": ["ip"], "offence_ttl": 3_600}
    body = dump(version=version, rules=list(rules or (GRAB,)), **(base | fields))
    valkey.hset(conf.keys.snapshot, mapping={"version": version, "body": body})


def publish_networks(valkey: Any, version: str, change: object = None, **networks: int) -> None:
    """Write the networks, and the difference that led to them."""
    if networks:
        valkey.hset(
            conf.keys.networks, mapping={text.replace("_", "/"): end for text, end in networks.items()}
        )
    if change is not None:
        valkey.rpush(conf.keys.network_changes, change if isinstance(change, str) else json.dumps(change))
    valkey.hset(conf.keys.snapshot, "networks", version)


def names(cache: SnapshotCache) -> list[str]:
    """Name the rules that a process decides by."""
    return [rule.name for rule in cache.current().rules]


def bans(cache: SnapshotCache, *addresses: str) -> list[bool]:
    """Tell of each address whether a process's networks hold it."""
    networks = cache.current().networks
    return [networks.find(ip_address(text), 1) is not None for text in addresses]


def test_a_snapshot_when_redis_has_one_is_loaded(cache: SnapshotCache, valkey: Any) -> None:
    """The first refresh gives a process its rules and the server's clock."""
    publish(valkey)
    found = cache.refresh()
    assert found is cache.current()
    assert ("e:1", ["grab"]) == (cache.current().version, names(cache))
    seconds, micros = valkey.time()
    assert abs(cache.now_us() - (seconds * 1_000_000 + micros)) < 1_000_000


@pytest.mark.parametrize("version", ["e:2", "e:0", "f:1"])
def test_a_snapshot_when_its_version_differs_is_swapped(
    cache: SnapshotCache, valkey: Any, version: str
) -> None:
    """Different, not greater: an older counter and a new epoch are taken too."""
    publish(valkey)
    cache.refresh()
    publish(valkey, version, GRAB | {"name": "other"})
    cache.refresh()
    assert ["other"] == names(cache)


def test_a_snapshot_when_its_version_is_the_same_is_not_read_again(cache: SnapshotCache, valkey: Any) -> None:
    """A refresh that finds nothing new reads no body and keeps the very object."""
    publish(valkey)
    first = cache.refresh()
    valkey.hset(conf.keys.snapshot, "body", "{broken")
    assert first is cache.refresh()


def test_a_snapshot_when_redis_is_away_is_kept(cache: SnapshotCache, valkey: Any) -> None:
    """The last good one goes on deciding, and its age tells how old it is (C120)."""
    publish(valkey)
    first, refreshed = cache.refresh(), cache.refreshed_at
    with override_settings(CACHES=OFFLINE):
        with pytest.raises(StoreUnavailable):
            cache.refresh()
        assert first is cache.current()
    assert refreshed == cache.refreshed_at
    cache.refresh()
    assert cache.refreshed_at > refreshed


def test_a_snapshot_when_redis_has_lost_it_is_kept_and_published(cache: SnapshotCache, valkey: Any) -> None:
    """A flushed Redis leaves the rules in force, and has them written again."""
    published = threading.Event()
    cache.restorer.on_missing = published.set
    publish(valkey)
    first = cache.refresh()
    valkey.flushall()
    assert cache.refresh() is None
    assert published.wait(5)
    assert first is cache.current()


def test_a_process_when_redis_has_none_has_it_published_off_the_request_path(
    cache: SnapshotCache, valkey: Any
) -> None:
    """Another thread publishes, once; the process then has the rules without a further tick."""
    threads = []
    gate = threading.Event()

    def work() -> None:
        threads.append(threading.get_ident())
        assert gate.wait(5)
        publish(valkey)

    cache.restorer.on_missing = work
    for _ in range(3):
        cache.refresh()
    gate.set()
    assert cache.restorer.thread is not None
    cache.restorer.thread.join(5)
    assert ["grab"] == names(cache)
    assert 1 == len(threads)
    assert threading.get_ident() not in threads


def test_publishing_when_it_fails_is_told_once_and_tried_again(
    cache: SnapshotCache, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that is away costs one line, and the next tick tries again."""
    tries = []

    def work() -> None:
        tries.append(1)
        msg = "no database"
        raise RuntimeError(msg)

    cache.restorer.on_missing = work
    with caplog.at_level(logging.ERROR, "ratelimit_app"):
        for _ in range(2):
            cache.refresh()
            assert cache.restorer.thread is not None
            cache.restorer.thread.join(5)
    assert 2 == len(tries)
    (line,) = told(caplog, "no database")
    assert line == "ratelimit.entry_disabled publishing from the database is left out: no database"


def test_a_process_when_it_has_no_snapshot_yet_waits_no_longer_than_the_timeout(cache: SnapshotCache) -> None:
    """The first request is undecided after `STORE_TIMEOUT`, and the next ones at once after a try."""
    with override_settings(RATELIMIT_APP={"STORE_TIMEOUT": 0.05}):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="no snapshot of the rules yet"):
            cache.current()
        assert 0.04 < time.monotonic() - began < 1.0
        cache._tick()
    with pytest.raises(StoreUnavailable):
        cache.current()
    assert time.monotonic() - began < 1.5
    assert cache.known() is None


def test_a_request_when_another_has_waited_in_vain_waits_for_nothing(cache: SnapshotCache) -> None:
    """A database that is slow to publish costs one request its budget, and none that of a limit in code."""
    published = threading.Event()
    cache.restorer.on_missing = published.wait
    cache._tick()
    assert not cache.is_settled()
    with override_settings(RATELIMIT_APP={"STORE_TIMEOUT": 0.01}), pytest.raises(StoreUnavailable):
        cache.current()
    assert cache.is_settled()
    published.set()


def test_the_first_request_when_the_refresh_is_under_way_gets_its_rules(valkey: Any) -> None:
    """A process that has just started decides its first request by the rules."""
    publish(valkey)
    cache = SnapshotCache()
    cache.leave()  # its thread outlives this test, and others look at every key
    assert ["grab"] == names(cache)


def test_a_rule_when_it_is_broken_is_left_out_with_one_line(
    cache: SnapshotCache, valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A corrupt row disables itself, in one log line however often it is read (C136)."""
    bad = GRAB | {"name": "bad", "rate": "5/x"}
    with caplog.at_level(logging.ERROR, "ratelimit_app"):
        for version in ("e:1", "e:2", "e:3"):
            publish(valkey, version, bad, GRAB)
            cache.refresh()
    assert ["grab"] == names(cache)
    (line,) = told(caplog, "rule 'bad'")
    assert line.startswith("ratelimit.entry_disabled rule 'bad' is left out: '5/x' is not a rate")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{broken",
        "null",
        '{"schema": 99}',
        '{"schema": 1}',
        '{"schema":1,"version":1,"rules":7,"allowlist":{}}',
    ],
)
def test_a_snapshot_when_it_cannot_be_read_leaves_the_last_good_one(
    cache: SnapshotCache, valkey: Any, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another release's or a damaged body is refused, told once, and read again when it is good (C136)."""
    publish(valkey)
    cache.refresh()
    valkey.hset(conf.keys.snapshot, mapping={"version": "e:2", "body": body})
    with caplog.at_level(logging.ERROR, "ratelimit_app"):
        cache.refresh()
        cache.refresh()
    assert ["grab"] == names(cache)
    assert 1 == len(told(caplog, "the snapshot is left out"))
    publish(valkey, "e:3", GRAB | {"name": "mended"})
    cache.refresh()
    assert ["mended"] == names(cache)


def test_a_key_when_it_has_the_wrong_type_is_an_outage_not_a_crash(cache: SnapshotCache, valkey: Any) -> None:
    """Somebody else's value under our key is a StoreUnavailable, as every other answer that makes no sense."""
    valkey.set(conf.keys.snapshot, "nonsense")
    with pytest.raises(StoreUnavailable):
        cache.refresh()


def test_networks_when_first_seen_are_read_whole(cache: SnapshotCache, valkey: Any) -> None:
    """A process that starts reads the hash, not the differences."""
    publish(valkey)
    publish_networks(valkey, "e:3", **{"192.0.2.0_24": NEVER, "2001:db8::_32": NEVER})
    cache.refresh()
    assert [True, True, False] == bans(cache, "192.0.2.9", "2001:db8::1", "203.0.113.9")


def test_networks_when_they_change_are_applied_as_differences(cache: SnapshotCache, valkey: Any) -> None:
    """Known changes are applied one by one: the hash is not read again."""
    publish(valkey)
    publish_networks(valkey, "e:1", **{"192.0.2.0_24": NEVER})
    cache.refresh()
    table = cache.current().networks
    valkey.delete(conf.keys.networks)
    publish_networks(valkey, "e:2", {"n": 2, "set": {"203.0.113.0/24": NEVER}, "del": []})
    publish_networks(valkey, "e:3", {"n": 3, "set": {}, "del": ["192.0.2.0/24"]})
    cache.refresh()
    assert [False, True] == bans(cache, "192.0.2.9", "203.0.113.9")
    assert table is cache.current().networks


@pytest.mark.parametrize(
    ("version", "changes"),
    [
        ("f:2", [{"n": 2, "set": {}, "del": []}]),
        ("e:3", [{"n": 3, "set": {}, "del": []}]),
        ("e:3", []),
        ("e:0", []),
        ("nonsense", []),
        ("e:2", ["{broken"]),
        ("e:2", [7]),
        ("e:2", [{"n": 2}]),
        ("e:2", [{"n": 2, "set": [], "del": []}]),
        ("e:2", [{"n": 2, "set": {"10.0.0.0/8": "x"}, "del": []}]),
        ("e:2", [{"n": 2, "set": {}, "del": ["nonsense"]}]),
    ],
)
def test_networks_when_a_change_was_missed_are_read_whole(
    cache: SnapshotCache, valkey: Any, version: str, changes: list[Any]
) -> None:
    """A new epoch, a gap, a lost or damaged list, a step back: all is read anew, and nothing stale stays."""
    publish(valkey)
    publish_networks(valkey, "e:1", **{"192.0.2.0_24": NEVER})
    cache.refresh()
    valkey.delete(conf.keys.networks)
    for change in changes:
        publish_networks(valkey, version, change)
    publish_networks(valkey, version, **{"203.0.113.0_24": NEVER})
    cache.refresh()
    assert [False, True] == bans(cache, "192.0.2.9", "203.0.113.9")


def test_a_network_when_it_is_none_is_left_out_with_one_line(
    cache: SnapshotCache, valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One bad row of the list is told, and the others act (C136)."""
    publish(valkey)
    publish_networks(valkey, "e:1", nonsense=NEVER, **{"192.0.2.0_24": NEVER})
    with caplog.at_level(logging.ERROR, "ratelimit_app"):
        cache.refresh()
        cache.refresh()
    assert [True] == bans(cache, "192.0.2.9")
    (line,) = told(caplog, "nonsense")
    assert line.startswith("ratelimit.entry_disabled network 'nonsense' is left out: ")


def test_networks_when_a_new_snapshot_comes_are_kept(cache: SnapshotCache, valkey: Any) -> None:
    """An edit of a rule does not cost the process its list of networks."""
    publish(valkey)
    publish_networks(valkey, "e:1", **{"192.0.2.0_24": NEVER})
    cache.refresh()
    publish(valkey, "e:2", GRAB | {"name": "other"})
    cache.refresh()
    assert (["other"], [True]) == (names(cache), bans(cache, "192.0.2.9"))


def test_networks_when_the_snapshot_was_unreadable_are_loaded_with_the_next_one(
    cache: SnapshotCache, valkey: Any
) -> None:
    """A process that starts with a damaged snapshot does not lose its bans for good."""
    publish(valkey)
    valkey.hset(conf.keys.snapshot, "body", "{broken")
    publish_networks(valkey, "e:1", **{"192.0.2.0_24": NEVER})
    cache.refresh()
    publish(valkey, "e:2")
    cache.refresh()
    assert [True] == bans(cache, "192.0.2.9")
    assert 0 == len(EMPTY.networks)


def test_an_override_when_set_decides_instead_and_gives_the_one_before(
    cache: SnapshotCache, valkey: Any
) -> None:
    """Tests decide by their own rules, whatever Redis says, and nest."""
    publish(valkey)
    cache.refresh()
    assert cache.override(EMPTY) is None
    assert EMPTY is cache.current()
    assert EMPTY is cache.override(None)
    assert ["grab"] == names(cache)


def test_the_clock_when_it_travels_is_sent_and_when_it_does_not_is_redis(cache: SnapshotCache) -> None:
    """Production sends no time; a test's journey moves the time that is sent (C60)."""
    assert cache.frozen_now() is None
    before = cache.now_us()
    cache.travel(3_600)
    frozen = cache.frozen_now()
    assert frozen is not None
    assert 3_599_000_000 < frozen - before < 3_601_000_000
    cache.travel(-3_600)
    assert cache.frozen_now() is None


def test_the_age_when_asked_is_since_the_last_answer_of_redis(valkey: Any) -> None:
    """Operators see how old the rules of a process may be."""
    publish(valkey)
    snapshot_cache.refresh()
    assert 0 <= snapshot_cache.age() < 5


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_process_when_it_forks_keeps_what_it_knows_and_refreshes_by_itself(valkey: Any) -> None:
    """A prefork worker starts with its parent's rules, and follows changes, even if a lock was held."""
    publish(valkey)
    snapshot_cache.refresh()
    with snapshot_cache._cache._lock:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child is measured by its exit status
            status = 1
            try:
                inherited = snapshot_cache.current().version
                publish(valkey, "e:2")
                ends = time.monotonic() + 5
                while snapshot_cache.current().version != "e:2" and time.monotonic() < ends:
                    time.sleep(0.01)
                status = 0 if (inherited, snapshot_cache.current().version) == ("e:1", "e:2") else 2
            finally:
                os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forgetting(cache: SnapshotCache) -> list[set[str] | None]:
    """Collect what a process is told to forget."""
    told: list[set[str] | None] = []
    cache.on_forgotten = told.append
    return told


def test_a_notice_when_there_is_one_is_told_at_the_next_refresh(cache: SnapshotCache, valkey: Any) -> None:
    """C96: one refresh after the change every process has forgotten; a refresh without news tells nothing."""
    publish(valkey)
    cache.refresh()
    told = forgetting(cache)
    notices.send(["user:1", "user:2"])
    for _ in range(2):
        cache.refresh()
    assert [{"user:1", "user:2"}] == told
    valkey.delete(conf.keys.notices)
    cache.refresh()
    assert [{"user:1", "user:2"}, None] == told


def test_a_notice_when_the_rules_cannot_be_loaded_is_told_all_the_same(
    cache: SnapshotCache, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been read once is not read again, so it must not be lost with a refresh that fails."""
    publish(valkey)
    told = forgetting(cache)
    notices.send(["user:1"])

    def fail() -> None:
        raise StoreUnavailable

    monkeypatch.setattr(cache, "_load", fail)
    with pytest.raises(StoreUnavailable):
        cache.refresh()
    assert [{"user:1"}] == told


def test_a_change_when_made_here_is_forgotten_here_at_once_and_by_others(
    cache: SnapshotCache, valkey: Any
) -> None:
    """The process that resets somebody does not wait for its own refresh, even if Redis fails."""
    told = forgetting(cache)
    cache.have_forgotten(["user:1"])
    assert [{"user:1"}] == told
    other = SnapshotCache()
    others = forgetting(other)
    other.refresh()
    assert {"user:1"} in others
    with override_settings(CACHES=OFFLINE), pytest.raises(StoreUnavailable):
        cache.have_forgotten(["user:2"])
    assert {"user:2"} == told[-1]


def test_what_is_told_when_it_is_set_is_that_of_the_process(valkey: Any) -> None:
    """`when_forgotten` sets it, None takes it away."""
    told: list[set[str] | None] = []
    snapshot_cache.when_forgotten(told.append)
    try:
        snapshot_cache.forgotten(["user:1"])
        snapshot_cache.forgotten(None)
        assert [{"user:1"}, None] == [one for one in told if one is None or "user:1" in one][:2]
    finally:
        snapshot_cache.when_forgotten(None)
    snapshot_cache.forgotten(["user:1"])


def test_keys_of_the_whole_site_when_they_are_of_another_type_do_not_stop_a_refresh(
    cache: SnapshotCache, valkey: Any
) -> None:
    """C136: the rules are followed whatever stands at the other keys."""
    for key in (conf.keys.notices, conf.keys.warmup):
        valkey.hset(key, "a", "b")
    publish(valkey)
    told = forgetting(cache)
    assert cache.refresh() is not None
    assert [None] == told


def test_a_process_when_it_ticks_tells_what_it_holds_by_the_clock_of_redis(
    cache: SnapshotCache, valkey: Any
) -> None:
    """A test that travels does not make its process look dead."""
    cache._tick()
    assert [("", "")] == [(one.version, one.networks) for one in processes()]
    publish(valkey)
    publish_networks(valkey, "e:3", **{"192.0.2.0_24": NEVER})
    cache.travel(86_400)
    cache._tick()
    assert [("e:1", "e:3")] == [(one.version, one.networks) for one in processes()]
    cache.leave()
    assert [] == processes()


def test_a_rule_when_changed_and_changed_back_finds_nothing_denied(cache: SnapshotCache, valkey: Any) -> None:
    """Its log may have been cut in between: what was denied before is no knowledge any more."""
    publish(valkey, "e:1", GRAB)
    told = forgetting(cache)
    cache.refresh()
    publish(valkey, "e:2", GRAB)
    cache.refresh()
    assert [] == told
    publish(valkey, "e:3", GRAB | {"rate": "7/h"})
    cache.refresh()
    assert [None] == told


def test_a_flushed_redis_when_noticed_is_told_once(cache: SnapshotCache, valkey: Any) -> None:
    """What it denied before, it would not deny now; one that never had a snapshot has lost nothing."""
    told = forgetting(cache)
    cache.refresh()
    assert [] == told
    publish(valkey)
    cache.refresh()
    valkey.flushall()
    cache.refresh()
    cache.refresh()
    assert [None] == told


def many_networks(count: int) -> dict[str, int]:
    """Make networks, as the hash in Redis has them."""
    return {f"10.{number >> 8}.{number & 255}.0_24": NEVER for number in range(count)}


def test_networks_when_there_are_many_are_read_in_slices_that_let_others_run(
    cache: SnapshotCache, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, the interpreter is given up after each few of them; so it is for a long difference."""
    pauses: list[int] = []
    publish(valkey)
    publish_networks(valkey, "e:1", **many_networks(3_000))
    monkeypatch.setattr(time, "sleep", lambda _: pauses.append(len(cache.current().networks)))
    cache.refresh()
    assert 3_000 == len(cache.current().networks) == pauses[-1]
    assert max(after - before for before, after in zip([0, *pauses], pauses, strict=False)) <= networks.SLICE
    del pauses[:]
    change = {
        "n": 2,
        "set": {f"11.0.{number}.0/25": NEVER for number in range(255)},
        "del": ["10.0.0.0/24"] * 1_000,
    }
    publish_networks(valkey, "e:2", change)
    cache.refresh()
    assert 3_254 == len(cache.current().networks)
    assert len(pauses) >= 5


def test_networks_when_they_take_long_do_not_hold_up_what_else_is_new(
    cache: SnapshotCache, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a long list is loaded, rules and notices are taken every REFRESH_INTERVAL, and known bans act."""
    forgotten: list[set[str] | None] = []
    cache.on_forgotten = forgotten.append
    publish(valkey)
    cache.refresh()
    publish_networks(valkey, "e:1", **many_networks(3_000))
    pauses = 0

    def pause(_: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 2:
            publish(valkey, "e:2", GRAB | {"name": "other"})
            notices.send(["user:42"])
            cache.refreshed_at -= conf.refresh_interval
        if pauses == 3:
            assert ["other"] == names(cache)
            assert {"user:42"} in forgotten
            assert 0 < len(cache.current().networks) < 3_000

    monkeypatch.setattr(time, "sleep", pause)
    cache.refresh()
    assert pauses > 3
    assert (["other"], 3_000) == (names(cache), len(cache.current().networks))


def test_networks_when_they_change_while_they_are_read_end_as_redis_has_them(
    cache: SnapshotCache, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change in the midst of the first reading is applied with the next refresh, whether it was seen or not."""
    publish(valkey)
    publish_networks(valkey, "e:1", **many_networks(3_000))

    def pause(_: float) -> None:
        if version_of(valkey) == b"e:1":
            valkey.hdel(conf.keys.networks, *(f"10.0.{number}.0/24" for number in range(200)))
            change = {"n": 2, "set": {"203.0.113.0/24": NEVER}, "del": [f"10.0.{n}.0/24" for n in range(200)]}
            publish_networks(valkey, "e:2", change, **{"203.0.113.0_24": NEVER})

    monkeypatch.setattr(time, "sleep", pause)
    cache.refresh()
    cache.refresh()
    assert valkey.hlen(conf.keys.networks) == len(cache.current().networks) == 2_801
    assert [True, False] == bans(cache, "203.0.113.9", "10.0.7.1")


def version_of(valkey: Any) -> Any:
    """The version of the networks in Redis."""
    return valkey.hget(conf.keys.snapshot, "networks")


def test_networks_when_more_changes_came_than_are_read_at_once_are_applied_in_order(
    cache: SnapshotCache, valkey: Any
) -> None:
    """A process that slept through many edits catches up, also where the list of changes was cut at its head."""
    publish(valkey)
    publish_networks(valkey, "e:5", **{"192.0.2.0_24": NEVER})
    cache.refresh()
    table = cache.current().networks
    valkey.delete(conf.keys.networks)
    for number in range(3, 50):
        change = {"n": number, "set": {f"203.0.{number}.0/24": NEVER}, "del": [f"203.0.{number - 1}.0/24"]}
        publish_networks(valkey, f"e:{number}", change)
    cache.refresh()
    assert table is cache.current().networks
    assert [True, False, True] == bans(cache, "192.0.2.9", "203.0.48.1", "203.0.49.1")
