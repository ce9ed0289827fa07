"""The warm-up: what every process and the server get ready ahead of a sale, when somebody asks for it."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from ratelimit_app.conf import conf
from ratelimit_app.store import scripts
from ratelimit_app.store.connection import client, unavailable

TTL = 3_600
MAX_CONNECTIONS = 64


class Wish(NamedTuple):
    """A warm-up that somebody asked for: its token, and how many idle connections each process shall have."""

    token: str
    connections: int


def wish(connections: int) -> Wish:
    """Ask every process to warm up, those that start within the next hour too. Raises StoreUnavailable."""
    made = Wish(uuid.uuid4().hex, connections)
    with unavailable():
        client().set(conf.keys.warmup, f"{made.token}:{made.connections}", ex=TTL)
    return made


def read_wish(value: object) -> Wish | None:
    """Read what stands in Redis; what is no wish is none."""
    token, _, connections = value.partition(b":") if isinstance(value, bytes) else (b"", b"", b"")
    if not token.isalnum() or not connections.isdigit():
        return None
    return Wish(token.decode(), min(int(connections), MAX_CONNECTIONS))


def load_scripts() -> int:
    """Have the server know every script, and give how many there are. Raises StoreUnavailable."""
    names = scripts.names()
    with unavailable():
        for name in names:
            client().script_load(scripts.script(name).text)
    return len(names)
