"""Asks the scripts directly: arguments packed and replies read by hand, so that core.calls is not its own judge."""

from __future__ import annotations

import struct
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimit_app.conf import conf
from ratelimit_app.core.algorithms import CODES
from ratelimit_app.core.calls import ScriptCall
from ratelimit_app.store.gateway import async_gateway, gateway

if TYPE_CHECKING:
    from ratelimit_app.core.algorithms import Outcome
    from ratelimit_app.core.rates import Rate

START = 1_800_000_000_000_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
PASSED, OVER, ASLEEP = 0, 1, 2
ADMITTED, LIMITED, BLOCKED = 0, 1, 2
SHADOW, LOOK, LEASE = 1, 2, 4
_numbers = count()


class Asked(NamedTuple):
    """One rule as the script is asked about it; times are microseconds."""

    key: bytes
    rate: Rate
    cost: int = 1
    flags: int = 0
    starts: int = 0
    ends: int = 0
    algorithm: str = "sliding_window"
    burst: int | None = None
    lease: int = 0


class Row(NamedTuple):
    """What the script says of one rule; times are microseconds, a retry of -1 is never."""

    state: int
    remaining: float
    retry: float
    reset: float
    at: float


class Reply(NamedTuple):
    """What the script says of a request."""

    verdict: int
    mark: int
    now: float
    expires: float
    rows: list[Row]


def new_key(name: str = "rule") -> bytes:
    """Give a log's key that no test has used."""
    return conf.keys.log(f"user:{next(_numbers)}", name.encode())


def decide(now: int | None, *asked: Asked, marks: tuple[bytes, ...] = ()) -> Reply:
    """Run decide.lua at a time, or by the server's clock."""
    args = [struct.pack("<B", len(marks)) + b"".join(map(_packed, asked))]
    args += [] if now is None else [b"%d" % now]
    call = ScriptCall("decide", [*marks, *(one.key for one in asked)], args)
    return read(gateway().call(call))


def _packed(one: Asked) -> bytes:
    burst = one.rate.limit if one.burst is None else one.burst
    code, flags = CODES[one.algorithm], one.flags | (LEASE if one.lease else 0)
    rate = one.rate
    return struct.pack(
        "<BBddddddd",
        code,
        flags,
        rate.period_us,
        rate.limit,
        burst,
        one.cost,
        one.lease,
        one.starts,
        one.ends,
    )


async def adecide(now: int | None, key: bytes | None = None, rate: Rate | None = None) -> Reply:
    """Run decide.lua on the running loop, at a time, for a log or for none."""
    told = b"\0" if key is None or rate is None else b"\0" + _packed(Asked(key, rate))
    args = [told] if now is None else [told, b"%d" % now]
    return read(await async_gateway().call(ScriptCall("decide", [key] if key else [], args)))


def read(reply: Any) -> Reply:
    """Read the bytes of a reply."""
    rows = [Row(*row) for row in struct.iter_unpack("<Bdddd", reply[18:])]
    verdict, mark, now, expires = struct.unpack_from("<BBdd", reply)
    return Reply(verdict, mark, now, expires, rows)


class Back(NamedTuple):
    """A charge to give back."""

    key: bytes
    first: int
    units: int
    rate: Rate
    algorithm: str = "sliding_window"


def refund(now: int | None, *charges: Back) -> int:
    """Run refund.lua for charges."""
    args = [b"" if now is None else b"%d" % now]
    args += [
        struct.pack("<Bdddd", CODES[algorithm], first, units, rate.period_us, rate.limit)
        for _, first, units, rate, algorithm in charges
    ]
    return int(gateway().call(ScriptCall("refund", [charge.key for charge in charges], args)))


def row_of(outcome: Outcome, *, leased: bool = False) -> Row:
    """Write what the reference says as the script should say it; `leased`: the call asked for permits ahead."""
    retry = -1 if outcome.retry_after_us is None else outcome.retry_after_us
    retry = outcome.granted if leased and outcome.granted else retry
    state = PASSED if outcome.allowed else OVER
    return Row(state, outcome.remaining, retry, outcome.reset_after_us, outcome.at_us)
