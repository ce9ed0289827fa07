"""What goes to the scripts and what comes back: packed arguments, and replies read into decisions."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

from ratelimit_app.core.access_lists import NEVER
from ratelimit_app.core.algorithms import CODES
from ratelimit_app.core.decision import Charge, Decision, Reason, RuleResult, Verdict, ruling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratelimit_app.core.keys import Keys
    from ratelimit_app.core.rates import Rate
    from ratelimit_app.core.rules import Rule

SHADOW, LOOK = 1, 2
_RULE = struct.Struct("<BBddddddd")
_REFUND = struct.Struct("<Bdddd")
_HEAD = struct.Struct("<BBdd")
_RESULT = struct.Struct("<Bdddd")
_PASSED, _OVER, _ASLEEP = 0, 1, 2
_LIMITED, _BLOCKED = 1, 2


class StoreUnavailable(Exception):
    """Redis could not answer: refused, hung, slow, or with a reply that makes no sense."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """Ask the driver to run one script."""

    script: str
    keys: list[bytes]
    args: list[bytes]


@dataclass(frozen=True, slots=True)
class Demand:
    """One rate of one rule, to be judged and charged for one identity."""

    rule: Rule
    rate: Rate
    identity: str
    key: bytes
    cost: int
    look: bool


def decide_call(keys: Keys, marks: list[str], demands: list[Demand], frozen_now: int | None) -> ScriptCall:
    """Write the one script call that decides all of this; `frozen_now` is for tests, production sends None."""
    words = [keys.mark(identity) for identity in marks]
    words += [demand.key for demand in demands]
    rows = [_rule_argument(d.rate, d.rule, d.cost, d.look) for d in demands]
    args = [b"".join([bytes((len(marks),)), *rows])]
    if frozen_now is not None:
        args.append(b"%d" % frozen_now)
    return ScriptCall("decide", words, args)


def refund_call(charges: list[Charge], frozen_now: int | None) -> ScriptCall:
    """Write the script call that gives charges back."""
    now = b"" if frozen_now is None else b"%d" % frozen_now
    args = [now] + [_REFUND.pack(0, charge.first_us, charge.units, charge.period_us, 0) for charge in charges]
    return ScriptCall("refund", [charge.key for charge in charges], args)


@lru_cache(maxsize=4_096)
def _rule_argument(rate: Rate, rule: Rule, cost: int, look: bool) -> bytes:
    flags = (SHADOW if rule.shadow else 0) | (LOOK if look else 0)
    code, burst = CODES[rule.algorithm], rule.burst or rate.limit
    return _RULE.pack(code, flags, rate.period_us, rate.limit, burst, cost, 0, rule.starts_us, rule.ends_us)


def read_reply(reply: object, marks: list[str], demands: list[Demand]) -> Decision:
    """Read the script's reply. Raises StoreUnavailable when it is not one."""
    size = _HEAD.size + _RESULT.size * len(demands)
    if not isinstance(reply, bytes) or len(reply) not in (_HEAD.size, size):
        msg = f"malformed reply: expected {size} bytes, got {str(reply)[:80]!r}"
        raise StoreUnavailable(msg)
    try:
        return _read(reply, marks, demands)
    except (ValueError, OverflowError) as error:
        msg = f"malformed reply: {error}"
        raise StoreUnavailable(msg) from error


def _read(reply: bytes, marks: list[str], demands: list[Demand]) -> Decision:
    verdict, mark, now_us, expires = _HEAD.unpack_from(reply)
    if verdict == _BLOCKED and 0 < mark <= len(marks):
        return blocked(marks[mark - 1], int(expires), int(now_us))
    rows = list(_RESULT.iter_unpack(reply[_HEAD.size :]))
    if verdict > _LIMITED or len(rows) != len(demands):
        msg = f"verdict {verdict}, mark {mark}, {len(rows)} of {len(demands)} results"
        raise ValueError(msg)
    return _judged(verdict == 0, demands, rows)


def _judged(passed: bool, demands: list[Demand], rows: Iterable[tuple[Any, ...]]) -> Decision:
    results, charges = [], []
    for demand, row in zip(demands, rows, strict=True):
        if row[0] == _ASLEEP:
            continue
        results.append(_result(demand, row))
        if passed and row[0] == _PASSED and demand.cost > 0 and not demand.look:
            charges.append(Charge(demand.key, int(row[-1]), demand.cost, demand.rate.period_us))
    chosen = ruling(results)
    if passed != (chosen is None or chosen.allowed):
        msg = "the verdict is not that of the rules"
        raise ValueError(msg)
    if chosen is None:
        return Decision(True, Verdict.ALLOWED, Reason.NO_RULE, results=tuple(results), charges=charges)
    return Decision(
        passed,
        Verdict.ALLOWED if passed else Verdict.LIMITED,
        Reason.WITHIN_LIMIT if passed else Reason.OVER_LIMIT,
        rule=chosen.rule,
        limit=chosen.limit,
        remaining=chosen.remaining,
        retry_after=0.0 if passed else chosen.retry_after,
        reset_after=chosen.reset_after,
        results=tuple(results),
        identity="" if passed else chosen.identity,
        charges=charges,
    )


def _result(demand: Demand, row: tuple[Any, ...]) -> RuleResult:
    state, remaining, retry, reset, at = row
    passed = state == _PASSED
    if state > _ASLEEP or not isfinite(retry + reset):
        msg = f"state {state}, retry {retry}, reset {reset}"
        raise ValueError(msg)
    return RuleResult(
        rule=demand.rule.name,
        identity=demand.identity,
        allowed=passed,
        verdict=Verdict.ALLOWED if passed else Verdict.LIMITED,
        reason=Reason.WITHIN_LIMIT if passed else Reason.OVER_LIMIT,
        limit=demand.rate.limit,
        period=demand.rate.period,
        remaining=int(remaining),
        retry_after=None if retry < 0 else retry / 1_000_000,
        reset_after=reset / 1_000_000,
        at=int(at),
        shadow=demand.rule.shadow,
        label=demand.rule.label,
    )


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
