"""What goes to the scripts and what comes back: packed arguments, and replies read into decisions."""

from __future__ import annotations

import struct
from functools import lru_cache
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimit_app.core.access_lists import NEVER
from ratelimit_app.core.decision import Charge, Decision, Reason, RuleResult, Telling, Verdict, quick
from ratelimit_app.core.plans import LEAKY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimit_app.core.plans import Part

_REFUND = struct.Struct("<Bdddd")
_HEAD, _RESULT = "BBdd", "Bdddd"
ROWS, ROW = len(_HEAD), len(_RESULT)
PASSED, OVER, ASLEEP = 0, 1, 2
DENIED, BANNED = 1, 2
_HEAD_SIZE, _ROW_SIZE = struct.calcsize("<" + _HEAD), struct.calcsize("<" + _RESULT)
_LIGHTEST = (-1, -1.0, -inf)
# Enum members are looked up by a call of their own; these are read for every decision.
_ALLOWED, _LIMITED, _WITHIN, _EXCEEDED = (
    Verdict.ALLOWED,
    Verdict.LIMITED,
    Reason.WITHIN_LIMIT,
    Reason.OVER_LIMIT,
)


class StoreUnavailable(Exception):
    """Redis could not answer: refused, hung, slow, or with a reply that makes no sense."""


class StoreTimeout(StoreUnavailable):
    """Redis did not answer in time."""


class ScriptCall(NamedTuple):
    """Ask the driver to run one script."""

    script: str
    keys: list[bytes]
    args: list[bytes]


class Demand(NamedTuple):
    """One rate of one rule, to be judged and charged for one identity; `leased`: permits are taken with it."""

    part: Part
    identity: str
    key: bytes
    cost: int
    leased: bool = False


def refund_call(charges: list[Charge], frozen_now: int | None) -> ScriptCall:
    """Write the script call that gives charges back; `frozen_now` is for tests, production sends None."""
    args = [b"" if frozen_now is None else b"%d" % frozen_now]
    args += [_REFUND.pack(c.code, c.first_us, c.units, c.period_us, c.limit) for c in charges]
    return ScriptCall("refund", [charge.key for charge in charges], args)


@lru_cache(maxsize=256)
def _layout(rules: int) -> struct.Struct:
    return struct.Struct("<" + _HEAD + _RESULT * rules)


def read_reply(reply: object, marks: Sequence[str], demands: list[Demand], look: bool) -> Decision:
    """Read the script's reply. Raises StoreUnavailable when it is not one."""
    try:
        if len(reply) == _HEAD_SIZE:  # type: ignore[arg-type]
            return _read_ban(reply, marks, demands)  # type: ignore[arg-type]
        return judged(_layout(len(demands)).unpack(reply), demands, look)  # type: ignore[arg-type]
    except (ValueError, OverflowError, TypeError, struct.error) as error:
        size = _HEAD_SIZE + _ROW_SIZE * len(demands)
        msg = f"malformed reply: {error}; expected {size} bytes, got {str(reply)[:80]!r}"
        raise StoreUnavailable(msg) from error


def _read_ban(reply: bytes, marks: Sequence[str], demands: list[Demand]) -> Decision:
    verdict, mark, now_us, expires = _layout(0).unpack(reply)
    if verdict == BANNED and 0 < mark <= len(marks):
        return blocked(marks[mark - 1], int(expires), int(now_us))
    if verdict == 0 and not demands:
        return NO_RULE
    msg = f"verdict {verdict}, mark {mark}"
    raise ValueError(msg)


def unpack(reply: bytes, rules: int) -> tuple[Any, ...]:
    """Give the values of a reply that has been read before."""
    return _layout(0 if len(reply) == _HEAD_SIZE else rules).unpack(reply)


def judged(row: tuple[Any, ...], demands: list[Demand], look: bool) -> Decision:
    """Make the decision of a reply; what each rule said is written out when somebody asks."""
    passed = row[0] == 0
    chosen = _chosen(row, demands)
    if row[0] > DENIED or passed != (chosen < 0 or row[chosen] == PASSED):
        msg = f"verdict {row[0]} is not that of the rules"
        raise ValueError(msg)
    fields: dict[str, Any] = {"tell": Telling(tell, row, demands, passed and not look)}
    if chosen < 0:
        return quick(Decision, fields | {"allowed": True, "verdict": _ALLOWED, "reason": Reason.NO_RULE})
    demand = demands[(chosen - ROWS) // ROW]
    fields["allowed"] = passed
    fields["verdict"], fields["reason"] = (_ALLOWED, _WITHIN) if passed else (_LIMITED, _EXCEEDED)
    fields["rule"] = demand.part.rule.name
    fields["limit"] = demand.part.rate.limit
    fields["remaining"] = int(row[chosen + 1])
    fields["reset_after"] = row[chosen + 3] / 1_000_000
    if not passed:
        retry = row[chosen + 2]
        fields["retry_after"] = None if retry < 0 else retry / 1_000_000
        fields["identity"] = demand.identity
    return quick(Decision, fields)


def _chosen(row: tuple[Any, ...], demands: list[Demand]) -> int:
    """Find the row that describes the request, as `ruling` does among results; below 0 when none does."""
    if len(demands) == 1 and row[ROWS] == PASSED and isfinite(sum(row[ROWS:])):
        return -1 if demands[0].part.rule.shadow else ROWS
    chosen, heaviest, at = -1, _LIGHTEST, ROWS
    for demand in demands:
        state, remaining, retry, reset, stamp = row[at : at + ROW]
        if state > ASLEEP or not isfinite(remaining + retry + reset + stamp):
            msg = f"state {state}, remaining {remaining}, retry {retry}, reset {reset}, at {stamp}"
            raise ValueError(msg)
        if state != ASLEEP and not demand.part.rule.shadow:
            wait = 0.0 if state == PASSED else inf if retry < 0 else retry
            weight = (state, wait, -remaining / (demand.part.rate.limit or 1))
            if weight > heaviest:
                chosen, heaviest = at, weight
        at += ROW
    return chosen


def tell(
    row: tuple[Any, ...], demands: list[Demand], charged: bool
) -> tuple[tuple[RuleResult, ...], list[Charge]]:
    """Write out what each rule said, and what was charged."""
    results, charges = [], []
    for demand, at in zip(demands, range(ROWS, len(row), ROW), strict=True):
        said = row[at : at + ROW]
        if said[0] == ASLEEP:
            continue
        results.append(_result(demand, said))
        if charged and said[0] == PASSED and demand.cost:
            charges.append(charge_of(demand, int(said[4]), demand.cost))
    return tuple(results), charges


def charge_of(demand: Demand, first_us: int, units: int) -> Charge:
    """Say what gives these units of a demand back."""
    part = demand.part
    return Charge(part.code, demand.key, first_us, units, part.rate.period_us, part.rate.limit)


def _result(demand: Demand, said: tuple[Any, ...]) -> RuleResult:
    part = demand.part
    rule, rate = part.rule, part.rate
    state, remaining, retry, reset, at = said
    passed = state == PASSED
    delay = 0.0
    if part.code == LEAKY and passed and rate.limit:
        # What was in the bucket before it: all that is there now, without its own.
        delay = max(reset - demand.cost * rate.period_us / rate.limit, 0.0) / 1_000_000
    fields = {
        "rule": rule.name,
        "identity": demand.identity,
        "allowed": passed,
        "verdict": _ALLOWED if passed else _LIMITED,
        "reason": _WITHIN if passed else _EXCEEDED,
        "limit": rate.limit,
        "period": rate.period_us / 1_000_000,
        "remaining": int(remaining),
        "retry_after": 0.0 if passed else None if retry < 0 else retry / 1_000_000,
        "reset_after": reset / 1_000_000,
        "at": int(at),
        "shadow": rule.shadow,
        "label": rule.label,
        "delay": delay,
    }
    return quick(RuleResult, fields)


def blocked(identity: str, expires_us: int, now_us: int) -> Decision:
    """Turn a blacklisted identity away until its ban ends, for ever when `expires_us` is NEVER."""
    wait = None if expires_us == NEVER else max(expires_us - now_us, 0) / 1_000_000
    return Decision(
        False,
        Verdict.BLOCKED,
        Reason.BLACKLISTED,
        retry_after=wait,
        reset_after=wait or 0.0,
        identity=identity,
    )


NO_RULE = Decision(True, Verdict.ALLOWED, Reason.NO_RULE)
