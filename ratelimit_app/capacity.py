"""What a decision costs here and now: measured on the configured Redis, with keys that are removed again."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ratelimit_app import engine
from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Door
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.capacity import Costs
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.rates import parse_rates
from ratelimit_app.core.rules import Rule
from ratelimit_app.doors import pass_door
from ratelimit_app.identities import IdentityFacts, named
from ratelimit_app.store.connection import client, each_server, unavailable

if TYPE_CHECKING:
    from ratelimit_app.core.decision import Decision

ENTRIES = 5
SECONDS = 2.0
SLICES = 8
WARM_UP = 20
SIZED = 20
AT_ONCE = 500
PATIENCE = 5


@dataclass
class _Slice:
    """What one stretch of decisions cost, in microseconds a decision."""

    server: float
    client: float
    wall: float
    decisions: int


@dataclass
class _Trial:
    """Decisions of clients that exist for this measurement alone, and the keys that they leave."""

    plan: Plan
    token: str = field(default_factory=lambda: token_hex(6))
    keys: set[bytes] = field(default_factory=set)
    made: int = 0
    failed: int = 0

    def decide(self) -> None:
        """
        Admit the next try: each client fills its logs exactly, then another one comes.

        One decision in vain is a moment of a busy machine, and its client is left: Redis may have charged it
        all the same. `PATIENCE` in a row raise StoreUnavailable.
        """
        facts = IdentityFacts(named(f"device:capacity-{self.token}-{self.made // ENTRIES}"))
        door = Door(sender=measure, plan=self.plan)
        decision: Decision = engine.run(pass_door(facts, door))
        if decision.degraded or not decision.charges:
            self.failed += 1
            self.made += ENTRIES - self.made % ENTRIES
            if self.failed >= PATIENCE:
                msg = f"{PATIENCE} decisions in a row were not charged ({decision.reason})"
                raise StoreUnavailable(msg)
            return
        self.failed = 0
        if self.made % ENTRIES == 0:
            self.keys.update(charge.key for charge in decision.charges)
        self.made += 1

    def clean(self) -> None:
        """Delete the keys. They have an end of their own, should this fail."""
        keys = list(self.keys)
        with unavailable():
            for at in range(0, len(keys), AT_ONCE):
                pipe: Any = client().pipeline(transaction=False)
                for key in keys[at : at + AT_ONCE]:
                    pipe.unlink(key)
                pipe.execute()


def measure(rules: int, *, seconds: float = SECONDS) -> Costs:
    """
    Measure decisions of so many rules, one by one, for about `seconds` seconds.

    Medians of slices, less what the server spends on others. Raises StoreUnavailable, also when the server does
    not let itself be measured.
    """
    names, rates = [f"capacity-{n}" for n in range(rules)], parse_rates(f"{ENTRIES}/m")
    trial = _Trial(Plan([Rule(name=name, slot=f"@{name}", rates=rates) for name in names], conf.keys))
    _server_cpu()  # raises with the reason when there is nothing to measure
    try:
        for _ in range(WARM_UP * ENTRIES):
            trial.decide()
        each = seconds / (SLICES + 1)
        others = _others(each)
        slices = [_slice(trial, each, others) for _ in range(SLICES)]
        log_bytes = _log_bytes(sorted(trial.keys)[:SIZED])
    finally:
        # Whatever failed before is what the caller should hear of.
        with suppress(StoreUnavailable):
            trial.clean()
    return Costs(
        server_us=round(statistics.median(part.server for part in slices), 2),
        client_us=round(statistics.median(part.client for part in slices), 2),
        wall_us=round(statistics.median(part.wall for part in slices), 2),
        log_bytes=log_bytes,
        decisions=sum(part.decisions for part in slices),
        other_load=round(others, 4),
    )


def _others(seconds: float) -> float:
    """Give the share of a core that the server spends while we ask nothing of it."""
    server, began = _server_cpu(), time.perf_counter()
    time.sleep(seconds)
    return (_server_cpu() - server) / (time.perf_counter() - began)


def _slice(trial: _Trial, seconds: float, others: float) -> _Slice:
    """Decide for so long, whole clients only."""
    made, server = trial.made, _server_cpu()
    cpu, began = time.process_time(), time.perf_counter()
    while trial.made == made or time.perf_counter() - began < seconds:
        for _ in range(ENTRIES):
            trial.decide()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    server = max(_server_cpu() - server - others * wall, 0.0)
    decisions = trial.made - made
    each = 1e6 / decisions
    return _Slice(server * each, cpu * each, wall * each, decisions)


def _server_cpu() -> float:
    """Give the CPU seconds of the whole server, its kernel time included."""
    with unavailable():
        each: Any = [one.info("cpu") for one in each_server()]
    try:
        return sum(float(info["used_cpu_user"]) + float(info["used_cpu_sys"]) for info in each)
    except (KeyError, ValueError) as error:
        msg = f"INFO cpu says nothing of the server's CPU time: {error!r}"
        raise StoreUnavailable(msg) from error


def _log_bytes(keys: list[bytes]) -> int:
    """Give the mean size of these logs, their keys included."""
    with unavailable():
        sizes = [client().memory_usage(key, samples=0) or 0 for key in keys]
    return round(statistics.mean(sizes))
