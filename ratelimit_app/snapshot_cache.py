"""What this process knows of rules and lists: refreshed beside the requests, never from the database."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ratelimit_app.background import Periodic
from ratelimit_app.conf import conf
from ratelimit_app.core.access_lists import NetworkTable
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.snapshot import EMPTY, Snapshot, is_older, load
from ratelimit_app.restoring import Restorer
from ratelimit_app.store import networks, notices
from ratelimit_app.store.connection import site, unavailable
from ratelimit_app.store.processes import Presence
from ratelimit_app.store.warmup import Wish, read_wish

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

MAX_REPORTS = 1_000
BREATH = 0.001
RETRIES = 4  # in the time of one refresh
logger = logging.getLogger("ratelimit_app")


class SnapshotCache:
    """
    The newest snapshot that this process has, at most `REFRESH_INTERVAL` seconds behind Redis while Redis answers.

    The last good one is kept when Redis is away; what Redis has lost or missed, `restorer` has published from the
    database. `on_forgotten` is called with the identities whose remembered decisions are void, None: all of them.
    """

    def __init__(self) -> None:
        self.on_forgotten: Callable[[set[str] | None], object] | None = None
        self.presence = Presence()
        self.restorer = Restorer(self._report)
        self._periodic = Periodic("refresh", self._tick, self._pause)
        self.forget()

    def forget(self) -> None:
        """Know nothing, as at the start of a process."""
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._is_held = False  # by Redis, when it was last asked
        self._networks_version = ""
        self._clock_offset = time.time() - time.monotonic()
        self._tried = threading.Event()
        self._override: Snapshot | None = None
        self.shift_us = 0
        self._reported: set[str] = set()
        self.refreshed_at = 0.0
        self._notices = notices.Reader()
        self._wish: Wish | None = None
        self.presence.forget()
        self.restorer.forget()
        self._periodic.wake()  # who knows nothing does not wait for the next tick

    def after_fork(self) -> None:
        """Give a child locks of its own; what its parent knew is still true."""
        self._lock = threading.Lock()
        self.restorer.after_fork()
        self.presence.forget()

    def now_us(self) -> int:
        """The Redis clock as this process knows it, in microseconds since the epoch."""
        return int(self._server_s() * 1_000_000) + self.shift_us

    def _server_s(self) -> float:
        return time.monotonic() + self._clock_offset

    def clock(self) -> float:
        """Seconds on this process's own clock, which never goes back; tests travel on it too."""
        return time.monotonic() + self.shift_us / 1_000_000

    def frozen_now(self) -> int | None:
        """A time for the scripts while tests travel; None in production, where Redis is the only clock."""
        return self.now_us() if self.shift_us else None

    def travel(self, seconds: float) -> None:
        """Move the clock of this process's decisions by some seconds from where it is (for tests)."""
        self.shift_us += round(seconds * 1_000_000)

    def known(self) -> Snapshot | None:
        """Give the snapshot without waiting, None when this process has none yet."""
        self._periodic.start()
        return self._override or self._snapshot

    def current(self, wait_s: float | None = None) -> Snapshot:
        """
        Give the snapshot; a process's first request waits up to `wait_s` seconds for it, None: `STORE_TIMEOUT`.

        Raises StoreUnavailable when there is none then.
        """
        found = self.known()
        if found is None:
            self._tried.wait(conf.store_timeout if wait_s is None else wait_s)
            self._tried.set()  # nobody waits for what somebody has waited for in vain
            found = self.known()
        if found is None:
            msg = "this process has no snapshot of the rules yet"
            raise StoreUnavailable(msg)
        return found

    def is_settled(self) -> bool:
        """Whether there is a snapshot, or nothing to wait for any more."""
        return self.known() is not None or self._tried.is_set()

    def override(self, snapshot: Snapshot | None) -> Snapshot | None:
        """Decide by this snapshot instead (for tests), None: by the real one again. Gives the one before."""
        before, self._override = self._override, snapshot
        return before

    def _tick(self) -> None:
        try:
            self.refresh()
        finally:
            if self.restorer.thread is None or self._snapshot is not None:
                self._tried.set()
        version = self._snapshot.version if self._snapshot else ""
        self.presence.attend(self._wish, version, self._networks_version, self._server_s())

    def _pause(self) -> float:
        """Give the seconds until the next refresh: few while Redis is away or lacks something."""
        return conf.refresh_interval / (RETRIES if self.restorer.is_owing else 1)

    def forgotten(self, identities: Collection[str] | None) -> None:
        """Have this process forget what it remembers of these identities, None: of all."""
        if self.on_forgotten is not None:
            self.on_forgotten(None if identities is None else set(identities))

    def have_forgotten(self, identities: Collection[str]) -> None:
        """Have every process forget these identities, this one at once. Raises StoreUnavailable."""
        try:
            notices.send(identities)
        finally:
            self.forgotten(identities)

    def leave(self) -> None:
        """Be no process of the site any more."""
        self.presence.leave()

    def refresh(self) -> Snapshot | None:
        """Ask Redis for a newer version now; gives None when Redis has none. Raises StoreUnavailable."""
        try:
            found = self._refresh()
        except StoreUnavailable:
            self.restorer.note()
            raise
        if found is not None:
            self.restorer.settle(self._clock_offset)
        return found

    def unpublished(self) -> bool:
        """
        Note that this process could not publish what the database has; the refresh has it done when Redis answers.

        Whether that is the first time since nothing was missing.
        """
        is_first = self.restorer.note_unpublished()
        self._periodic.start()
        self._periodic.wake()  # its pause is that of a process that lacks nothing
        return is_first

    def _refresh(self) -> Snapshot | None:
        with self._lock, unavailable():
            theirs = self._catch_up()
            if not self._is_held:
                return None
            if self._snapshot and theirs is not None and self._networks_version != theirs:
                for _ in self._load_networks(theirs):
                    # Whoever waits for the interpreter gets it, and what is due meanwhile is not late.
                    time.sleep(BREATH)
                    if time.monotonic() - self.refreshed_at >= conf.refresh_interval:
                        self._catch_up()
        return self._snapshot

    def _catch_up(self) -> str | None:
        """Take the notices and a newer snapshot, and give the version of the networks in Redis."""
        version, theirs = self._ask()
        if version is None:
            if self._is_held:
                # Redis has lost its data: what it denied before, it would not deny now.
                self._is_held = False
                self.forgotten(None)
            self.restorer.note()  # should whoever fills it fail half-way, the rest is still owed
            self.restorer.fill(self.refresh, self._tried.set)
            return None
        self._is_held = True
        if self._snapshot is None or self._snapshot.version != version.decode():
            if self._snapshot is not None and is_older(version.decode(), self._snapshot.version):
                # Another server's data, or a backup's: more than the rules may be of yesterday.
                self.restorer.note()
            self._load()
        self.refreshed_at = time.monotonic()
        return None if theirs is None else str(theirs.decode())

    def _ask(self) -> Any:
        """Read the clock, the notices and the wish to warm up, and give the versions of snapshot and networks."""
        pipe: Any = site().pipeline(transaction=False)
        pipe.time()
        pipe.hmget(conf.keys.snapshot, "version", "networks")
        pipe.get(conf.keys.warmup)
        self._notices.ask(pipe)
        clock, versions, wish, news = pipe.execute(raise_on_error=False)
        for reply in (clock, versions):
            if isinstance(reply, Exception):
                raise reply
        self._clock_offset = clock[0] + clock[1] / 1_000_000 - time.monotonic()
        self._wish = read_wish(wish)
        # Before anything else can fail: what has been read is not read again.
        forgotten = self._notices.take(news)
        if forgotten is None or forgotten:
            self.forgotten(forgotten)
        return versions

    def _load(self) -> None:
        body: Any = site().hget(conf.keys.snapshot, "body")
        before = self._snapshot
        try:
            self._snapshot = load(body or b"null", self._networks(), self._report)
            if before is not None and before.rules != self._snapshot.rules:
                # A rule that is changed, and changed back, must not find what it denied in between forgotten logs.
                self.forgotten(None)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._report("the snapshot", error)

    def _load_networks(self, version: str) -> Iterator[None]:
        """Apply what changed since our version, or read all when that is not known any more; pauses now and then."""
        table = self._networks()
        try:
            for part in networks.changes(self._networks_version, version):
                for text, end in part:
                    table.apply(text, end)
                yield
        except (networks.Missed, ValueError):
            table = NetworkTable()
            if not self._networks():
                self._use(table)
            for part in networks.whole():
                for text, end in part:
                    try:
                        table.apply(text, int(end))
                    except ValueError as error:
                        self._report(f"network {text!r}", error)
                yield
            self._use(table)
        self._networks_version = version

    def _networks(self) -> NetworkTable:
        return (self._snapshot or EMPTY).networks

    def _use(self, table: NetworkTable) -> None:
        if self._snapshot and self._snapshot.networks is not table:
            self._snapshot = replace(self._snapshot, networks=table)

    def _report(self, what: str, error: Exception) -> None:
        """Log a fault once, not at every refresh."""
        text = f"{what}: {error}"
        if text not in self._reported and len(self._reported) < MAX_REPORTS:
            self._reported.add(text)
            logger.error("ratelimit.entry_disabled %s is left out: %s", what, error)


_cache = SnapshotCache()
known, current, now_us = _cache.known, _cache.current, _cache.now_us
is_settled = _cache.is_settled
frozen_now, travel, clock = _cache.frozen_now, _cache.travel, _cache.clock
refresh, override, forget = _cache.refresh, _cache.override, _cache.forget
forgotten, have_forgotten = _cache.forgotten, _cache.have_forgotten
restorer, unpublished = _cache.restorer, _cache.unpublished
atexit.register(_cache.leave)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cache.after_fork)


def when_forgotten(callback: Callable[[set[str] | None], object] | None) -> None:
    """
    Set what is told whose remembered decisions are void, None: everybody's.

    It is called in the process that makes the change at once, in every other one at its next refresh.
    """
    _cache.on_forgotten = callback


def tell_unlisted(peer: str) -> None:
    """Have this process tell of a private peer whose forwarding header is not believed, for `ratelimit_doctor`."""
    _cache.presence.unlisted = peer


def age() -> float:
    """Seconds since this process last heard from Redis what the newest version is."""
    return time.monotonic() - _cache.refreshed_at
