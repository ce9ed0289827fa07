"""Rates: how many units in how long, as people write them (`100/m`, `10 per 2 hours`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

GRAMMAR = (
    "<limit>/<period> or <limit> per <period>: a whole limit, and a period like s, 30s, 5min, 2 hours or 500ms "
    "(units ms, s, m, h, d, w and their long forms); several rates separated by ';'"
)
MAX_LIMIT = 1_000_000_000
MAX_PERIOD_US = 3_660 * 86_400 * 1_000_000

_UNITS_US = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_UNITS_US |= {"d": 24 * _UNITS_US["h"], "w": 7 * 24 * _UNITS_US["h"]}
_LONG_FORMS = {
    "ms": "msec msecs millisecond milliseconds",
    "s": "sec secs second seconds",
    "m": "min mins minute minutes",
    "h": "hr hrs hour hours",
    "d": "day days",
    "w": "week weeks",
}
_UNIT_OF = {unit: unit for unit in _UNITS_US} | {
    long: unit for unit, longs in _LONG_FORMS.items() for long in longs.split()
}
_RATE = re.compile(r"([0-9]{1,12})(?:\s*/\s*|\s+per\s+)([0-9]{1,12})?\s*([a-z]+)", re.IGNORECASE)


class RateError(ValueError):
    """A rate that cannot be read; the message holds the text, the grammar and the remedy."""

    def __init__(self, text: object, problem: str) -> None:
        super().__init__(f"{text!r} is not a rate: {problem}. Write {GRAMMAR}.")


@dataclass(frozen=True, slots=True)
class Rate:
    """Allow `limit` units in each period of `period_us` microseconds."""

    limit: int
    period_us: int

    @property
    def period(self) -> float:
        """The period in seconds."""
        return self.period_us / 1_000_000

    def __str__(self) -> str:
        whole = [unit for unit, us in _UNITS_US.items() if self.period_us % us == 0]
        if not whole:  # finer than text can say: code gave it as a number
            return f"{self.limit}/{self.period_us / 1_000}ms"
        unit = max(whole, key=_UNITS_US.__getitem__)
        count = self.period_us // _UNITS_US[unit]
        return f"{self.limit}/{unit}" if count == 1 else f"{self.limit}/{count}{unit}"


@lru_cache(maxsize=1_024)
def parse_rates(text: str) -> tuple[Rate, ...]:
    """
    Read one or several rates, the longest period first.

    Raises RateError when any part is not a rate, or when two parts have the same period.
    """
    if not isinstance(text, str):
        raise RateError(text, "a rate is text")
    rates = sorted((_parse(part, text) for part in text.split(";")), key=lambda rate: -rate.period_us)
    periods = {rate.period_us for rate in rates}
    if len(periods) < len(rates):
        raise RateError(text, "two of its parts have the same period")
    return tuple(rates)


def parse_rate(text: str) -> Rate:
    """Read exactly one rate. Raises RateError."""
    rates = parse_rates(text)
    if len(rates) != 1:
        raise RateError(text, "one rate is expected here")
    return rates[0]


def _parse(part: str, text: str) -> Rate:
    match = _RATE.fullmatch(part.strip())
    if match is None:
        raise RateError(text, f"{part.strip()!r} does not fit the grammar")
    limit, count, unit = int(match[1]), int(match[2] or 1), match[3].lower()
    if unit not in _UNIT_OF:
        raise RateError(text, f"{unit!r} is no unit of time")
    period_us = count * _UNITS_US[_UNIT_OF[unit]]
    if not 0 < period_us <= MAX_PERIOD_US:
        raise RateError(text, "the period must be longer than nothing and at most ten years")
    if limit > MAX_LIMIT:
        raise RateError(text, f"the limit may be at most {MAX_LIMIT:,}")
    return Rate(limit, period_us)
