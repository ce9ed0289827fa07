"""
From denial to ban, as arithmetic: which offences count, how long a ban lasts, how the level falls.

All times are seconds since the epoch. Nothing here remembers what it has seen: the end of the last ban alone says
which offences are used up, so the same offences judged twice, late or by two workers give the same ban.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GROUP_PREFIX = "@"
GROUP_WEIGHT = 1
FOREVER = math.inf

Line = tuple[int, str, int]  # unix second, slot (a rule's name, or `@group`), count


@dataclass(frozen=True, slots=True)
class Weights:
    """What an offence weighs: by the name of its rule, and whether rules in code count (under `@group`)."""

    rules: Mapping[str, int]
    groups: bool

    def of(self, slot: str) -> int:
        """Give the weight of an offence against a slot; 0: it does not count."""
        if slot.startswith(GROUP_PREFIX):
            return GROUP_WEIGHT if self.groups else 0
        return self.rules.get(slot, 0)


@dataclass(frozen=True, slots=True)
class Tally:
    """What an identity did: the weighted `score`, offences by slot, and the first and last unix second."""

    score: int
    by_slot: Mapping[str, int]
    first_s: int
    last_s: int

    @property
    def offences(self) -> int:
        """How many offences there were, unweighted."""
        return sum(self.by_slot.values())


@dataclass(frozen=True, slots=True)
class Step:
    """Where an identity stands on a policy's ladder: the level of its last ban, and when that ends or ended."""

    level: int
    ends_s: float


START = Step(0, -math.inf)


@dataclass(frozen=True, slots=True)
class Ban:
    """A ban that is due: its level, its end (a whole second), and the offences that earned it."""

    level: int
    ends_s: int
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """
    The numbers of one promotion policy; periods are seconds.

    `threshold` offences within `find_period` ban for `block_period`; each further ban lasts `factor` times as long,
    up to `max_block_period`; the level falls by one for each `decay_period` since the last ban's end.
    """

    threshold: int
    find_period: int
    block_period: int
    factor: float
    max_block_period: int
    decay_period: int

    def ban_period(self, level: int) -> float:
        """Give the seconds that a ban of this level lasts."""
        try:
            return min(self.block_period * self.factor ** (level - 1), self.max_block_period)
        except OverflowError:
            return self.max_block_period

    def level_at(self, step: Step, now_s: float) -> int:
        """Give the level that is left of a step; it does not fall while the ban lasts."""
        if step.level <= 0 or now_s <= step.ends_s:
            return max(step.level, 0)
        if self.decay_period <= 0:
            return 0
        return max(step.level - int((now_s - step.ends_s) // self.decay_period), 0)

    def tally(self, lines: Iterable[Line], weights: Weights, step: Step, *, now_s: float) -> Tally:
        """Sum what counts now: within `find_period`, by whole seconds, and not before the end of the last ban."""
        now = int(now_s)
        by_slot: Counter[str] = Counter()
        seconds = []
        for second, slot, count in lines:
            if now - self.find_period < second <= now and second >= step.ends_s and weights.of(slot) > 0:
                by_slot[slot] += count
                seconds.append(second)
        score = sum(weights.of(slot) * count for slot, count in by_slot.items())
        return Tally(score, dict(by_slot), min(seconds, default=0), max(seconds, default=0))

    def judge(self, lines: Iterable[Line], weights: Weights, step: Step, *, now_s: float) -> Ban | None:
        """Give the ban that an identity has earned, None while it is banned or below the threshold."""
        if step.ends_s > now_s:
            return None
        tally = self.tally(lines, weights, step, now_s=now_s)
        if tally.score < self.threshold or not tally.by_slot:
            return None
        level = self.level_at(step, now_s) + 1
        return Ban(level, math.ceil(now_s + self.ban_period(level)), tally)


def worst_first(bans: Mapping[str, Ban]) -> list[tuple[str, Ban]]:
    """Order the bans of one policy: the highest score first, then the most recent, then by identity."""
    return sorted(bans.items(), key=lambda item: (-item[1].tally.score, -item[1].tally.last_s, item[0]))
