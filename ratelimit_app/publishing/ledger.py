"""What stands in Redis: reading it to compare, and writing it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimit_app import snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import ScriptCall, StoreUnavailable
from ratelimit_app.core.entries import is_exact
from ratelimit_app.core.identity import value_of
from ratelimit_app.store import health, notices
from ratelimit_app.store.connection import client, is_spread, site, unavailable
from ratelimit_app.store.gateway import gateway

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

TTL_MS = 30 * 24 * 3_600 * 1_000
SYNCED_MS = 3_600 * 1_000
MAX_CHANGES = 1_000
UNFINISHED = "?"  # in the index: a mark that is being written
CHUNK = 1_000
# Written in one transaction, which holds up the server: about a third of a millisecond.
MARKS_AT_ONCE = notices.MAX_NAMED


class Held(NamedTuple):
    """The snapshot in Redis: versions as `<epoch>:<counter>`, None where there is none."""

    version: str | None
    networks: str | None
    body: bytes | None


class Ban(NamedTuple):
    """
    The end of a ban, in microseconds (0: never, None: no ban): as it decides, and as the index knows it.

    For a network, which is its own index, both are the same.
    """

    decides: int | None
    noted: int | None


NO_BAN = Ban(None, None)


def is_client(identity: str) -> bool:
    """Whether an identity has a mark of its own; else it is a network."""
    return is_exact(identity, conf.ipv4_prefix, conf.ipv6_prefix)


def read_snapshot() -> Held:
    """Read the snapshot. Raises StoreUnavailable."""
    with unavailable():
        pipe: Any = site().pipeline(transaction=False)
        pipe.hmget(conf.keys.snapshot, "version", "networks", "body")
        reply = pipe.execute(raise_on_error=False)[0]
    version, networks, body = reply if isinstance(reply, list) else (None, None, None)
    return Held(_text(version), _text(networks), body)


def counter_of(version: str | None, epoch: str) -> int | None:
    """Give the counter of a version of this epoch, None for another's."""
    its_epoch, _, counter = (version or "").rpartition(":")
    return int(counter) if its_epoch == epoch and counter.isdigit() else None


def put_snapshot(version: str, body: str, networks_counter: int) -> bool:
    """Write a snapshot; whether Redis took it. Raises StoreUnavailable."""
    epoch, _, counter = version.rpartition(":")
    keys = [conf.keys.snapshot.encode(), conf.keys.network_changes.encode()]
    args = [epoch.encode(), counter.encode(), body.encode(), b"%d" % networks_counter, b"%d" % TTL_MS]
    return bool(gateway().call(ScriptCall("publish_snapshot", keys, args)))


def put_networks(version: str, ends: Mapping[str, int | None]) -> bool:
    """Apply one difference of the networks: `ip:` identities with their end, None to delete. Raises StoreUnavailable."""
    epoch, _, counter = version.rpartition(":")
    to_set = {value_of(identity): end for identity, end in ends.items() if end is not None}
    to_delete = [value_of(identity) for identity, end in ends.items() if end is None]
    change = json.dumps({"n": int(counter), "set": to_set, "del": to_delete}, separators=(",", ":"))
    keys = [conf.keys.snapshot.encode(), conf.keys.networks.encode(), conf.keys.network_changes.encode()]
    words = [epoch, counter, change, str(TTL_MS), str(MAX_CHANGES), str(len(to_set))]
    words += [word for network, end in to_set.items() for word in (network, str(end))]
    args = [word.encode() for word in words + to_delete]
    return bool(gateway().call(ScriptCall("publish_networks", keys, args)))


def read_bans(identities: Collection[str]) -> dict[str, Ban]:
    """Read what Redis has of each of these, at most some thousands. Raises StoreUnavailable."""
    ordered = list(identities)
    if not ordered:
        return {}
    with unavailable():
        pipe: Any = site().pipeline(transaction=False)
        pipe.hmget(conf.keys.marks, ordered)
        pipe.hmget(conf.keys.networks, [value_of(identity) for identity in ordered])
        apart = client().pipeline(transaction=False) if is_spread() else pipe
        for identity in filter(is_client, ordered):
            apart.execute_command("GET", conf.keys.mark(identity))
        # A key of another type is as good as none: what is missing gets written.
        noted, networks, *marks = pipe.execute(raise_on_error=False)
        if apart is not pipe:
            marks = apart.execute(raise_on_error=False)
    noted, networks = (
        reply if isinstance(reply, list) else [None] * len(ordered) for reply in (noted, networks)
    )
    each = iter(marks)
    return {
        identity: Ban(_end(next(each)), _end(noted[place]))
        if is_client(identity)
        else Ban(*[_end(networks[place])] * 2)
        for place, identity in enumerate(ordered)
    }


def put_marks(ends: Mapping[str, int | None]) -> None:
    """
    Write or delete marks: identities with their end, None to delete. Raises StoreUnavailable.

    Every process forgets what it remembers of them, this one at once.
    """
    if not ends:
        return
    try:
        identities = list(ends)
        for start in range(0, len(identities), MARKS_AT_ONCE):
            _put_marks(
                {identity: ends[identity] for identity in identities[start:][:MARKS_AT_ONCE]}, identities
            )
    finally:
        snapshot_cache.forgotten(ends)


def _put_marks(ends: Mapping[str, int | None], of_call: list[str]) -> None:
    keys = conf.keys
    kept = {identity: end for identity, end in ends.items() if end is not None}
    gone = [identity for identity, end in ends.items() if end is None]
    with unavailable():
        # At once or not at all: a mark that is as it should be is not written again, so its notice must not be lost.
        pipe: Any = site().pipeline(transaction=True)
        if is_spread():
            # No transaction sees all servers. Until the last one the index differs, so that the sync begins anew.
            if kept:
                site().hset(keys.marks, mapping=dict.fromkeys(kept, UNFINISHED))
            apart = client().pipeline(transaction=False)
            _mark(apart, kept, gone)
            apart.execute()
        # The index always knows at least what decides, so that nothing that decides is ever forgotten.
        if kept:
            pipe.hset(keys.marks, mapping=kept)
        if not is_spread():
            _mark(pipe, kept, gone)
        if gone:
            pipe.hdel(keys.marks, *gone)
        pipe.pexpire(keys.marks, TTL_MS)
        notices.commit(pipe, of_call)


def _mark(pipe: Any, kept: Mapping[str, int], gone: Collection[str]) -> None:
    """Add the marks themselves to a pipeline."""
    for identity, end in kept.items():
        # By its bare name: the method's own work costs more than the command, and there may be a million.
        life = ("PXAT", -(-end // 1_000)) if end else ("PX", TTL_MS)
        pipe.execute_command("SET", conf.keys.mark(identity), end, *life)
    for identity in gone:
        pipe.execute_command("DEL", conf.keys.mark(identity))


def noted() -> Iterator[dict[str, int | None]]:
    """Give all identities that Redis has a ban of, with its end, some at a time, without a scan of the keyspace."""
    for key, prefix in ((conf.keys.marks, ""), (conf.keys.networks, "ip:")):
        cursor = None
        while cursor != 0:
            with unavailable():
                is_ours = site().type(key) == b"hash"
                reply: Any = site().hscan(key, cursor or 0, count=CHUNK) if is_ours else (0, {})
            cursor, fields = reply
            yield {prefix + field.decode("utf-8", "replace"): _end(end) for field, end in fields.items()}


def count() -> int:
    """Count the identities that Redis has a ban of. Raises StoreUnavailable."""
    with unavailable():
        pipe: Any = site().pipeline(transaction=False)
        pipe.hlen(conf.keys.marks)
        pipe.hlen(conf.keys.networks)
        return sum(reply for reply in pipe.execute(raise_on_error=False) if type(reply) is int)


def renew(identities: Collection[str]) -> None:
    """Let what never ends live on for another 30 days. Raises StoreUnavailable."""
    keys = conf.keys
    with unavailable():
        pipe: Any = site().pipeline(transaction=False)
        for key in (keys.snapshot, keys.networks, keys.network_changes, keys.marks):
            pipe.pexpire(key, TTL_MS)
        apart = client().pipeline(transaction=False) if is_spread() else pipe
        for identity in identities:
            apart.execute_command("PEXPIRE", keys.mark(identity), TTL_MS)
        pipe.execute()
        if apart is not pipe:
            apart.execute()


def claim(milliseconds: int) -> bool:
    """Whether this process is the one to publish what is missing, for so long. Raises StoreUnavailable."""
    with unavailable():
        is_ours = bool(client().set(f"{conf.keys.root}:publishing", 1, nx=True, px=milliseconds))
    if is_ours:
        health.trust(conf.cache)
    return is_ours


def release() -> None:
    """Let another process publish what is missing. Raises StoreUnavailable."""
    with unavailable():
        client().delete(f"{conf.keys.root}:publishing")


def linger(milliseconds: int) -> None:
    """Let nobody publish what is missing for a moment, after a try that has failed."""
    with suppress(StoreUnavailable), unavailable():
        client().pexpire(f"{conf.keys.root}:publishing", milliseconds)


def now() -> float:
    """Give the Redis clock, in seconds since the epoch. Raises StoreUnavailable."""
    with unavailable():
        seconds, micros = site().time()
    return float(seconds + micros / 1_000_000)


def note_synced(began: float) -> None:
    """Note that all was compared and repaired by somebody who began then, by the Redis clock. Raises StoreUnavailable."""
    with unavailable():
        site().set(conf.keys.synced, repr(began), px=SYNCED_MS)


def synced_at() -> float | None:
    """Give when the last comparison of everything began, None when that is long ago. Raises StoreUnavailable."""
    with unavailable():
        value: Any = site().get(conf.keys.synced)
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def drop_strangers() -> None:
    """Delete what stands at the keys of the whole site and is none of ours. Raises StoreUnavailable."""
    keys = conf.keys
    kinds = {keys.marks: b"hash", keys.networks: b"hash", keys.processes: b"hash", keys.notices: b"stream"}
    with unavailable():
        for key, kind in kinds.items():
            if site().type(key) not in (kind, b"none"):
                site().delete(key)


def _end(value: bytes | None) -> int | None:
    return int(value) if isinstance(value, bytes) and value.isdigit() else None


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None
