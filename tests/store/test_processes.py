"""The entries of the site's processes: who holds what, and who is gone."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store import gateway, processes, warmup
from ratelimit_app.store.processes import Presence


def now(valkey: Any) -> float:
    """The server's clock in seconds."""
    seconds, micros = valkey.time()
    return float(seconds + micros / 1_000_000)


def rows(valkey: Any) -> list[dict[str, Any]]:
    """What stands in the hash."""
    return [json.loads(row) for row in valkey.hvals(conf.keys.processes)]


def test_a_process_when_it_tells_of_itself_is_found(valkey: Any) -> None:
    """Host, number, versions and age; the hash ends by itself when everybody has gone."""
    Presence().attend(None, "e:1", "e:2", now(valkey))
    (found,) = processes.processes()
    assert (os.getpid(), "e:1", "e:2", "", 0) == (
        found.pid, found.version, found.networks, found.warm, found.connections,
    )  # fmt: skip
    assert found.host
    assert 0 <= found.age < processes.LIFETIME
    assert 0 < valkey.ttl(conf.keys.processes) <= processes.TTL


def test_an_entry_when_nothing_has_changed_is_not_written_again_for_ten_seconds(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle process costs one write in ten ticks; a change is told at once."""
    ticking = [1_000.0]
    monkeypatch.setattr("ratelimit_app.store.processes.time.monotonic", lambda: ticking[0])
    presence = Presence()
    presence.attend(None, "e:1", "", 1.0)
    ticking[0] += 9.9
    presence.attend(None, "e:1", "", 2.0)
    assert [1.0] == [row["at"] for row in rows(valkey)]
    presence.attend(None, "e:2", "", 3.0)
    assert [("e:2", 3.0)] == [(row["version"], row["at"]) for row in rows(valkey)]
    ticking[0] += 10.0
    presence.attend(None, "e:2", "", 4.0)
    assert [4.0] == [row["at"] for row in rows(valkey)]


def test_a_process_when_it_forks_has_two_entries(valkey: Any) -> None:
    """A child does not write over its parent's entry, nor take it back at its end."""
    presence = Presence()
    presence.attend(None, "e:1", "", now(valkey))
    presence.forget()
    presence.leave()
    assert 1 == len(rows(valkey))
    presence.forget()
    presence.attend(None, "e:1", "", now(valkey))
    assert 2 == len(processes.processes())


def test_a_process_when_it_ends_takes_its_entry_back_and_writes_no_other(valkey: Any) -> None:
    """A refresh that is still under way does not bring it back."""
    presence = Presence()
    presence.attend(None, "e:1", "", now(valkey))
    presence.leave()
    presence.attend(None, "e:2", "", now(valkey))
    assert [] == rows(valkey)


def test_a_process_when_redis_is_away_ends_all_the_same(settings: Any, valkey: Any) -> None:
    """Leaving is a courtesy."""
    presence = Presence()
    presence.attend(None, "e:1", "", now(valkey))
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    presence.leave()


@pytest.mark.parametrize("shift", [-31, 31])
def test_an_entry_when_it_is_older_than_thirty_seconds_is_ignored_and_deleted(
    valkey: Any, shift: int
) -> None:
    """A killed process is gone after half a minute, also when the server's clock was set back meanwhile."""
    Presence().attend(None, "e:1", "", now(valkey))
    Presence().attend(None, "e:0", "", now(valkey) + shift)
    assert ["e:1"] == [process.version for process in processes.processes()]
    assert 1 == len(rows(valkey))


@pytest.mark.parametrize(
    ("field", "row"),
    [("nonsense", "{}"), ("a:b:c", "{}"), ("a:1:c", "{broken"), ("a:1:c", "7"), ("a:1:c", '{"at": null}')],
)
def test_an_entry_when_it_is_none_is_deleted(valkey: Any, field: str, row: str) -> None:
    """C136: what another release or a person has left there stops nobody."""
    valkey.hset(conf.keys.processes, field, row)
    assert [] == processes.processes()
    assert not valkey.exists(conf.keys.processes)


def test_a_wish_when_it_is_new_opens_connections_and_is_told(valkey: Any) -> None:
    """A warm-up is done once; its token and the idle connections stand in the entry."""
    gateway.gateway().close()
    presence, wish = Presence(), warmup.wish(3)
    for _ in range(2):
        presence.attend(warmup.read_wish(valkey.get(conf.keys.warmup)), "e:1", "", now(valkey))
    (found,) = processes.processes()
    assert (wish.token, 3) == (found.warm, found.connections)
    assert 0 < valkey.ttl(conf.keys.warmup) <= warmup.TTL


def test_a_wish_when_it_cannot_be_fulfilled_is_not_told_as_done(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry says what the process holds, and the next refresh tries again."""

    def refuse(count: int) -> int:
        msg = "max number of clients reached"
        raise StoreUnavailable(msg)

    presence, wish = Presence(), warmup.Wish("abc", 3)
    with monkeypatch.context() as patched:
        patched.setattr(processes, "warm_up", refuse)
        with pytest.raises(StoreUnavailable, match="max number"):
            presence.attend(wish, "e:1", "", now(valkey))
        assert [("e:1", "")] == [(one.version, one.warm) for one in processes.processes()]
    presence.attend(wish, "e:1", "", now(valkey))
    assert ["abc"] == [one.warm for one in processes.processes()]
