"""
Who was seen lately: how many addresses, and how many signed-in users behind each, for the guards of promotion.

Counted beside the requests, by HyperLogLog: a few kilobytes for all addresses, and a key of its own only for an
address behind which one process has seen two users.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ratelimit_app import snapshot_cache
from ratelimit_app.background import Periodic
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store.connection import client, site, unavailable

if TYPE_CHECKING:
    from collections.abc import Collection

HOUR = 3_600
FLUSH_INTERVAL = 5.0
MAX_KNOWN = 100_000  # of each kind, in a process: beyond it they are told again
CHUNK = 1_000


class Sightings:
    """What this process has seen and not told Redis yet. `note` is for requests: it never waits and never fails."""

    def __init__(self) -> None:
        self._periodic = Periodic("sightings", self.flush, lambda: FLUSH_INTERVAL)
        self.forget()

    def forget(self) -> None:
        """Know nobody, as in a fork."""
        self._flushing = threading.Lock()
        self._hour = 0
        self._addresses: set[str] = set()
        self._users: dict[str, str] = {}  # the first user seen behind an address
        self._pairs: set[tuple[str, str]] = set()
        self._new_addresses: deque[str] = deque(maxlen=MAX_KNOWN)
        self._new_pairs: deque[tuple[str, str]] = deque(maxlen=MAX_KNOWN)

    def note(self, address: str, user: str | None) -> None:
        """Note a client's address (`ip:…`), and the user (`user:…`) who is signed in there, None: nobody is known."""
        if address not in self._addresses:
            self._addresses.add(address)
            self._new_addresses.append(address)
            self._periodic.start()
        if user is None:
            return
        first = self._users.setdefault(address, user)
        if first != user and (address, user) not in self._pairs:
            for pair in ((address, user), (address, first)):
                if pair not in self._pairs:
                    self._pairs.add(pair)
                    self._new_pairs.append(pair)

    def flush(self) -> None:
        """Tell Redis who is new. What it does not take is told again within the hour; raises nothing then."""
        hour = _hour()
        with self._flushing, suppress(StoreUnavailable), unavailable():
            is_over = self._hour not in (0, hour)
            if is_over or max(len(self._addresses), len(self._users), len(self._pairs)) > MAX_KNOWN:
                self._addresses, self._users, self._pairs = set(), {}, set()
            self._hour = hour
            addresses, pairs = _take(self._new_addresses), _take(self._new_pairs)
            for start in range(0, len(addresses), CHUNK):
                _add({_active_key(hour): addresses[start : start + CHUNK]})
            for start in range(0, len(pairs), CHUNK):
                by_key: dict[str | bytes, list[str]] = defaultdict(list)
                for address, user in pairs[start : start + CHUNK]:
                    by_key[_users_key(address, hour)].append(user)
                _add(by_key)


def _take(queue: deque[Any]) -> list[Any]:
    return [queue.popleft() for _ in range(len(queue))]


def _add(by_key: dict[str | bytes, list[str]]) -> None:
    pipe: Any = client().pipeline(transaction=False)
    for key, members in by_key.items():
        pipe.pfadd(key, *members)
        pipe.expire(key, 2 * HOUR)
    pipe.execute()


def _hour() -> int:
    return snapshot_cache.now_us() // 1_000_000 // HOUR


def _active_key(hour: int) -> str:
    return conf.keys.of_site(f"active:{hour}")


def _users_key(address: str, hour: int) -> bytes:
    return conf.keys.base(address) + b"!users:%d" % hour


def active() -> int:
    """Count the addresses seen in this hour and the one before it, give or take a percent. Raises StoreUnavailable."""
    hour = _hour()
    with unavailable():
        found: Any = site().pfcount(_active_key(hour), _active_key(hour - 1))
    return int(found)


def users_at(addresses: Collection[str]) -> dict[str, int]:
    """
    Count the signed-in users seen behind each of these addresses in this hour or the one before it.

    Of an address behind which no process has seen two it says 0. Raises StoreUnavailable.
    """
    hour, wanted = _hour(), list(addresses)
    found: list[int] = []
    with unavailable():
        for start in range(0, len(wanted), CHUNK):
            pipe: Any = client().pipeline(transaction=False)
            for address in wanted[start : start + CHUNK]:
                # By its name: redis-py's pipelines for a cluster have no method for it.
                pipe.execute_command("PFCOUNT", _users_key(address, hour), _users_key(address, hour - 1))
            found += map(int, pipe.execute())
    return dict(zip(wanted, found, strict=True))


_sightings = Sightings()
note, flush, forget = _sightings.note, _sightings.flush, _sightings.forget
atexit.register(flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sightings.forget)
