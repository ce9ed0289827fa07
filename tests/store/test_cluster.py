"""A real cluster: the factory for all of django-redis, and the limiter through it, whatever moves and whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from django.test import RequestFactory

from ratelimit_app import aacquire, acheck, acquire, check, offences, refund, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.slots import Spread, only_slot, slot_of
from ratelimit_app.models import BlacklistEntry
from ratelimit_app.publishing import repair
from ratelimit_app.store import health, notices
from ratelimit_app.store.cluster_gateway import _tell
from ratelimit_app.store.connection import client, site
from ratelimit_app.store.gateway import async_gateway, gateway
from tests.store.clusters import Cluster
from tests.store.servers import wait_until
from tests.store.test_acl import documented
from tests.store.tour import tour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FACTORY = "ratelimit_app.store.cluster.ClusterConnectionFactory"
FIRST = {"name": "by-ip", "key": "ip", "rate": "3/h"}
SECOND = {"name": "by-device", "key": "device", "rate": "5/h"}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster for all tests here."""
    made = Cluster()
    yield made
    made.end()


@pytest.fixture
def alias(cluster: Cluster, settings: Any, rules: Any) -> Iterator[Cluster]:
    """The limiter on the cluster, which is empty and whole."""
    wait_until(cluster.is_whole, "the cluster to be whole")
    cluster.flush()
    cache = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": cluster.location,
        "OPTIONS": {"CONNECTION_FACTORY": FACTORY},
    }
    settings.CACHES = {**settings.CACHES, "cluster": cache}
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "cluster", "STORE_TIMEOUT": 2.0}
    rules()
    yield cluster
    gateway().close()


def ask(number: int, device: str = "d") -> Any:
    """A request from an address and a device of its own."""
    return RequestFactory().get("/", REMOTE_ADDR=f"203.0.113.{number}", HTTP_X_DEVICE_ID=device)


def apart(server: Callable[[bytes], object]) -> tuple[int, str]:
    """Find an address and a device that live on different servers."""
    for number in range(1, 200):
        for device in ("a", "b", "c", "d"):
            one = conf.keys.base(f"ip:203.0.113.{number}")
            if server(one) is not server(conf.keys.base(f"device:{device}")):
                return number, device
    raise LookupError


def test_django_redis_when_it_uses_the_factory_works_over_all_servers(alias: Cluster) -> None:
    """Everything that a cache does, with keys in many slots."""
    cache: Any = caches["cluster"]
    many = {f"key{number}": number for number in range(50)}
    cache.set_many(many)
    assert cache.get_many(many) == many
    assert (cache.get("key1"), cache.get("none", 7)) == (1, 7)
    assert sorted(cache.keys("key*")) == sorted(many)
    assert sorted(cache.iter_keys("key*")) == sorted(many)
    assert cache.incr("key1", 5) == 6
    assert cache.add("key1", 0) is False
    assert cache.has_key("key2")
    assert cache.touch("key2", 100)
    assert 0 < cache.ttl("key2") <= 100
    assert cache.delete("key2")
    assert cache.delete_many(["key3", "key4"]) == 2
    with cache.lock("lock", timeout=5):
        assert cache.get_or_set("made", lambda: 9) == 9
    assert cache.delete_pattern("key1*") == 11
    assert len(cache.keys("*")) == 50 - 3 - 11 + 1
    cache.clear()
    assert cache.get_many(many) == {}
    assert cache.client.get_client(write=True) is not client()


@pytest.mark.django_db(transaction=True)
def test_the_limiter_when_on_a_cluster_can_do_everything(
    alias: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C129: rules, lists, offences, promotion, notices, processes, turns, warming up, measuring."""
    snapshot_cache.override(None)
    tour(monkeypatch)


@pytest.mark.django_db(transaction=True)
def test_a_user_when_allowed_what_is_documented_can_do_everything_on_a_cluster(
    alias: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C125: nothing is refused by any of the servers."""
    for server in alias.servers:
        server.ask("ACL", "SETUSER", "limiter", "reset", *documented(of_cluster=True))
        server.ask("ACL", "LOG", "RESET")
    cache = settings.CACHES["cluster"]
    user = {"USERNAME": "limiter", "PASSWORD": "secret"}
    settings.CACHES = {**settings.CACHES, "cluster": {**cache, "OPTIONS": {**cache["OPTIONS"], **user}}}
    snapshot_cache.override(None)
    tour(monkeypatch)
    assert [server.ask("ACL", "LOG") for server in alias.servers] == [[]] * len(alias.servers)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_when_its_keys_are_on_several_servers_is_decided_as_on_one(
    alias: Cluster, rules: Any, settings: Any, asynchronous: bool
) -> None:
    """Limit, remaining, waits and all or nothing are those of a single server, request by request."""

    def decide(request: Any) -> Any:
        if not asynchronous:
            return check(request)

        async def decided() -> Any:
            try:
                return await acheck(request)
            finally:
                async_gateway().close()

        return asyncio.run(decided())

    number, device = apart(alias.owner)
    steps = [(number, device)] * 5 + [(number + 1, device)] * 4 + [(number + 2, device)]
    told = []
    for name in ("cluster", "default"):
        settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": name}
        rules(FIRST, SECOND, {"name": "watch", "key": "device", "rate": "1/h", "mode": "shadow"})
        decisions = [decide(ask(*step)) for step in steps]
        assert not any(decision.degraded for decision in decisions)
        told.append([essence(decision) for decision in decisions])
    assert told[0] == told[1]
    verdicts = [row[0] for row in told[0]]
    assert verdicts == ["allowed"] * 3 + ["limited"] * 2 + ["allowed"] * 2 + ["limited"] * 3


def essence(decision: Any) -> Any:
    """What a client and a program see of a decision, instants aside."""
    results = [(one.rule, one.allowed, one.remaining, round(one.reset_after, -2)) for one in decision.results]
    wait = round(decision.retry_after or 0, -2)
    return decision.verdict.value, decision.rule, decision.limit, decision.remaining, wait, results


def test_a_denied_request_when_its_keys_are_on_several_servers_charges_none(
    alias: Cluster, rules: Any
) -> None:
    """All or none, whichever of the servers it is that denies; what a refund gives back is all there was."""
    number, device = apart(alias.owner)
    rules(FIRST, SECOND)
    granted = [check(ask(number, device)) for _ in range(3)]
    for _ in range(3):
        assert not check(ask(number, device)).allowed
    assert check(ask(number + 1, device)).results[1].remaining == 1
    assert refund(granted[0]) == 2
    assert check(ask(number, device)).allowed


def test_requests_when_many_at_once_share_keys_on_several_servers_are_exact(
    alias: Cluster, rules: Any
) -> None:
    """Not one too many in any window, and no charge is left of those that were denied."""
    number, device = apart(alias.owner)
    rules({**FIRST, "rate": "40/h"}, {**SECOND, "rate": "60/h"})

    def work(_: int) -> int:
        return sum(check(ask(number, device)).allowed for _ in range(20))

    async def crowd() -> int:
        return sum(await asyncio.gather(*(asyncio.to_thread(work, one) for one in range(8))))

    admitted = asyncio.run(crowd())
    held = {}
    for identity in (f"ip:203.0.113.{number}", f"device:{device}"):
        key = conf.keys.base(identity) + (b":by-ip" if identity.startswith("ip") else b":by-device")
        held[identity] = alias.owner(key).ask("ZCARD", key)
    assert admitted <= 40
    assert set(held.values()) == {admitted}
    # Two that took the last unit of one server each may have turned each other away: then there is room left.
    while check(ask(number, device)).allowed:
        admitted += 1
    assert admitted == 40


def test_a_ban_when_its_mark_is_on_another_server_than_the_rule_holds(alias: Cluster, rules: Any) -> None:
    """A ban is found wherever it stands, and the request charges nothing."""
    number, device = apart(alias.owner)
    rules(FIRST, marked_kinds=frozenset({"device"}))
    mark = conf.keys.mark(f"device:{device}")
    client().set(mark, 0)
    decision = check(ask(number, device))
    assert (decision.verdict.value, decision.identity) == ("blocked", f"device:{device}")
    key = conf.keys.base(f"ip:203.0.113.{number}") + b":by-ip"
    assert alias.owner(key).ask("ZCARD", key) == 0


def decide_all(count: int, group: str) -> list[Any]:
    """Decide for identities all over the cluster, with both drivers."""

    async def on_a_loop() -> list[Any]:
        found = [await aacquire(f"user:{number}", "9999/h", group=group) for number in range(count)]
        async_gateway().close()
        return found

    return [acquire(f"user:{number}", "9999/h", group=group) for number in range(count)] + asyncio.run(
        on_a_loop()
    )


def test_scripts_when_lost_by_a_server_are_sent_again(alias: Cluster) -> None:
    """C123: NOSCRIPT of each server costs no decision, alone and among several."""
    for server in alias.primaries():
        server.ask("SCRIPT", "FLUSH")
    assert not any(decision.degraded for decision in decide_all(20, "lost"))


def test_a_slot_when_it_has_moved_is_followed(alias: Cluster, rules: Any) -> None:
    """MOVED costs no decision, and counts go with the slot."""
    number, device = apart(alias.owner)
    rules(FIRST, SECOND)
    assert check(ask(number, device)).allowed
    key = conf.keys.base(f"ip:203.0.113.{number}")
    source = alias.owner(key)
    target = next(server for server in alias.primaries() if server is not source)
    alias.move(key, target)
    decisions = [check(ask(number, device)) for _ in range(3)]
    found: Any = client()
    assert found.name_of(slot_of(key)) == f"127.0.0.1:{target.port}", (
        "it is asked for at the right server next time"
    )
    assert [(one.allowed, one.degraded) for one in decisions] == [(True, False)] * 2 + [(False, False)]
    alias.move(key, source)
    assert not check(ask(number, device)).degraded


@pytest.mark.parametrize("moved_keys", [False, True])
def test_a_slot_when_it_is_being_moved_is_asked_at_both_servers(
    alias: Cluster, rules: Any, moved_keys: bool
) -> None:
    """ASK and TRYAGAIN: some keys are here, some there, and each decision is exact all the same."""
    number, device = apart(alias.owner)
    rules(FIRST, {**FIRST, "name": "other", "rate": "4/h"}, SECOND, marked_kinds=frozenset({"ip", "device"}))
    assert check(ask(number, device)).allowed
    key = conf.keys.base(f"ip:203.0.113.{number}")
    source = alias.owner(key)
    target = next(server for server in alias.primaries() if server is not source)
    alias.move(key, target, finish=False)
    if moved_keys:
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", key + b":by-ip")
    try:
        decisions = [check(ask(number, device)) for _ in range(3)]
        assert [(one.allowed, one.degraded) for one in decisions] == [(True, False)] * 2 + [(False, False)]
        aside = asyncio.run(decided_aside(number, device))
        assert (aside.allowed, aside.degraded) == (False, False)
    finally:
        alias.finish(slot_of(key), source, target)
        alias.move(key, source)


async def decided_aside(number: int, device: str) -> Any:
    """Decide on an event loop of its own."""
    try:
        return await acheck(ask(number, device))
    finally:
        async_gateway().close()


class Crowd:
    """Threads and an event loop that decide for so many users all the time, and note who was degraded."""

    def __init__(self, users: int) -> None:
        self._over, self._users = threading.Event(), range(users)
        self._degraded: set[int] = set()
        self._asking = ThreadPoolExecutor(3)
        self._all = [self._asking.submit(work) for work in (self._ask, self._ask, self._ask_on_a_loop)]

    def _ask(self) -> None:
        while not self._over.is_set():
            for number in self._users:
                if acquire(f"user:{number}", "9999999/h", group="crowd", algorithm="gcra").degraded:
                    self._degraded.add(number)

    def _ask_on_a_loop(self) -> None:
        asyncio.run(self._aask())

    async def _aask(self) -> None:
        while not self._over.is_set():
            asked = (
                aacquire(f"user:{number}", "9999999/h", group="crowd", algorithm="gcra")
                for number in self._users
            )
            for number, decision in enumerate(await asyncio.gather(*asked)):
                if decision.degraded:
                    self._degraded.add(number)
        async_gateway().close()

    def disperse(self) -> set[int]:
        """End, raise what any of them has raised, and give who was degraded."""
        self._over.set()
        self._asking.shutdown()
        for each in self._all:
            each.result()
        return self._degraded


def test_a_primary_when_killed_degrades_what_lived_there_and_nothing_else(
    alias: Cluster, rules: Any, settings: Any
) -> None:
    """Others are exact meanwhile; rules of one request are each decided by their own server; the replica takes over."""
    number, device = apart(alias.owner)
    rules(FIRST, {**SECOND, "on_failure": "open"})
    assert check(ask(number, device)).allowed
    killed = alias.owner(conf.keys.base(f"device:{device}"))
    there = [n for n in range(40) if alias.owner(conf.keys.base(f"user:{n}")) is killed]
    assert 0 < len(there) < 40
    wait_until(lambda: killed.ask("WAIT", 1, 1000) >= 1, "the replica to have it all")
    crowd = Crowd(40)
    killed.kill()
    try:
        denied = [check(ask(number, device)) for _ in range(3)]
        assert [decision.allowed for decision in denied] == [True, True, False]
        assert denied[-1].rule == "by-ip"
        wait_until(
            lambda: not any(one.degraded for one in decide_all(40, "killed")), "the replica to take over"
        )
        assert crowd.disperse() <= set(there)
        after = check(ask(number + 1, device))
        assert after.allowed
        assert not after.degraded
    finally:
        crowd.disperse()
        killed.start()


def test_a_closed_rule_when_its_server_is_gone_charges_no_other(
    alias: Cluster, rules: Any, settings: Any
) -> None:
    """503 for the rule that cannot be decided, and what the other server was charged is given back."""
    number, device = apart(alias.owner)
    rules(FIRST, {**SECOND, "on_failure": "closed"})
    key = conf.keys.base(f"ip:203.0.113.{number}") + b":by-ip"
    alive, gone = alias.owner(key), alias.owner(conf.keys.base(f"device:{device}"))
    assert check(ask(number, device)).allowed
    # Shorter than the replica takes to notice.
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "STORE_TIMEOUT": 0.5}
    assert not check(ask(number + 1, device)).degraded
    before = alive.ask("ZCARD", key)
    gone.hang()
    try:
        # The first one waits for it; from then on the breaker knows, and the other server is asked alone.
        for _ in range(3):
            assert check(ask(number, device)).verdict.value == "unavailable"
        assert not health.breaker(f"cluster 127.0.0.1:{alive.port}").is_open
        assert alive.ask("ZCARD", key) == before
    finally:
        gone.go_on()


def test_no_node_when_any_answers_is_an_outage_within_the_time(settings: Any, rules: Any) -> None:
    """A cluster that nobody can reach costs one budget, and each rule follows its policy."""
    cache = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "redis://127.0.0.1:1|redis://127.0.0.1:2",
        "OPTIONS": {"CONNECTION_FACTORY": FACTORY},
    }
    settings.CACHES = {**settings.CACHES, "cluster": cache}
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "cluster"}
    rules()
    assert acquire("user:1", "5/h", group="g").degraded


@pytest.mark.parametrize(
    "location",
    ["redis://127.0.0.1:1/3", "unix:///tmp/valkey.sock", "redis://127.0.0.1:1|redis://127.0.0.1:2/1"],
)
def test_a_location_when_no_cluster_can_have_it_is_unavailable(
    settings: Any, rules: Any, location: str
) -> None:
    """A database but the first, or a socket: said in the log, and no request becomes a 500."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
    settings.CACHES = {**settings.CACHES, "cluster": {**cache, "OPTIONS": {"CONNECTION_FACTORY": FACTORY}}}
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "cluster"}
    rules()
    assert acquire("user:1", "5/h", group="g").degraded


def test_keys_of_the_site_share_a_slot() -> None:
    """C124: scripts and transactions over them work; so do all keys of one identity."""
    keys = conf.keys
    site = [keys.snapshot, keys.networks, keys.network_changes, keys.marks, keys.offenders, keys.notices]
    assert only_slot([key.encode() for key in [*site, keys.processes, keys.warmup]]) is not None
    assert only_slot([keys.mark("user:1"), keys.offences("user:1"), keys.log("user:1", b"r")]) is not None


@pytest.mark.parametrize(
    ("identities", "told"),
    [
        (["user:1", "user:2+ip:192.0.2.1"], {"user:1", "user:2+ip:192.0.2.1"}),
        (["user:1", "param:" + "x" * 200], None),
    ],
)
def test_a_charge_when_given_back_makes_every_process_forget(
    identities: list[str], told: set[str] | None
) -> None:
    """Somebody may have been denied for it: whom it concerns is told, everybody where the key does not say whom."""
    keys = [conf.keys.log(identity, b"rule") for identity in identities]
    assert _tell(Spread(b"reply", keys)) == b"reply"
    reader = notices.Reader()
    found: set[str] | None = set()

    def heard() -> bool:
        nonlocal found
        pipe: Any = site().pipeline(transaction=False)
        reader.ask(pipe)
        found = reader.take(pipe.execute()[0])
        return found is None or bool(found)

    wait_until(heard, "the notice")
    assert found == told


def test_offences_when_a_flush_is_sent_twice_are_counted_once(alias: Cluster) -> None:
    """What may have arrived is sent again after an error, to all servers; each remembers the flush that it has seen."""
    lines = Counter({(f"user:{number}", "rule", 1_800_000_000): 2 for number in range(30)})
    offences._send("one", lines)
    offences._send("one", lines)
    offences._send("two", Counter({("user:1", "rule", 1_800_000_000): 1}))
    assert [offences.counts(f"user:{number}") for number in (0, 1)] == [
        [(1_800_000_000, "rule", 2)],
        [(1_800_000_000, "rule", 3)],
    ]
    assert len(offences.offenders(0)) == 30
    offences.forget("user:1", before_s=1_900_000_000)
    assert offences.counts("user:1") == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("banned", [True, False])
def test_marks_when_their_writing_is_interrupted_are_finished_by_the_sync(
    alias: Cluster, monkeypatch: pytest.MonkeyPatch, banned: bool
) -> None:
    """Marks are there, their notice is not: the index says so, and the sync writes both anew."""
    snapshot_cache.override(None)
    entry = BlacklistEntry.objects.create(kind="user", value="7")
    if not banned:
        BlacklistEntry.objects.bulk_create([BlacklistEntry(kind="user", value="8")])
    before: Any = site().xlen(conf.keys.notices)
    with monkeypatch.context() as broken:
        broken.setattr(notices, "commit", lambda *_: _raise())
        with contextlib.suppress(StoreUnavailable):
            if banned:
                BlacklistEntry.objects.create(kind="user", value="9")
            else:
                entry.delete()
    assert site().xlen(conf.keys.notices) == before
    repair.sync()
    assert site().xlen(conf.keys.notices) > before
    user = "9" if banned else "7"
    assert client().get(conf.keys.mark(f"user:{user}")) == (b"0" if banned else None)
    assert site().hget(conf.keys.marks, f"user:{user}") == (b"0" if banned else None)
    assert not repair.sync().has_drifted


def _raise() -> None:
    message = "interrupted"
    raise StoreUnavailable(message)


def test_servers_when_they_are_none_of_the_cluster_any_more_are_let_go(alias: Cluster) -> None:
    """No connection is kept to a server that has left."""
    assert not any(decision.degraded for decision in decide_all(20, "left"))
    mine: Any = gateway()
    stranger = mine._node("127.0.0.1:1")
    assert stranger is mine._nodes["127.0.0.1:1"]
    name = next(iter(mine._nodes))
    left = mine._nodes.pop(name)
    mine._node(name)
    assert "127.0.0.1:1" not in mine._nodes
    left.close()
