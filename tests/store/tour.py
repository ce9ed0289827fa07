"""Everything that the app asks of Redis, once: a tour for servers and users of other kinds than the tests' own."""

from __future__ import annotations

import asyncio
import json
import time
from io import StringIO
from math import inf
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from ratelimit_app import (
    aacquire,
    acquire,
    block,
    capacity,
    doors,
    explain,
    offences,
    peek,
    promotion,
    refund,
    reset,
    sightings,
    snapshot_cache,
    unblock,
)
from ratelimit_app import testing as helpers
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy, Rule
from ratelimit_app.publishing import ledger, repair
from ratelimit_app.store import gateway, turns
from ratelimit_app.store.processes import Presence, processes

ALGORITHMS = (
    "sliding_window",
    "fixed_window",
    "sliding_counter",
    "token_bucket",
    "leaky_bucket",
    "gcra",
)
SHOPPER, BANNED, NETWORK = "203.0.113.7", "203.0.113.8", "198.51.100.0/24"


def tour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use all that talks to Redis, and find that it works; needs a database that commits."""
    monkeypatch.setattr(snapshot_cache._cache, "presence", Presence())
    publish()
    decide()
    requests()
    ban()
    look_after()


def publish() -> None:
    """Rules, marks and networks reach Redis, and the process that asks."""
    Rule.objects.create(name="shop", key="ip", rate="2/h", route="/plain/")
    Rule.objects.create(name="sale", key="global", rate="400/h", route="/public/", lease=40)
    Rule.objects.create(name="members", key="user", rate="5/h")
    PromotionPolicy.objects.create(name="repeat", threshold=2, find_period=600, kinds="ip")
    for value in (BANNED, NETWORK):
        BlacklistEntry.objects.create(kind="ip", value=value)
    AllowlistEntry.objects.create(kind="ip", value="192.0.2.1")
    snapshot_cache.refresh()
    BlacklistEntry.objects.create(kind="ip", value="198.18.0.0/15")
    snapshot_cache.refresh()
    known = snapshot_cache.known()
    assert known is not None
    assert {rule.name for rule in known.rules} == {"shop", "sale", "members"}
    assert len(known.networks) == 2


def decide() -> None:
    """Each algorithm, small and large, passes, denies, looks, gives back and forgets."""
    for algorithm in ALGORITHMS:
        for limit in (3, 300):
            who, rate = f"user:{algorithm}", f"{limit}/h"
            options: dict[str, Any] = {"group": f"tour-{limit}", "algorithm": algorithm}
            first = acquire(who, rate, cost=limit - 1, **options)
            assert first.allowed
            assert not first.degraded
            last = acquire(who, rate, **options)
            assert (True, 0) == (last.allowed, last.remaining), (algorithm, limit, last)
            denied = acquire(who, rate, **options)
            assert (False, False) == (denied.allowed, denied.degraded)
            assert not peek(who, rate, **options).allowed
            assert refund(first) == limit - 1, (algorithm, limit)
            assert acquire(who, rate, **options).allowed
    # One algorithm after the other on one key, both ways, and of other sizes.
    for rate in ("3/h", "300/h", "3/h"):
        for algorithm in ALGORITHMS:
            assert not acquire("user:change", rate, group="change", algorithm=algorithm).degraded
    assert reset("user:change") > 0


def requests() -> None:
    """A shopper meets limit and ban with both identities, and offences are counted."""
    ask = Client().get
    assert [ask("/plain/", REMOTE_ADDR=SHOPPER).status_code for _ in range(5)] == [200, 200, 429, 429, 429]
    assert ask("/plain/", REMOTE_ADDR=BANNED).status_code == 403
    assert ask("/plain/", REMOTE_ADDR="198.51.100.9").status_code == 403
    assert [ask("/public/", REMOTE_ADDR=SHOPPER).status_code for _ in range(3)] == [200] * 3
    doors.give_back(inf)
    sightings.note(f"ip:{SHOPPER}", "user:1")
    sightings.note(f"ip:{SHOPPER}", "user:2")
    sightings.flush()
    assert sightings.active() >= 1
    offences.flush()
    assert sum(count for _, _, count in offences.counts(f"ip:{SHOPPER}")) == 3
    assert f"ip:{SHOPPER}" in offences.offenders(0)


def ban() -> None:
    """Repeat offenders are promoted; people block and unblock, and every process forgets."""
    report = promotion.promote_repeat_offenders()
    assert [item.identity for item in report.promoted] == [f"ip:{SHOPPER}"]
    assert Client().get("/plain/", REMOTE_ADDR=SHOPPER).status_code == 403
    unblock(f"ip:{SHOPPER}")
    assert offences.counts(f"ip:{SHOPPER}") == []
    block("ip:203.0.113.9", reason="tour", period=600)
    assert Client().get("/plain/", REMOTE_ADDR="203.0.113.9").status_code == 403
    told = explain("ip:203.0.113.9")
    assert not told.unknown
    snapshot_cache.refresh()


def look_after() -> None:
    """What runs beside the requests: sync, repair, processes, turns, warm-up, measuring, clearing."""
    repair.sync()
    ledger.drop_strangers()
    assert ledger.count() >= 3
    snapshot_cache._cache.presence.attend(None, "1:1", "1:1", time.time())
    assert processes()
    with turns.turn("tour") as mine:
        assert mine is not None
        mine.renew()
    out = StringIO()
    with pytest.raises(SystemExit) as ending:  # this process alone is none of a site
        call_command("ratelimit_warmup", "--json", "--wait", "0", stdout=out)
    assert ending.value.code == 1 or json.loads(out.getvalue())
    asyncio.run(decide_on_a_loop())
    assert capacity.measure(1, seconds=0.2).log_bytes > 0
    snapshot_cache._cache.presence.leave()
    helpers.clear_limits()


async def decide_on_a_loop() -> None:
    """An event loop decides over a connection of its own, and warms it."""
    assert not (await aacquire("user:loop", "3/h", group="loop")).degraded
    gateway.async_gateway().warm()
    warming = gateway.async_gateway()._warming
    assert warming is not None
    await warming
