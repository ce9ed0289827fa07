"""The functions: acquire, peek, refund, reset and check, in both colours."""

from __future__ import annotations

import asyncio
import time
from copy import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import RequestFactory

from ratelimit_app import (
    aacquire,
    acheck,
    acquire,
    apeek,
    arefund,
    areset,
    check,
    local_cache,
    offences,
    peek,
    refund,
    reset,
    snapshot_cache,
)
from ratelimit_app.conf import conf

IP = "ip:203.0.113.9"


def test_acquire_counts_down_and_denies(rules: Any) -> None:
    """C69: limit 3 leaves 2, 1, 0, then denies with a wait of at most the period."""
    rules()
    decisions = [acquire(IP, "3/m", group="g") for _ in range(5)]
    assert [2, 1, 0, 0, 0] == [decision.remaining for decision in decisions]
    assert [True] * 3 + [False] * 2 == [decision.allowed for decision in decisions]
    denied = decisions[3]
    assert ("limited", "over_limit", "g", 3, False) == (
        denied.verdict,
        denied.reason,
        denied.rule,
        denied.limit,
        denied.degraded,
    )
    assert denied.retry_after is not None
    assert 59 < denied.retry_after <= 60
    assert denied.identity == IP


async def test_async_twins_answer_alike(rules: Any) -> None:
    """C53: a hundred at once, ten admitted; peek, refund and reset have twins too."""
    rules()
    decisions = await asyncio.gather(*(aacquire(IP, "10/m", group="g") for _ in range(100)))
    assert sum(decision.allowed for decision in decisions) == 10
    assert not (await apeek(IP, "10/m", group="g")).allowed
    admitted = next(decision for decision in decisions if decision.allowed)
    assert [1, 0] == [await arefund(admitted), await arefund(admitted)]
    assert (await apeek(IP, "10/m", group="g")).remaining == 1
    assert await areset(IP) == 1
    assert (await acheck(RequestFactory().get("/"))).allowed


def test_peek_charges_nothing(rules: Any, valkey: Any) -> None:
    """Peek tells what acquire would answer, as often as one likes."""
    rules()
    assert [3, 3] == [peek(IP, "3/m", group="g").remaining for _ in range(2)]
    assert not valkey.exists("rl:1:{ip:203.0.113.9}:@g")
    for _ in range(3):
        acquire(IP, "3/m", group="g")
    assert (False, 0) == (peek(IP, "3/m", group="g").allowed, peek(IP, "3/m", group="g").remaining)


def test_peek_is_no_offence(rules: Any, valkey: Any) -> None:
    """Who only looks does nothing wrong."""
    rules()
    peek(IP, "0/s", group="g")
    offences.flush()
    assert offences.counts(IP) == []


def test_cost_is_taken_whole_or_not_at_all(rules: Any) -> None:
    """C37: limit 10 admits 8 and 2, then not 1; a cost over the limit can never pass."""
    rules()
    assert [True, True, False] == [acquire(IP, "10/m", group="g", cost=cost).allowed for cost in (8, 2, 1)]
    assert acquire(IP, "10/m", group="other", cost=11).retry_after is None


def test_several_rates_are_all_or_nothing(rules: Any, valkey: Any) -> None:
    """C46: a request that one rate denies is charged to none; each rate has its result."""
    rules()
    decisions = [acquire(IP, "2/s;100/m", group="g") for _ in range(4)]
    assert [True, True, False, False] == [decision.allowed for decision in decisions]
    assert {100, 2} == {result.limit for result in decisions[0].results}
    assert [2, 2] == [valkey.zcard(key) for key in valkey.keys("rl:1:{ip:203.0.113.9}:@g*")]


def test_refund_gives_back_once_and_not_after_the_window(rules: Any, travel: Any) -> None:
    """A charge comes back once; after its window there is nothing to give."""
    rules()
    first, second = (acquire(IP, "2/m", group="g") for _ in range(2))
    assert [1, 0] == [refund(first), refund(first)]
    assert acquire(IP, "2/m", group="g").allowed
    travel(61)
    assert refund(second) == 0
    assert refund(acquire(IP, "0/s", group="z")) == 0


def test_reset_when_called_is_noticed_as_the_doors_write_it(rules: Any, valkey: Any) -> None:
    """C96: every process forgets what it remembers of the identity, even if Redis had no log of it."""
    rules()
    told: list[set[str] | None] = []
    snapshot_cache.when_forgotten(told.append)
    try:
        assert 0 == reset("ip:2001:db8::1")
    finally:
        snapshot_cache.when_forgotten(None)
    (_, fields), *others = valkey.xrange(conf.keys.notices)
    assert (b"ip:2001:db8::/64", []) == (fields[b"identity"], others)
    assert {"ip:2001:db8::/64"} in told


def test_reset_forgets_every_log_of_one_identity(rules: Any, valkey: Any) -> None:
    """C104: all groups of the identity, nobody else's; braces and globs in names harm nobody."""
    rules()
    for identity in (IP, "user:*", "user:1"):
        for group in ("a", "b"):
            acquire(identity, "1/m", group=group)
    assert reset("user:*") == 2
    assert reset(IP) == 2
    assert not acquire("user:1", "1/m", group="a").allowed


@pytest.mark.parametrize(
    "pair",
    [
        ("ip:2001:DB8::1", "ip:2001:db8:0:0:0:0:0:2"),
        ("ip:192.0.2.1", "ip:::ffff:192.0.2.1"),
        ("header:X-Api-Key:secret", "header:x-api-key:secret"),
    ],
)
def test_one_identity_has_one_log_however_it_is_written(rules: Any, pair: tuple[str, str]) -> None:
    """C12, C15, C137: the canonical form counts."""
    rules()
    assert [True, False] == [acquire(identity, "1/m", group="g").allowed for identity in pair]


def test_secret_is_in_no_key(rules: Any, valkey: Any) -> None:
    """C26: only a keyed digest reaches Redis."""
    rules()
    acquire("header:x-api-key:my-secret", "1/m", group="g")
    assert not [key for key in valkey.keys("*") if b"my-secret" in key]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("", "1/m", "g", 1), "no identity"),
        (("ip:nonsense", "1/m", "g", 1), "names no address"),
        ((IP, "5/x", "g", 1), "not a rate"),
        ((IP, "1/m", "", 1), "group"),
        ((IP, "1/m", "g", -1), "cost"),
        ((IP, "1/m", "g", 1.5), "cost"),
    ],
)
def test_bad_argument_is_refused_with_the_remedy(arguments: tuple[Any, ...], wanted: str) -> None:
    """C135: what was given and what is expected."""
    identity, rate, group, cost = arguments
    with pytest.raises(ValueError, match=wanted):
        acquire(identity, rate, group=group, cost=cost)


def test_no_rate_is_no_limit_and_no_call(rules: Any, valkey: Any) -> None:
    """C47: None limits nothing and asks nobody; 0/s always denies."""
    rules()
    before = valkey.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    assert acquire(IP, None, group="g").reason == "no_rule"
    assert valkey.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) == before
    assert not acquire(IP, "0/s", group="g").allowed


def test_prefix_does_not_change_the_answer(rules: Any, settings: Any) -> None:
    """C67: with a KEY_PREFIX of its own the wait comes from the same reply."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "KEY_PREFIX": "shop"}
    rules()
    acquire(IP, "1/m", group="g")
    denied = acquire(IP, "1/m", group="g")
    assert denied.retry_after is not None
    assert denied.retry_after > 0


def test_clocks_of_this_machine_do_not_count(rules: Any, monkeypatch: Any) -> None:
    """C60, C61: neither a skewed clock nor another monotonic origin changes what Redis decides."""
    rules()
    monotonic, wall = time.monotonic, time.time
    for shift in (0, 10, -10, 86_400):
        monkeypatch.setattr(time, "time", lambda shift=shift: wall() + shift)
        monkeypatch.setattr(time, "monotonic", lambda shift=shift: monotonic() + shift)
        assert acquire(IP, "4/m", group="g").allowed
    denied = acquire(IP, "4/m", group="g")
    assert (False, 4) == (denied.allowed, denied.limit)
    assert denied.retry_after is not None
    assert denied.retry_after <= 60


def test_schedule_is_kept_by_the_clock_of_redis(rules: Any, travel: Any) -> None:
    """A rule sleeps before starts_at and after ends_at, without a publish at either instant."""
    now = snapshot_cache.now_us()
    rules({"rate": "0/s", "starts_us": now + 60_000_000, "ends_us": now + 120_000_000})
    assert check(RequestFactory().get("/")).allowed
    travel(61)
    assert not check(RequestFactory().get("/")).allowed
    travel(60)
    assert check(RequestFactory().get("/")).allowed


def test_admitted_entries_carry_the_time_of_the_server(rules: Any, valkey: Any) -> None:
    """`results[].at` is the entry's own stamp, in microseconds of the server."""
    rules()
    decision = acquire(IP, "3/m", group="g")
    ((member, score),) = valkey.zrange("rl:1:{ip:203.0.113.9}:@g", 0, -1, withscores=True)
    assert decision.results[0].at == int(member) == int(score)
    assert abs(decision.results[0].at / 1e6 - datetime.now(UTC).timestamp()) < 60


def test_batch_charges_what_it_does(rules: Any) -> None:
    """C154: a view that fans out charges n at once, before it runs them."""
    rules({"rate": "3/m", "name": "login"})
    request = RequestFactory().post("/batch/")
    assert check(request).allowed
    assert not check(request, cost=10).allowed


def test_denied_request_only_looks_afterwards(rules: Any, valkey: Any) -> None:
    """After a denial later doors charge nothing, and the denial is one offence."""
    rules({"rate": "1/m", "name": "a"}, {"rate": "9/m", "name": "b", "scope": "s"})
    check(RequestFactory().get("/"))
    request = RequestFactory().get("/")
    assert not check(request).allowed
    check(request, scope="s")
    assert not valkey.exists("rl:1:{ip:127.0.0.1}:b")
    offences.flush()
    assert [("a", 1)] == [(label, count) for _, label, count in offences.counts("ip:127.0.0.1")]


def test_peek_with_another_period_changes_nothing(rules: Any) -> None:
    """A look with a short window does not cut a long one's log short."""
    rules()
    for _ in range(2):
        acquire(IP, "2/h", group="g")
    peek(IP, "5/1ms", group="g")
    assert not acquire(IP, "2/h", group="g").allowed


def test_reset_header_of_a_great_cost_is_the_window(rules: Any) -> None:
    """Units of one charge do not add a second to what clients are told."""
    from ratelimit_app.core.headers import limit_headers

    rules()
    ruling = acquire(IP, "9/m", group="g", cost=5).ruling
    assert ruling is not None
    assert limit_headers(ruling, "legacy")["X-RateLimit-Reset"] == "60"


@pytest.mark.parametrize(
    "raw", ["device:a%b", "device:a+b", "device:{x}", "device:" + "x" * 90, "alice smith"]
)
def test_copied_identity_is_the_one_it_was_copied_from(rules: Any, raw: str) -> None:
    """The text of a decision, typed again, names the same log."""
    rules()
    acquire(raw, "1/m", group="g")
    shown = acquire(raw, "1/m", group="g").identity
    assert not peek(shown, "1/m", group="g").allowed
    assert reset(shown) == 1


@pytest.mark.parametrize(
    "asked", [{"cost": 10**400}, {"cost": -1}, {"burst": 10**400}, {"burst": "x"}, {"group": []}]
)
def test_acquire_when_a_number_is_beyond_all_limits_says_so(asked: dict[str, Any]) -> None:
    """A ValueError that names the value, not an error of whatever packs it."""
    with pytest.raises(ValueError, match=r"cost=|burst=|group="):
        acquire("user:1", "5/m", **({"group": "g"} | asked))


def test_a_decision_when_copied_is_refunded_once() -> None:
    """Copies share their charges, read or not; so do threads that ask at once."""
    decision = acquire("user:copied", "5/m", group="copied", algorithm="fixed_window")
    other = copy(decision)
    assert [1, 0, 0] == [refund(decision), refund(other), refund(decision)]
    assert 5 == peek("user:copied", "5/m", group="copied", algorithm="fixed_window").remaining


@pytest.mark.parametrize(
    "algorithm", ["sliding_window", "token_bucket", "gcra", "fixed_window", "sliding_counter"]
)
def test_every_algorithm_when_full_denies_again_without_redis_until_a_refund(algorithm: str) -> None:
    """Denied again is no call; a refund in this process is seen at once."""
    taken = acquire("user:again", "2/h", group=algorithm, algorithm=algorithm)
    acquire("user:again", "2/h", group=algorithm, algorithm=algorithm)
    assert not acquire("user:again", "2/h", group=algorithm, algorithm=algorithm).allowed
    hits = local_cache.local().denials.counters().hits
    denied = acquire("user:again", "2/h", group=algorithm, algorithm=algorithm)
    assert (False, hits + 1) == (denied.allowed, local_cache.local().denials.counters().hits)
    assert ["user:again"] == [result.identity for result in denied.results]
    assert 1 == refund(taken)
    assert acquire("user:again", "2/h", group=algorithm, algorithm=algorithm).allowed


def test_a_leaky_bucket_when_it_admits_tells_how_to_smooth(travel: Any) -> None:
    """Three at once of one each second: the second may wait one second, the third two."""
    decisions = [acquire("user:leaky", "3/3s", group="leaky", algorithm="leaky_bucket") for _ in range(3)]
    assert [0, 1, 2] == [round(decision.delay) for decision in decisions]
