"""Which processes there are, and what each of them holds: every one keeps an entry of its own in a hash."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store.connection import site, unavailable
from ratelimit_app.store.gateway import warm_up

if TYPE_CHECKING:
    from ratelimit_app.store.warmup import Wish

RENEW_AFTER = 10.0
LIFETIME = 30.0
TTL = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """
    A process as it last told of itself, `age` seconds ago.

    `version`, `networks`: of the snapshot and the networks that it holds, blank: none. `warm`: the token of the
    last warm-up that it has done, blank: none. `connections`: idle ones after it. `unlisted`: the private peer from
    which a forwarding header came that is not believed, blank: none.
    """

    host: str
    pid: int
    version: str
    networks: str
    age: float
    warm: str
    connections: int
    unlisted: str = ""


class Presence:
    """The entry of this process. For the thread that refreshes; requests have no part in it."""

    def __init__(self) -> None:
        self.forget()

    unlisted = ""

    def forget(self) -> None:
        """Have no entry yet: in a fork, it is the parent's."""
        self._field = ""
        self._told: dict[str, Any] = {}
        self._told_at = 0.0
        self._warm, self._connections = "", 0
        self._lock, self._has_left = threading.Lock(), False

    def attend(self, wish: Wish | None, version: str, networks: str, now_s: float) -> None:
        """
        Warm up when that is new, and tell what this process holds when that has changed or 10 s have passed.

        `now_s`: the Redis clock, seconds since the epoch. Raises StoreUnavailable.
        """
        try:
            if wish is not None and wish.token != self._warm:
                self._connections = warm_up(wish.connections)
                self._warm = wish.token
        finally:
            held = {"version": version, "networks": networks, "warm": self._warm, "unlisted": self.unlisted}
            if held != self._told or time.monotonic() - self._told_at >= RENEW_AFTER:
                with self._lock:
                    self._tell(held, now_s)

    def _tell(self, held: dict[str, Any], now_s: float) -> None:
        if self._has_left:
            return
        self._field = self._field or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        row = {**held, "connections": self._connections, "at": round(now_s, 3)}
        with unavailable():
            pipe: Any = site().pipeline(transaction=True)
            pipe.hset(conf.keys.processes, self._field, json.dumps(row, separators=(",", ":")))
            pipe.expire(conf.keys.processes, TTL)
            pipe.execute()
        self._told, self._told_at = held, time.monotonic()

    def leave(self) -> None:
        """Take the entry back, as far as Redis answers."""
        with self._lock:
            self._has_left = True
            if self._field:
                with suppress(StoreUnavailable), unavailable():
                    site().hdel(conf.keys.processes, self._field)


def processes() -> list[Process]:
    """
    Give the processes that told of themselves within 30 s, by host and number. Raises StoreUnavailable.

    Older entries are those of processes that were killed: they are deleted.
    """
    with unavailable():
        pipe: Any = site().pipeline(transaction=False)
        pipe.time()
        pipe.hgetall(conf.keys.processes)
        (seconds, micros), rows = pipe.execute()
        now_s = seconds + micros / 1_000_000
        found = {field: _read(field, row, now_s) for field, row in rows.items()}
        dead = [field for field, process in found.items() if process is None]
        if dead:
            site().hdel(conf.keys.processes, *dead)
    return sorted(filter(None, found.values()), key=lambda process: (process.host, process.pid))


def _read(field: bytes, row: bytes, now_s: float) -> Process | None:
    """Read an entry; None for one that is too old, by a clock set back from the future, or none of ours."""
    try:
        host, pid, _ = field.decode().rsplit(":", 2)
        held = json.loads(row)
        texts = {name: str(held[name]) for name in ("version", "networks", "warm")}
        texts["unlisted"] = str(held.get("unlisted", ""))  # an older release does not write it
        age, connections = now_s - float(held["at"]), int(held["connections"])
        found = Process(host=host, pid=int(pid), age=max(age, 0.0), connections=connections, **texts)
    except (ValueError, KeyError, TypeError):
        return None
    return found if abs(age) <= LIFETIME else None
