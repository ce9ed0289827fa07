"""The deny cache: it never says what Redis has not said, it is bounded, and what is forgotten stays forgotten."""

from __future__ import annotations

import os
import random
import threading
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ratelimit_app.core.deny_cache import Counters, Denial, DenyCache

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

WAIT = 30.0
KEYS = [b"key-%d" % n for n in range(8)]
IDENTITIES = ["ip:1", "user:1", "ip:1+user:1", "ip:1+user:12", "user:12"]


def denial(until: float = 10.0, identity: str = "ip:1", marks: Collection[str] = (), **fields: Any) -> Denial:
    """Give a denial, of which a test says what matters to it."""
    rest: dict[str, Any] = {"cost": 1, "definition": b"d", "remaining": 0, "reset": until} | fields
    return Denial(until, identity=identity, marks=frozenset(marks), **rest)


def full(*ends: float, draw: Callable[[], float] = lambda: 0.0) -> DenyCache:
    """Give a cache that is full of denials with these ends, by the first of `KEYS`."""
    cache = DenyCache(len(ends), draw)
    cache.find(b"", 0.0)
    for key, end in zip(KEYS, ends, strict=False):
        cache.put(key, denial(end), cache.generation)
    return cache


def held(cache: DenyCache, now: float = 0.0) -> list[bytes]:
    """Name those of `KEYS` that are known to be denied."""
    return [key for key in KEYS if cache.find(key, now)]


def is_whole(cache: DenyCache, size: int) -> bool:
    """Whether slots and rows agree, and none is over the size."""
    agree = set(cache._slots) == set(cache._rows)
    return agree and len(cache._rows) == len(cache._slots) == len(cache._ends) <= size


def concerns(found: Denial, names: set[str]) -> bool:
    """Whether a denial is about one of these identities: the specification, in its plainest form."""
    return bool(names & {found.identity, *found.identity.split("+"), *found.marks})


class AgainstModel(RuleBasedStateMachine):
    """Any sequence of operations, against a plain dict; with too small a size the cache may only know less."""

    @initialize(size=st.sampled_from([0, 1, 2, 5, len(KEYS), 1_000]), seed=st.integers(0, 99))
    def begin(self, size: int, seed: int) -> None:
        """Begin with an empty cache and an empty model."""
        self.size, self.exact = size, size >= len(KEYS)
        self.cache = DenyCache(size, random.Random(seed).random)
        self.model: dict[bytes, Denial] = {}
        self.now, self.finds = 0.0, 0
        self.asked_in = [0]

    @rule(
        key=st.sampled_from(KEYS),
        wait=st.sampled_from([-1.0, 0.0, 1.0, 2.0, 5.0, inf]),
        identity=st.sampled_from(IDENTITIES),
        marks=st.lists(st.sampled_from(IDENTITIES[:2]), max_size=2).map(tuple),
        asked=st.integers(0, 1),
    )
    def put(self, key: bytes, wait: float, identity: str, marks: Collection[str], asked: int) -> None:
        """An answer that was asked for just now, or before the last thing forgotten."""
        generation = self.asked_in[-1 - asked % len(self.asked_in)]
        said = denial(self.now + wait, identity, marks)
        self.cache.put(key, said, generation)
        if generation == self.cache.generation and self.size:
            self.model[key] = said

    @rule(key=st.sampled_from(KEYS))
    def discard(self, key: bytes) -> None:
        """One key, there or not."""
        self.cache.discard(key)
        self.model.pop(key, None)
        self.asked_in.append(self.cache.generation)

    @rule(names=st.sets(st.sampled_from(IDENTITIES), max_size=2))
    def forget(self, names: set[str]) -> None:
        """All that is about some identities."""
        self.cache.forget(names)
        self.model = {key: said for key, said in self.model.items() if not concerns(said, names)}
        self.asked_in.append(self.cache.generation)

    @rule()
    def clear(self) -> None:
        """Everything."""
        self.cache.clear()
        self.model = {}
        self.asked_in.append(self.cache.generation)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @rule(key=st.sampled_from(KEYS))
    def find(self, key: bytes) -> None:
        """What is found is what was put last; an exact cache finds all of it."""
        self.finds += 1
        found, said = self.cache.find(key, self.now), self.model.get(key)
        known = said if said is not None and said.until > self.now else None
        assert found is known or (found is None and not self.exact)

    @invariant()
    def counts_add_up(self) -> None:
        """Slots and rows agree, the size holds, and an exact cache loses nothing."""
        if not hasattr(self, "cache"):
            return
        assert is_whole(self.cache, self.size)
        hits, misses, evictions, size = self.cache.counters()
        assert self.finds == hits + misses
        assert size == sum(row is not None for row in self.cache._rows.values())
        assert not self.exact or (0, len(self.model)) == (evictions, size)


AgainstModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TestAgainstModel = AgainstModel.TestCase


def test_a_denial_when_its_instant_has_come_is_over() -> None:
    """It holds before `until`, not at it: at that instant Redis could say yes (C155)."""
    cache = full(10.0)
    assert denial(10.0) == cache.find(KEYS[0], 9.999)
    assert cache.find(KEYS[0], 10.0) is None


@pytest.mark.parametrize(
    ("identity", "marks", "names", "goes"),
    [
        ("user:1", (), ["user:1"], True),
        ("user:12", (), ["user:1"], False),
        ("ip:9+user:1", (), ["user:1"], True),
        ("ip:9+user:12", (), ["user:1"], False),
        ("ip:9+user:1", (), ["ip:9+user:1"], True),
        ("user:1", (), ["ip:9+user:1"], False),
        ("user:2", ("ip:9", "user:2"), ["ip:9"], True),
        ("user:2", ("ip:99",), ["ip:9"], False),
        ("user:2", (), ["user:3", "user:2"], True),
        ("user:2", (), [], False),
    ],
)
def test_forgetting_when_an_identity_is_whole_or_a_part_or_a_mark_takes_the_denial_out(
    identity: str, marks: Collection[str], names: list[str], goes: bool
) -> None:
    """An unblock or a reset reaches all that it concerns, and nothing else."""
    cache = DenyCache(5)
    cache.put(b"key", denial(identity=identity, marks=marks), cache.generation)
    cache.forget(names)
    assert goes == (cache.find(b"key", 0.0) is None)


@pytest.mark.parametrize(
    "end",
    [lambda c: c.forget(["ip:9"]), lambda c: c.discard(b"other"), lambda c: c.clear()],
    ids=["forget", "discard", "clear"],
)
def test_an_answer_when_asked_for_before_something_was_forgotten_is_not_kept(
    end: Callable[[DenyCache], None],
) -> None:
    """A reply that was on its way while an identity was freed may be about the time before."""
    cache = DenyCache(5)
    asked = cache.generation
    end(cache)
    cache.put(b"key", denial(), asked)
    assert cache.find(b"key", 0.0) is None
    cache.put(b"key", denial(), cache.generation)
    assert cache.find(b"key", 0.0)


def test_an_overflow_when_four_are_drawn_loses_the_soonest_to_end() -> None:
    """The others were going to be asked about for longer."""
    cache = full(40.0, 10.0, 30.0, inf)
    cache.put(KEYS[4], denial(20.0), cache.generation)
    assert [KEYS[0], KEYS[2], KEYS[3], KEYS[4]] == held(cache)
    cache.put(KEYS[5], denial(50.0), cache.generation)
    assert [KEYS[0], KEYS[2], KEYS[3], KEYS[5]] == held(cache)


def test_an_overflow_when_a_denial_was_renewed_goes_by_its_new_end() -> None:
    """A key that is denied again and again is not the first to go because of its first end."""
    cache = full(40.0, 10.0, 30.0, inf)
    cache.put(KEYS[1], denial(60.0), cache.generation)
    cache.put(KEYS[4], denial(50.0), cache.generation)
    assert [KEYS[0], KEYS[1], KEYS[3], KEYS[4]] == held(cache)


def test_an_overflow_when_a_drawn_slot_was_emptied_loses_nothing() -> None:
    """The place of a denial that was taken out, even of an endless one, is used before a living one."""
    cache = full(inf, 10.0, 30.0, 20.0)
    cache.discard(KEYS[0])
    cache.put(KEYS[4], denial(50.0), cache.generation)
    assert [KEYS[1], KEYS[2], KEYS[3], KEYS[4]] == held(cache)
    assert Counters(4, 5, 0, 4) == cache.counters()


def test_an_overflow_when_what_goes_has_ended_is_no_eviction() -> None:
    """The counter tells an operator that the size is too small; an end that has passed is no loss."""
    cache = full(10.0, 20.0, 30.0, 40.0)
    assert cache.find(KEYS[0], 15.0) is None
    cache.put(KEYS[4], denial(50.0), cache.generation)
    assert 0 == cache.counters().evictions
    cache.put(KEYS[5], denial(60.0), cache.generation)
    assert 1 == cache.counters().evictions


def test_a_cache_when_its_size_is_zero_knows_nothing() -> None:
    """`LOCAL_CACHE_SIZE = 0` switches it off."""
    cache = DenyCache(0)
    cache.put(b"key", denial(), cache.generation)
    assert cache.find(b"key", 0.0) is None
    assert Counters(0, 1, 0, 0) == cache.counters()


def hit_rate(size: int, order: Iterator[int], offenders: int, requests: int) -> float:
    """
    Give the part of repeated denials that are answered locally.

    Each offender is let through at an instant of its own in each hour, and denied until the next one; the requests
    fill two hours.
    """
    draw = random.Random(1)
    cache, cost = DenyCache(size, draw.random), 7_200.0 / requests
    phases = [3_600.0 * draw.random() for _ in range(offenders)]
    told, hits, repeated = [0.0] * offenders, 0, 0
    for number in range(requests):
        who, now = next(order), number * cost
        repeated += told[who] > now
        if cache.find(b"%d" % who, now):
            hits += 1
        else:
            told[who] = now + (phases[who] - now) % 3_600.0
            cache.put(b"%d" % who, denial(told[who]), cache.generation)
    return hits / repeated


def uniform(offenders: int) -> Iterator[int]:
    """Anybody may come next."""
    draw = random.Random(2)
    while True:
        yield draw.randrange(offenders)


def in_turn(offenders: int) -> Iterator[int]:
    """Each comes again only after all others."""
    while True:
        yield from range(offenders)


@pytest.mark.parametrize("order", [uniform, in_turn])
def test_hit_rate_when_all_offenders_have_room_is_whole(order: Callable[[int], Iterator[int]]) -> None:
    """Every repeated denial is local."""
    assert 1.0 == hit_rate(1_000, order(1_000), 1_000, 16_000)


@pytest.mark.parametrize(("order", "least"), [(uniform, 0.48), (in_turn, 0.30)])
def test_hit_rate_when_half_of_the_offenders_have_room_stays_high(
    order: Callable[[int], Iterator[int]], least: float
) -> None:
    """An overflow degrades it, and never to nothing, whatever order they come in."""
    assert least <= hit_rate(500, order(1_000), 1_000, 32_000)


def run_together(*works: Callable[[], None]) -> None:
    """Run these in threads of their own, and raise what one of them raised."""
    raised: list[Exception] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)
    if raised:
        raise raised[0]


@pytest.mark.usefixtures("_restless")
def test_eight_threads_when_they_overflow_it_keep_it_whole_and_true() -> None:
    """Rows and slots never part, the size is never passed, and no key gets another one's denial (C58)."""
    cache = DenyCache(50)

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for number in range(1_500):
            who = draw.randrange(200)
            found = cache.find(b"%d" % who, float(number))
            assert found is None or (f"ip:{who}" == found.identity and found.until > number)
            cache.put(b"%d" % who, denial(number + draw.random() * 9, f"ip:{who}"), cache.generation)
            if who == 0:
                cache.discard(b"%d" % draw.randrange(200))
            elif who == 1:
                cache.forget([f"ip:{draw.randrange(200)}"])

    run_together(*(lambda seed=seed: work(seed) for seed in range(8)))
    assert is_whole(cache, 50)
    assert 50 == len(cache._rows)
    assert cache._empty == sum(row is None for row in cache._rows.values())


@pytest.mark.usefixtures("_restless")
def test_forgetting_when_others_put_at_the_same_time_leaves_nothing_older() -> None:
    """Once `forget` is back, no denial asked for before it is found, though threads go on putting theirs."""
    cache, begun, over = DenyCache(200), threading.Event(), threading.Event()

    def put() -> None:
        while not over.is_set():
            asked = cache.generation
            for number in range(1_000):
                cache.put(b"%d" % (number % 100), denial(remaining=asked), asked)
            begun.set()

    def forget() -> None:
        try:
            assert begun.wait(WAIT)
            for _ in range(200):
                cache.forget(["ip:1"])
                now = cache.generation
                found = [cache.find(b"%d" % number, 0.0) for number in range(100)]
                assert [] == [row for row in found if row is not None and row.remaining < now]
        finally:
            over.set()

    run_together(forget, put, put)


def test_forgetting_when_the_cache_is_large_lets_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """It walks in chunks and gives way between them; late answers are refused, and a clear does not disturb it."""
    cache = DenyCache(10)
    for number in range(6):
        cache.put(b"%d" % number, denial(identity=f"ip:{number % 2}"), cache.generation)
    asked, pauses = cache.generation, list[int]()

    def pause(_: float) -> None:
        cache.put(b"1", denial(identity="ip:1"), asked)
        pauses.append(cache.counters().size)
        if len(pauses) == 2:
            cache.clear()
            cache.put(b"5", denial(identity="ip:0"), cache.generation)

    monkeypatch.setattr("ratelimit_app.core.soonest_table.CHUNK", 2)
    monkeypatch.setattr("ratelimit_app.core.soonest_table.sleep", pause)
    cache.forget(["ip:1"])
    assert [5, 4] == pauses
    assert ["ip:0"] == [found.identity for n in range(6) if (found := cache.find(b"%d" % n, 0.0))]


def test_finding_when_the_lock_is_held_does_not_wait() -> None:
    """A denied request never waits for whoever forgets or inserts."""
    cache = full(10.0)
    found: list[Denial | None] = []
    with cache._lock:
        thread = threading.Thread(target=lambda: found.append(cache.find(KEYS[0], 0.0)), daemon=True)
        thread.start()
        thread.join(WAIT)
    assert [denial(10.0)] == found


class InterruptedSlots(list[bytes]):
    """Slots that are interrupted once, as by a signal's exception."""

    armed = True

    def append(self, key: bytes) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        super().append(key)


class InterruptedRows(dict[bytes, Any]):
    """Rows that are interrupted once."""

    armed = True

    def __setitem__(self, key: bytes, row: Any) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        super().__setitem__(key, row)


@pytest.mark.parametrize(
    ("ends", "where", "kind"),
    [
        ([10.0, 20.0, 30.0], "_slots", InterruptedSlots),
        ([10.0, 20.0, 30.0], "_rows", InterruptedRows),
        ([10.0, 20.0, 30.0, 40.0], "_rows", InterruptedRows),
    ],
)
def test_putting_when_it_is_interrupted_leaves_a_cache_that_works(
    ends: list[float], where: str, kind: type
) -> None:
    """An exception between two steps never lets the cache grow over its size, or fail for good."""
    cache = DenyCache(4, random.Random(1).random)
    for key, end in zip(KEYS, ends, strict=False):
        cache.put(key, denial(end), cache.generation)
    setattr(cache, where, kind(getattr(cache, where)))
    with pytest.raises(KeyboardInterrupt):
        cache.put(KEYS[5], denial(60.0), cache.generation)
    for number in range(100):
        cache.put(b"%d" % number, denial(70.0), cache.generation)
        assert denial(70.0) == cache.find(b"%d" % number, 0.0)
        assert len(cache._rows) <= len(cache._slots) == len(cache._ends) <= 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_when_a_thread_was_at_work_begins_empty_with_a_lock_of_its_own() -> None:
    """A lock that nobody in the child will give back, and rows half put in, are not inherited."""
    cache = full(10.0, 20.0)
    with cache._lock:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child is measured by its exit status
            status = 1
            try:
                cache.after_fork()
                empty = held(cache) == []
                cache.put(KEYS[1], denial(), cache.generation)
                status = 0 if (empty, held(cache)) == (True, [KEYS[1]]) else 2
            finally:
                os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert KEYS[:2] == held(cache)
