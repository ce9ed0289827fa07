"""Plans: all about the rules of one door and route that can be known before a request comes, made once."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ratelimit_app.core.algorithms import CODES
from ratelimit_app.core.identity import NAMED_KINDS, USER_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimit_app.core.keys import Keys
    from ratelimit_app.core.rates import Rate
    from ratelimit_app.core.rules import Rule
    from ratelimit_app.core.snapshot import Snapshot

SHADOW, LOOK, LEASE = 1, 2, 4
LEAKY = CODES["leaky_bucket"]
METERS = frozenset({CODES["token_bucket"], LEAKY, CODES["gcra"]})
MAX_REMEMBERED = 64
LEARNED = frozenset({"user", "session"})
_RULE = struct.Struct("<BBddddddd")
_COST = struct.Struct("<d")
_COST_AT = struct.calcsize("<BBddd")


class Part(NamedTuple):
    """
    One rate of one rule, as it is decided and charged.

    What others of its group hold is left out of a window's limit, and of a meter's burst: a meter drains by its limit.

    `name`: the end of its key, behind the identity's. `cost`: of a request that is worth one unit. `most`: what a
    request may cost and pass. `definition`: all that the script is told of it but the cost: what was decided under
    one definition says nothing under another.
    """

    rule: Rule
    rate: Rate
    code: int
    name: bytes
    cost: int
    most: int
    definition: bytes


class Plan:
    """The rules that one door decides together, and what they come to. `definitions`: of its parts, by their names."""

    __slots__ = ("_arguments", "_asked", "definitions", "keys", "leased", "parts", "rules")

    def __init__(self, rules: Sequence[Rule], keys: Keys) -> None:
        self.rules = tuple(rules)
        self.keys = keys
        self.parts = tuple(
            _part(rule, rate, keys.rule_name(rule.slot, number))
            for rule in rules
            for number, rate in enumerate(rule.rates)
        )
        self.definitions: dict[bytes, bytes] = {}
        for part in self.parts:  # rules of a group that take turns have one name
            self.definitions[part.name] = self.definitions.get(part.name, b"") + part.definition
        self.leased = any(rule.lease for rule in rules)
        self._arguments: dict[tuple[int, int, bool], bytes] = {}
        self._asked: tuple[Snapshot | None, bool, tuple[str, ...]] = (None, False, ())

    def asked(self, snapshot: Snapshot, with_user: bool) -> tuple[str, ...]:
        """Give what must be known before these rules and the lists can be read: user, session, values by source."""
        of, with_, facts = self._asked
        if of is not snapshot or with_ is not with_user:
            facts = self._facts(snapshot, with_user)
            self._asked = (snapshot, with_user, facts)
        return facts

    def _facts(self, snapshot: Snapshot, with_user: bool) -> tuple[str, ...]:
        sources = {str(source) for rule in self.rules if rule.key_function is None for source in rule.sources}
        asked = sources | snapshot.marked_kinds | ({"user"} if snapshot.allowed_users else set())
        user = ("user",) if with_user and asked & USER_KINDS else ()
        session = ("session",) if "session" in asked else ()
        return (*user, *session, *sorted(fact for fact in asked if fact.partition(":")[0] in NAMED_KINDS))

    def argument(self, marks: int, units: int, look: bool) -> bytes:
        """Write what the script is told when nothing has been charged before."""
        key = (marks, units, look)
        found = self._arguments.get(key)
        if found is None:
            found = argument(marks, [(part, part.cost * units, False) for part in self.parts], look)
            if len(self._arguments) < MAX_REMEMBERED:
                self._arguments[key] = found
        return found


def _part(rule: Rule, rate: Rate, name: bytes) -> Part:
    code = CODES[rule.algorithm]
    limit = burst = rate.limit
    if code in METERS:
        burst = max((rule.burst or burst) - rule.held, 0)
    else:
        limit = max(limit - rule.held, 0)
    flags = SHADOW if rule.shadow else 0
    definition = _RULE.pack(
        code, flags, rate.period_us, limit, burst, 0, rule.lease, rule.starts_us, rule.ends_us
    )
    # A meter of no limit never drains: nothing fits, whatever its burst.
    most = burst if code in METERS and rate.limit else limit
    return Part(rule, rate, code, b":" + name, rule.cost, most, definition)


def argument(marks: int, asked: Sequence[tuple[Part, int, bool]], look: bool) -> bytes:
    """Write the script's argument: how many marks, then each part with its cost, and whether it takes permits."""
    words = [b"%c" % marks]
    for part, cost, leased in asked:
        said = part.definition
        flags = said[1] | (LOOK if look or not cost else LEASE if leased else 0)
        words.append(
            said[:1] + b"%c" % flags + said[2:_COST_AT] + _COST.pack(cost) + said[_COST_AT + _COST.size :]
        )
    return b"".join(words)
