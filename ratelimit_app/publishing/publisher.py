"""From the database to Redis, one publisher at a time."""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from django.db import connections, transaction

from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import Publication
from ratelimit_app.publishing import content, ledger
from ratelimit_app.signals import identity_unblocked, snapshot_published

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

BREATH = 0.01
P = ParamSpec("P")
T = TypeVar("T")


def publish(identities: Collection[str] = (), *, using: str | None = None) -> str:
    """
    Bring rules, lists and the bans of these identities to Redis, and give the version that is there.

    `identities`: all whose bans have changed. `using`: the database that was written. Only what differs is written.
    Raises StoreUnavailable after a second try; the periodic sync repairs what is missing then.
    """
    is_new = _remember(using)
    version = _twice(publish_snapshot, None if is_new else identities)
    for _ in _follow(dict.fromkeys(identities)):
        pass
    return version


def publish_many(identities: Iterable[str], *, using: str | None = None) -> Iterator[int]:
    """
    Publish the new bans of any number of identities, and the end of others', and give again and again how many are.

    The lock is held for a thousand at a time, and then left to others. Raises StoreUnavailable.
    """
    _remember(using)
    _twice(publish_snapshot)
    yield from _follow(identities, are_new=True)


def _remember(using: str | None) -> bool:
    return using is not None and using != content.write_alias() and remember(using)


def _follow(identities: Iterable[str], *, are_new: bool = False) -> Iterator[int]:
    rest, done = iter(identities), 0
    while some := list(islice(rest, ledger.CHUNK)):
        _make_way(done)
        _twice(publish_bans, some, are_new=are_new)
        done += len(some)
        yield done


def _make_way(done: int) -> None:
    """Let others publish and write: databases that lock as a whole (SQLite) have no queue, only who looks in time."""
    if done and not connections[content.write_alias()].features.has_select_for_update:
        time.sleep(BREATH)


def remember(alias: str) -> bool:
    """Count the rows of another database from now on; whether they did not yet."""
    with locked() as row:
        is_new = alias not in row.aliases
        if is_new:
            row.aliases = [*row.aliases, alias]
            row.save(update_fields=["aliases"])
    return is_new


@contextmanager
def locked() -> Iterator[Publication]:
    """Be the only publisher: the row is locked until the block ends."""
    alias = content.write_alias()
    with transaction.atomic(using=alias):
        yield Publication.objects.using(alias).lock()


def publish_snapshot(identities: Collection[str] | None = None) -> str:
    """
    Publish rules and allowlist when they differ from what Redis has, and give the version that is there.

    `identities`: whose bans have changed, None: anybody's may have.
    """
    with locked() as row:
        version, is_new = _put_snapshot(row, identities)
    if is_new:
        snapshot_published.send_robust(sender=Publication, version=version)
    return version


def _put_snapshot(row: Publication, identities: Collection[str] | None) -> tuple[str, bool]:
    epoch, held = row.epoch.hex, ledger.read_snapshot()
    kinds = None if identities is None else content.kinds_after(row, held.body, identities)
    body = content.body(row, kinds)
    theirs = ledger.counter_of(held.version, epoch)
    if held.version is not None and theirs is not None and body.is_in(held.body):
        return held.version, False
    row.counter = max(row.counter, theirs or 0) + 1
    known = ledger.counter_of(held.networks, epoch)
    # Redis has lost its networks: readers find no change with this number, and read all of them anew.
    row.networks_counter = max(row.networks_counter, known) if known is not None else row.networks_counter + 1
    version = f"{epoch}:{row.counter}"
    taken = ledger.put_snapshot(version, body.text(version), row.networks_counter)
    row.save(update_fields=["counter", "networks_counter"])
    return version, taken


def publish_bans(identities: Collection[str], *, are_new: bool = False) -> None:
    """
    Bring the bans of these identities, at most some thousands, to Redis where they differ.

    `are_new`: they hardly can be there yet, so those that there are get written without a look. Whoever was banned
    there and is no more is announced as unblocked.
    """
    if not identities:
        return
    with locked() as row:
        wanted = content.bans(row, identities)
        held = ledger.read_bans([one for one in identities if not (are_new and one in wanted)])
        changes: dict[str, int | None] = dict(wanted) if are_new else {}
        changes |= {identity: wanted.get(identity) for identity in differing(wanted, held)}
        ledger.put_marks({identity: end for identity, end in changes.items() if ledger.is_client(identity)})
        _put_networks(
            row, {identity: end for identity, end in changes.items() if not ledger.is_client(identity)}
        )
    for identity, end in changes.items():
        if end is None and is_live(held[identity]):
            identity_unblocked.send_robust(sender=Publication, identity=identity)


def _put_networks(row: Publication, ends: dict[str, int | None]) -> None:
    if not ends:
        return
    epoch = row.epoch.hex
    known = ledger.counter_of(ledger.read_snapshot().networks, epoch)
    # Without a known version the readers begin anew, at a number that no earlier change had.
    row.networks_counter = max(row.networks_counter, known or 0) + (1 if known is not None else 2)
    ledger.put_networks(f"{epoch}:{row.networks_counter}", ends)
    row.save(update_fields=["networks_counter"])


def differing(wanted: Mapping[str, int | None], held: dict[str, ledger.Ban]) -> list[str]:
    """Name the identities whose ban in Redis is not what it should be."""
    return [identity for identity, ban in held.items() if ban != ledger.Ban(*[wanted.get(identity)] * 2)]


def is_live(ban: ledger.Ban) -> bool:
    """Whether a ban has not ended by itself."""
    return ban.noted is not None and (ban.noted == 0 or ban.noted > time.time() * 1_000_000)


def _twice(publish_: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return publish_(*args, **kwargs)
    except StoreUnavailable:
        # One slow reply must not cost an edit its 30 seconds until the sync.
        return publish_(*args, **kwargs)
