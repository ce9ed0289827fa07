"""Explain one identity: what counts it, what lists it, what it did, and what this process remembers of it."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async
from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.utils import timezone

from ratelimit_app import lists, local_cache, offences, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.access_lists import NEVER, latest
from ratelimit_app.core.addresses import parse_address
from ratelimit_app.core.calls import Demand, ScriptCall, StoreUnavailable, read_reply
from ratelimit_app.core.entries import holding
from ratelimit_app.core.escalation import Ladder, Step
from ratelimit_app.core.explanation import (
    Change,
    Explanation,
    Listing,
    Offences,
    Remembered,
    Window,
)
from ratelimit_app.core.identity import IdentityError, kind_of, split
from ratelimit_app.core.local_answers import box_of
from ratelimit_app.core.plans import Plan, argument
from ratelimit_app.identities import canonical
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Publication
from ratelimit_app.publishing import content
from ratelimit_app.store.connection import client, unavailable
from ratelimit_app.store.gateway import gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimit_app.core.rules import Rule
    from ratelimit_app.models import Entry

_FALLING_BACK = frozenset({"user", "device", "session", "header", "cookie", "param", "field"})
_SECOND = 1_000_000
MAX_CHANGES = 100
WAIT_S = 2.0  # for the rules, in a process that has only just started


def explain(identity: str) -> Explanation:
    """
    Tell what is known of an identity: rules and what their windows hold, lists, offences, bans and their reasons.

    `identity`: text such as `ip:203.0.113.9`, `user:42` or `user:42+ip:203.0.113.9`. It charges nothing, asks Redis
    and the database, and is meant for people: an outage of Redis leaves its part unknown, and says so.
    Raises ValueError for what is no identity, DatabaseError when the database does not answer.
    """
    written, unknown = canonical(identity), list[str]()
    seen, joined = _rules(written, unknown)
    plan = Plan([one.rule for one in seen], conf.keys)
    demands = [Demand(part, written, conf.keys.base(written) + part.name, part.cost) for part in plan.parts]
    windows: tuple[Window, ...] = ()
    ban, done = "", tuple[Offences, ...]()
    listed = _listed(identity, written)
    with _noting("Redis: windows, bans and offences", unknown):
        ban = _banned_until(listed)
        done = tuple(row for part in split(written) for row in _offences(part))
        windows = tuple(_windows(demands, {one.rule.name: one.note for one in seen}))
    return Explanation(
        identity=written,
        banned_until=ban,
        windows=windows,
        joined=tuple(joined),
        listings=tuple(_listings(listed)),
        history=tuple(_history(listed)),
        offences=done,
        remembered=tuple(_remembered(demands, listed)),
        unknown=tuple(unknown),
    )


aexplain = sync_to_async(explain)


@contextmanager
def _noting(what: str, unknown: list[str]) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        unknown.append(f"{what} ({error})")


class _Seen(NamedTuple):
    """A rule that counts by an identity, and when it does; blank: always."""

    rule: Rule
    note: str


def _rules(identity: str, unknown: list[str]) -> tuple[list[_Seen], list[str]]:
    """Give the rules that count by this identity, and the names of those that count by it and more together."""
    try:
        snapshot = snapshot_cache.current(WAIT_S)
    except StoreUnavailable as error:
        unknown.append(f"Redis: the rules ({error})")
        return [], []
    kinds = [kind_of(part) for part in split(identity)]
    seen, joined = [], []
    for rule in snapshot.rules:
        sources = [str(source) for source in rule.sources]
        if len(sources) == len(kinds) and all(map(_counts_by, sources, kinds)):
            seen.append(_Seen(rule, ""))
        elif kinds == ["ip"] and len(sources) == 1 and rule.sources[0].kind in _FALLING_BACK:
            seen.append(_Seen(rule, f"requests without {sources[0]}"))
        elif len(sources) > 1 and any(_counts_by(source, kind) for source in sources for kind in kinds):
            joined.append(f"{rule.name} ({'+'.join(sources)})")
    return seen, joined


def _counts_by(source: str, kind: str) -> bool:
    return source == kind or (source == "user_or_ip" and kind in {"user", "ip"})


def _windows(demands: list[Demand], notes: dict[str, str]) -> Iterator[Window]:
    """Look at all windows in one call, whatever the lists say. Raises StoreUnavailable."""
    if not demands:
        return
    told = argument(0, [(demand.part, demand.cost, False) for demand in demands], True)
    frozen = snapshot_cache.frozen_now()
    args = [told] if frozen is None else [told, b"%d" % frozen]
    reply = gateway().call(ScriptCall("decide", [demand.key for demand in demands], args))
    # A rule that is asleep says nothing.
    said = {(result.rule, result.period): result for result in read_reply(reply, [], demands, True).results}
    for demand in demands:
        rule, most = demand.part.rule, demand.part.most
        result = said.get((rule.name, demand.part.rate.period))
        yield Window(
            rule=rule.name,
            key="+".join(map(str, rule.sources)),
            rate=str(demand.part.rate),
            algorithm=rule.algorithm,
            mode=rule.mode,
            limit=most,
            used=0 if result is None else max(most - result.remaining, 0),
            remaining=most if result is None else result.remaining,
            opens_in=0.0 if result is None else result.retry_after,
            empty_in=0.0 if result is None else result.reset_after,
            note=notes[rule.name] if result is not None else "asleep: its time has not come, or is over",
        )


def _listed(identity: str, written: str) -> list[tuple[str, str]]:
    """Give kind and value of what the lists can hold of an identity: each part, an address as it was typed too."""
    found = []
    for text in dict.fromkeys([*split(written), identity] if written.startswith("ip:") else split(written)):
        try:
            found.append(lists.read_identity(text))
        except IdentityError:
            continue  # such as a view: no list can hold it
    return list(dict.fromkeys(found))


def _listings(listed: list[tuple[str, str]]) -> Iterator[Listing]:
    """Give the rows that name these identities, and those of networks that hold them while they are active."""
    aliases = content.aliases(Publication.objects.filter(pk=1).first() or Publication())
    for model, of in ((AllowlistEntry, "allowlist"), (BlacklistEntry, "blacklist")):
        for alias in aliases:
            for kind, value in listed:
                values = [value, *(holding(value) if kind == "ip" else ())]
                manager: Any = model._default_manager  # noqa: SLF001 - Django's documented name
                rows = manager.using(alias).filter(kind=kind, value__in=values).order_by("created_at", "pk")
                yield from (_listing(row, of) for row in rows if row.value == value or row.is_active())


def _listing(row: Any, of: str) -> Listing:
    policy = getattr(row, "policy", None)
    return Listing(
        of=of,
        identity=row.identity,
        source=row.source,
        reason=row.reason,
        active=row.is_active(),
        expires_at=row.expires_at,
        created_at=row.created_at,
        created_by="" if row.created_by is None else row.created_by.get_username(),
        policy="" if policy is None else policy.name,
        level=_level(row, policy),
        evidence=getattr(row, "evidence", ""),
    )


def _level(row: Any, policy: Any) -> int:
    """Give what is left of a promotion's level."""
    level: int = getattr(row, "level", 0)
    if policy is None or row.expires_at is None:
        return level
    ladder = Ladder(
        threshold=policy.threshold,
        find_period=policy.find_period,
        block_period=policy.block_period,
        factor=policy.factor,
        max_block_period=policy.max_block_period,
        decay_period=policy.decay_period,
    )
    return ladder.level_at(Step(level, row.expires_at.timestamp()), timezone.now().timestamp())


def _history(listed: list[tuple[str, str]]) -> Iterator[Change]:
    """Give what was done in the admin, where it is installed; the latest, deleted entries included."""
    if not apps.is_installed("django.contrib.admin"):
        return
    models: dict[int | None, type[Entry]] = {
        ContentType.objects.get_for_model(model).pk: model for model in (BlacklistEntry, AllowlistEntry)
    }
    names = [f"{kind}:{value}" for kind, value in listed]
    rows = apps.get_model("admin", "LogEntry").objects.filter(
        content_type_id__in=models, object_repr__in=names
    )
    latest_first = rows.select_related("user").order_by("-action_time", "-pk")[:MAX_CHANGES]
    for row in reversed(latest_first):
        of = models[row.content_type_id]._meta.verbose_name  # noqa: SLF001 - Django's documented name
        what = f"{of}: {row.get_change_message() or row.get_action_flag_display()}"
        yield Change(at=row.action_time, by=row.user.get_username(), what=what)


def _banned_until(listed: list[tuple[str, str]]) -> str:
    """Give the end of the longest ban that Redis and this process know of. Raises StoreUnavailable."""
    ends, now_us = list[int](), snapshot_cache.now_us()
    for kind, value in listed:
        with unavailable():
            held: Any = client().get(conf.keys.mark(f"{kind}:{value}"))
            network: Any = client().hget(conf.keys.networks, value) if kind == "ip" else None
        ends += [int(end) for end in (held, network) if end is not None and end.isdigit()]
        address = parse_address(value) if kind == "ip" else None
        snapshot = snapshot_cache.known()
        if address is not None and snapshot is not None:
            ends += snapshot.networks.ends(address)
    last = latest(ends, now_us)
    if last is None:
        return ""
    return "never" if last == NEVER else datetime.fromtimestamp(last / _SECOND, UTC).isoformat()


def _offences(part: str) -> Iterator[Offences]:
    by_rule: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for second, label, count in offences.counts(part):
        by_rule[label].append((second, count))
    for label, rows in sorted(by_rule.items()):
        first, last = (datetime.fromtimestamp(second, UTC) for second in (rows[0][0], rows[-1][0]))
        yield Offences(rule=label, count=sum(count for _, count in rows), first_at=first, last_at=last)


def _remembered(demands: list[Demand], listed: list[tuple[str, str]]) -> Iterator[Remembered]:
    """Give what this very process answers by itself; another one may remember something else."""
    local, now = local_cache.local(), snapshot_cache.clock()
    for kind, value in listed:
        ban = local.denials.peek(conf.keys.mark(f"{kind}:{value}"), now)
        if ban is not None:
            left = None if ban.until == inf else ban.until - now
            yield Remembered(what="banned", rule=f"{kind}:{value}", seconds=left)
    for demand in demands:
        denial = local.denials.peek(demand.key, now)
        if denial is not None and denial.definition == demand.part.definition:
            yield Remembered(what="denied by", rule=demand.part.rule.name, seconds=denial.until - now)
        until = None if local.penalties is None else local.penalties.boxed_until(box_of(demand), now)
        if until is not None:
            yield Remembered(what="boxed for", rule=demand.part.rule.name, seconds=until - now)
