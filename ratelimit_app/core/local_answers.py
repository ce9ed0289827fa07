"""
What a process answers by itself: bans and denials that Redis has told it, until nothing else can be true.

A denial is remembered from before its call was sent, on the process's own clock, so that it never outlives what
Redis would say. Until then only a refund, a reset or an unblock can make room, and those are told to every process.
What a rule finds of its form before a change is charged anew at the first call after it, be it denied by another rule:
a denial therefore answers for no rule that was not asked with it as it is now.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimit_app.core.access_lists import NEVER
from ratelimit_app.core.calls import BANNED, DENIED, OVER, ROW, ROWS, Demand, blocked, judged, tell, unpack
from ratelimit_app.core.decision import Decision, Reason, Telling, Verdict, quick
from ratelimit_app.core.deny_cache import Denial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratelimit_app.core.deny_cache import DenyCache
    from ratelimit_app.core.outage import OutageLimits
    from ratelimit_app.core.penalty_box import PenaltyBox
    from ratelimit_app.core.permits import Permits
    from ratelimit_app.core.plans import Part

_SECOND = 1_000_000
ROUNDING = 5e-7  # seconds, half of what stamps count in: neither an end nor the instant of an answer may come out later than it is
LIVES = 20  # a permit lives this part of its period, at most
# What can never pass is asked for again after this time, so that no denial stays for ever.
NEVER_PASSES_US = 60 * _SECOND
_LIMITED, _EXCEEDED = Verdict.LIMITED, Reason.OVER_LIMIT


class Local(NamedTuple):
    """
    What one process remembers. `penalties`: None when the penalty box is off.

    `outage`: what it grants by itself while Redis cannot answer.
    """

    denials: DenyCache
    penalties: PenaltyBox | None
    permits: Permits
    outage: OutageLimits


class Asked(NamedTuple):
    """
    A question to Redis, and what the process knew when it was made.

    `words`: the keys of the marks, and then of the demands. `definitions`: of all rules of the door, by name. `at`:
    seconds on the process's own clock. `generation`: of the deny cache. `look`: a look is neither answered from memory
    nor remembered.
    """

    marks: Sequence[str]
    words: list[bytes]
    demands: list[Demand]
    definitions: Mapping[bytes, bytes]
    at: float
    generation: int
    look: bool = False


def recall(local: Local, asked: Asked, clock_us: Callable[[], int]) -> Decision | None:
    """Answer without Redis, None where only Redis knows; `clock_us`: the Redis clock as the process knows it."""
    if asked.look or (local.penalties is None and not local.denials.holds_any(asked.words)):
        return None
    find, now = local.denials.find, asked.at
    for identity, key in zip(asked.marks, asked.words, strict=False):
        ban = find(key, now)
        if ban is not None:
            return _banned(identity, ban.until - now)
    held = [(demand, row) for demand in asked.demands if (row := _held(local, demand, asked, clock_us))]
    if not held:
        return None
    if local.penalties is not None:
        for demand, _ in held:
            local.penalties.note(box_of(demand), now, demand.identity)
    rows = sum((row for _, row in held), ())
    return judged((DENIED, 0, 0, 0, *rows), [demand for demand, _ in held], look=False)


def _banned(identity: str, left: float) -> Decision:
    return blocked(identity, NEVER if left == inf else max(round(left * _SECOND), 1), 0)


def again(denial: Denial, part: Part, now: float) -> Decision:
    """Say once more what a denial of one rate alone says; what it takes to tell results waits for who asks."""
    rule = part.rule
    fields = {
        "allowed": False,
        "verdict": _LIMITED,
        "reason": _EXCEEDED,
        "rule": rule.name,
        "limit": part.rate.limit,
        "remaining": denial.remaining,
        "retry_after": denial.until - now if denial.cost <= part.most else None,
        "reset_after": max(denial.reset - now, 0.0),
        "identity": denial.identity,
        "tell": Telling(_tell_again, denial, part, now),
    }
    return quick(Decision, fields)


def _tell_again(denial: Denial, part: Part, now: float) -> Any:
    demand = Demand(part, denial.identity, b"", int(denial.cost))
    return tell((DENIED, 0, 0, 0, *_row(denial, part, now)), [demand], charged=False)


def _row(denial: Denial, part: Part, now: float) -> tuple[float, ...]:
    """Write a denial as the script would: its instant is that of the reply, and what has passed since then."""
    retry, reset = (denial.until - now) * _SECOND, max((denial.reset - now) * _SECOND, 0.0)
    if denial.cost > part.most:
        retry = -1
    return OVER, denial.remaining, retry, reset, denial.epoch_us + now * _SECOND


def _held(local: Local, demand: Demand, asked: Asked, clock_us: Callable[[], int]) -> tuple[float, ...]:
    """Give what the script would say of a demand that is denied for certain; nothing where nobody knows."""
    if demand.part.rule.shadow:
        return ()
    row: tuple[float, ...] = ()
    denial = local.denials.find(demand.key, asked.at)
    if denial is not None and _answers(denial, demand, asked):
        row = _row(denial, demand.part, asked.at)
    boxed = None if local.penalties is None else local.penalties.boxed_until(box_of(demand), asked.at)
    if boxed is None or 0 < demand.part.rule.ends_us <= clock_us():
        return row
    left = (boxed - asked.at) * _SECOND
    _, remaining, retry, reset, at = row or (OVER, 0, 0.0, 0.0, clock_us())
    return OVER, remaining, max(retry, left), max(reset, left), at


def _certain(part: Part, retry: float, now_us: float) -> float:
    """Give the microseconds that a denial is certain for; `retry` below 0: it never can pass."""
    rule, wait = part.rule, retry if retry >= 0 else NEVER_PASSES_US
    if rule.ends_us:
        wait = min(wait, rule.ends_us - now_us)
    # Permits of other processes may come back when their lease ends.
    return min(wait, part.rate.period_us / LIVES) if rule.lease else wait


def box_of(demand: Demand) -> bytes:
    """Name a box: a rule that is changed begins with empty ones."""
    return demand.key + demand.part.definition


def _answers(denial: Denial, demand: Demand, asked: Asked) -> bool:
    """
    Whether a denial holds for a demand of a question: for its cost, or for a greater one that could ever pass.

    Of a greater one it tells the least that has to be waited.
    """
    part, cost = demand.part, demand.cost
    return (
        denial.definition == part.definition
        and (denial.cost == cost or denial.cost < cost <= part.most)
        and denial.marks.issuperset(asked.marks)
        and (denial.settled is asked.definitions or asked.definitions.items() <= denial.settled.items())
    )


def learn(local: Local, asked: Asked, reply: bytes) -> None:
    """Remember what a reply that denies says of the time to come."""
    if asked.look or not reply[0]:
        return
    row = unpack(reply, len(asked.demands))
    if row[0] == BANNED:
        until = inf if row[3] == NEVER else asked.at + (row[3] - row[2]) / _SECOND - ROUNDING
        place = row[1] - 1
        ban = Denial(until, 0, b"", asked.marks[place], frozenset(), 0, until)
        local.denials.put(asked.words[place], ban, asked.generation)
        return
    marks, start = frozenset(asked.marks), ROWS
    for demand in asked.demands:
        # Of a denial `at` is the time by its own server, which the head of several servers' answer need not be.
        state, remaining, retry, reset, at = row[start : start + ROW]
        start += ROW
        if state != OVER or demand.part.rule.shadow:
            continue
        if local.penalties is not None:
            local.penalties.note(box_of(demand), asked.at, demand.identity)
        wait = _certain(demand.part, retry, at)
        if wait > 0:
            until, empty = asked.at + wait / _SECOND - ROUNDING, asked.at + reset / _SECOND
            part, before = demand.part, local.denials.peek(demand.key, asked.at)
            settled = asked.definitions
            if before is not None and before.settled is not settled:
                # Who is denied at several doors is answered at all of them.
                settled = {**before.settled, **settled}
            denial = Denial(
                until,
                demand.cost,
                part.definition,
                demand.identity,
                marks,
                int(remaining),
                empty,
                at - asked.at * _SECOND,
                settled,
            )
            local.denials.put(demand.key, denial, asked.generation)
