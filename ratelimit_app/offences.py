"""Offences: denials counted in the process and flushed to Redis in batches, where the promotion reads them."""

from __future__ import annotations

import atexit
import os
import threading
import uuid
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ratelimit_app import snapshot_cache
from ratelimit_app.background import Periodic
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import ScriptCall, StoreUnavailable
from ratelimit_app.core.identity import split
from ratelimit_app.core.snapshot import EMPTY
from ratelimit_app.store.connection import client, is_spread, site, unavailable
from ratelimit_app.store.gateway import gateway

if TYPE_CHECKING:
    from collections.abc import Iterable

FLUSH_INTERVAL = 1.0
FLUSH_LINES = 1_000
MAX_LINES = 100_000

Line = tuple[str, str, int]  # identity part, rule's label, unix second


class OffenceBuffer:
    """
    One line for each identity, rule and second; flushed every second or 1,000 lines.

    A flush that may have arrived is not sent twice: it carries an id that Redis keeps. A buffer of 100,000 lines
    takes no new identities until Redis takes the old ones; `dropped` counts what was lost so.
    """

    def __init__(self) -> None:
        self._periodic = Periodic("flush", self.flush, lambda: FLUSH_INTERVAL)
        self.forget()

    def forget(self) -> None:
        """Start empty: in a fork, the lines are the parent's."""
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._lines: Counter[Line] = Counter()
        self._raw: deque[tuple[str, str, float]] = deque()
        self._pending: tuple[str, Counter[Line]] | None = None
        self.dropped = 0
        self.token = uuid.uuid4().hex.encode()

    def discard(self) -> None:
        """Forget what is buffered, once a flush that is under way has ended (for tests)."""
        with self._flushing:
            self._lines, self._pending, self.dropped = Counter(), None, 0
            self._raw.clear()

    def record(self, offences: Iterable[tuple[str, str]]) -> None:
        """Count one offence for each (identity, label), and for each part of a joined identity."""
        now = snapshot_cache.clock()
        for identity, label in offences:
            self._raw.append((identity, label, now))
        self._periodic.start()
        if len(self._raw) >= FLUSH_LINES:
            self._sort_out()
            self._periodic.wake()

    def _sort_out(self) -> None:
        """Make lines of what was recorded: a denied request only leaves a note, which is quicker."""
        clock_us, clock = snapshot_cache.now_us(), snapshot_cache.clock()
        with self._lock, suppress(IndexError):
            while True:
                identity, label, at = self._raw.popleft()
                second = int(clock_us / 1_000_000 + at - clock)
                for part in split(identity):
                    self._add((part, label, second))

    def _add(self, line: Line) -> None:
        if len(self._lines) < MAX_LINES or line in self._lines:
            self._lines[line] += 1
        else:
            self.dropped += 1

    def flush(self) -> None:
        """Send what is buffered to Redis now. What Redis does not take is kept; raises nothing then."""
        with self._flushing, suppress(StoreUnavailable), unavailable():
            if self._pending is not None and (
                is_spread() or not client().exists(_flush_key(self._pending[0]))
            ):
                _send(*self._pending)
            self._pending = None
            while lines := self._take():
                self._pending = (uuid.uuid4().hex, lines)
                _send(*self._pending)
                self._pending = None

    def _take(self) -> Counter[Line]:
        self._sort_out()
        with self._lock:
            if len(self._lines) <= FLUSH_LINES:
                lines, self._lines = self._lines, Counter()
            else:
                lines = Counter({line: self._lines.pop(line) for line in list(self._lines)[:FLUSH_LINES]})
        return lines


def _flush_key(flush_id: str) -> str:
    return f"{conf.keys.root}:flush:{flush_id}"


def _send(flush_id: str, lines: Counter[Line]) -> None:
    ttl, spread = (snapshot_cache.known() or EMPTY).offence_ttl, is_spread()
    pipe: Any = site().pipeline(transaction=True)
    if not spread:
        pipe.set(_flush_key(flush_id), 1, ex=600)
    newest: dict[str, int] = {}
    for (part, label, second), count in lines.items():
        if not spread:
            key = conf.keys.offences(part)
            pipe.hincrby(key, f"{second}|{label}", count)
            pipe.expire(key, ttl)
        newest[part] = max(second, newest.get(part, 0))
    pipe.zadd(conf.keys.offenders, newest, gt=True)
    pipe.zremrangebyscore(conf.keys.offenders, "-inf", max(newest.values()) - ttl)
    pipe.expire(conf.keys.offenders, ttl)
    pipe.execute()
    if spread:
        _send_apart(flush_id, lines, ttl)


def _send_apart(flush_id: str, lines: Counter[Line], ttl: int) -> None:
    """Count each identity's lines at its own server, which remembers the last flush of this process by itself."""
    words: dict[str, list[bytes]] = {}
    for (part, label, second), count in lines.items():
        words.setdefault(part, []).extend((f"{second}|{label}".encode(), b"%d" % count))
    head = [_buffer.token, flush_id.encode(), b"%d" % ttl]
    for part, told in words.items():
        gateway().call(ScriptCall("offend", [conf.keys.offences(part)], head + told))


def offenders(since_s: float) -> list[str]:
    """Give the identities with an offence at or after a time, in seconds since the epoch. Raises StoreUnavailable."""
    with unavailable():
        parts: Any = site().zrangebyscore(conf.keys.offenders, since_s, "+inf")
    return [part.decode() for part in parts]


def counts(part: str) -> list[tuple[int, str, int]]:
    """Give an identity's offences as (unix second, rule's label, count), oldest first. Raises StoreUnavailable."""
    with unavailable():
        rows: Any = client().hgetall(conf.keys.offences(part))
    found = []
    for name, count in rows.items():
        if name.startswith(b"!"):  # a process's last flush
            continue
        second, _, label = name.decode().partition("|")
        found.append((int(second), label, int(count)))
    return sorted(found)


def forget(part: str, before_s: float | None = None) -> None:
    """Delete an identity's offences: all, or those up to a time in seconds. Raises StoreUnavailable."""
    with unavailable():
        if before_s is None:
            client().delete(conf.keys.offences(part))
            site().zrem(conf.keys.offenders, part)
            return
        old = [f"{second}|{label}" for second, label, _ in counts(part) if second <= before_s]
        if old:
            client().hdel(conf.keys.offences(part), *old)


_buffer = OffenceBuffer()
record, flush, discard = _buffer.record, _buffer.flush, _buffer.discard
atexit.register(flush)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_buffer.forget)
