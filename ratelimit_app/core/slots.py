"""
One question over several slots of a cluster, answered as one server would.

A script sees the keys of one slot. `spread` asks each slot for its part and puts the replies together; it is a
generator, so that threads and event loops can send the parts at once. Where several slots would be charged, all are
asked first and charged only when all of them have room: so a request that is denied charges nothing anywhere, not
even for a moment, and what was charged when another slot filled up in between is given back.
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimit_app.core.calls import BANNED, DENIED, OVER, PASSED, ScriptCall, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

SLOTS = 16_384
_HEAD, _ROW, _RULE = struct.Struct("<BBdd"), struct.Struct("<Bdddd"), struct.Struct("<BBddddddd")
_REFUND = struct.Struct("<Bdddd")
_SHADOW, _LOOK, _LEASE = 1, 2, 4
# A rule that nothing passes: with it a slot is asked in earnest, and charges nothing.
_NEVER = _RULE.pack(0, 0, 1, 0, 0, 1, 0, 0, 0)

Reply = Any  # bytes, an integer, or the StoreUnavailable that one part met


class TryAgain(StoreUnavailable):
    """A slot is on its way to another server, and a call with several of its keys can be answered by neither."""


class PartlyAnswered(StoreUnavailable):
    """
    Some slots could not answer. `reply` is that of the others, for these marks and rules only.

    `marks`, `rules`: their places in the call.
    """

    def __init__(self, error: StoreUnavailable, reply: bytes, marks: list[int], rules: list[int]) -> None:
        super().__init__(str(error))
        self.reply, self.marks, self.rules = reply, marks, rules


class Spread(NamedTuple):
    """The answer, and the keys whose charge was given back: others may have been denied for it meanwhile."""

    reply: Reply
    returned: list[bytes]


def slot_of(key: bytes) -> int:
    """Give the slot of a key: of what stands between its first braces, where something does."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def only_slot(keys: Sequence[bytes]) -> int | None:
    """Give the slot of all keys, None where they have several; without any, 0."""
    if not keys:
        return 0
    slots = {tag_of(key): key for key in keys}
    first, *others = [slot_of(key) for key in slots.values()]
    return first if all(other == first for other in others) else None


def tag_of(key: bytes) -> bytes:
    """Give what decides the slot, braces included."""
    return key[: key.find(b"}") + 1] or key


def spread(call: ScriptCall, *, by_key: bool = False) -> Generator[list[ScriptCall], list[Reply], Spread]:
    """
    Ask several slots: yields calls to send at once, wants their replies. Raises StoreUnavailable, PartlyAnswered.

    `by_key`: ask for one key at a time, which a slot that is being moved answers too.
    """
    ask = _ASKING.get(call.script)
    if ask is None:
        msg = f"the keys of {call.script!r} are in several slots, or in one that is being moved"
        raise StoreUnavailable(msg)
    try:
        return (yield from ask(call, tag_of if not by_key else bytes))
    except TryAgain:
        if by_key:
            raise
        return (yield from ask(call, bytes))


def _refund(
    call: ScriptCall, group: Callable[[bytes], bytes]
) -> Generator[list[ScriptCall], list[Reply], Spread]:
    now, *charges = call.args
    parts: dict[bytes, list[int]] = {}
    for place, key in enumerate(call.keys):
        parts.setdefault(group(key), []).append(place)
    calls = [
        ScriptCall("refund", [call.keys[n] for n in places], [now, *(charges[n] for n in places)])
        for places in parts.values()
    ]
    units, replies = 0, (yield calls)
    for part, reply in zip(calls, replies, strict=True):
        if isinstance(reply, TryAgain) and len(part.keys) > 1:
            units += (yield from _refund(part, bytes)).reply
        elif isinstance(reply, StoreUnavailable):
            raise reply
        else:
            units += reply
    return Spread(units, [])


class _Part:
    """What one slot is asked: places of marks and rules in the call, and what it has said."""

    def __init__(self) -> None:
        self.marks: list[int] = []
        self.rules: list[int] = []
        self.verdict, self.mark, self.now, self.expires = 0, 0, 0.0, 0.0
        self.rows: list[tuple[float, ...]] = []
        self.error: StoreUnavailable | None = None

    def read(self, reply: Reply, rules: int) -> None:
        """Read a reply; what is none is as good as no answer. `rules`: how many were asked, the last aside."""
        try:
            if isinstance(reply, StoreUnavailable):
                raise reply
            self.verdict, self.mark, self.now, self.expires = _HEAD.unpack_from(reply)
            if self.verdict != BANNED:
                self.rows = list(_ROW.iter_unpack(reply[_HEAD.size :]))
                _require(len(self.rows) == rules, f"expected {rules} rows, got {len(self.rows)}")
                del self.rows[len(self.rules) :]
        except (struct.error, TypeError) as error:
            msg = f"malformed reply: {error}"
            self.error = StoreUnavailable(msg)
        except StoreUnavailable as error:
            self.error = error


def _require(holds: bool, said: str) -> None:
    if not holds:
        msg = f"malformed reply: {said}"
        raise StoreUnavailable(msg)


class _Question:
    """A call of `decide`, taken apart by what groups its keys."""

    def __init__(self, call: ScriptCall, group: Callable[[bytes], bytes]) -> None:
        told, *self.frozen = call.args
        self.keys, self.marks = call.keys, told[0]
        self.by_key = group is not tag_of
        size = _RULE.size
        self.rules = [told[at : at + size] for at in range(1, len(told), size)]
        self.fields = [_RULE.unpack(rule) for rule in self.rules]
        parts: dict[bytes, _Part] = {}
        for place in range(self.marks):
            parts.setdefault(group(self.keys[place]), _Part()).marks.append(place)
        for place in range(len(self.rules)):
            parts.setdefault(group(self.key(place)), _Part()).rules.append(place)
        self.parts = list(parts.values())

    def key(self, rule: int) -> bytes:
        """Give the key of a rule."""
        return self.keys[self.marks + rule]

    def charges(self, part: _Part) -> bool:
        """Whether a part of the question takes something."""
        return any(self.fields[n][5] > 0 and not self.fields[n][1] & _LOOK for n in part.rules)

    def call(self, part: _Part, *, marks: bool = True, earnest: bool = True) -> ScriptCall:
        """Write what a part is asked; not in earnest, it answers as it would deny, and charges nothing."""
        places = part.marks if marks else []
        keys = [self.keys[n] for n in places] + [self.key(n) for n in part.rules]
        rules = [self.rules[n] for n in part.rules]
        if not earnest and self.by_key:
            # A second key would not be answered. A look tells the same, but leaves another algorithm's form as it is.
            rules = [bytes([rule[0], rule[1] | _LOOK]) + rule[2:] for rule in rules]
        elif not earnest:
            keys.append(tag_of(keys[-1]) + b"!never")
            rules.append(_NEVER)
        return ScriptCall("decide", keys, [bytes([len(places)]) + b"".join(rules), *self.frozen])

    def asked(self, part: _Part, *, earnest: bool) -> int:
        """Count the rows of a reply."""
        return len(part.rules) + (not earnest and not self.by_key)

    def denies(self, part: _Part) -> bool:
        """Whether an enforcing rule of a part has no room."""
        return any(
            row[0] == OVER and not self.fields[n][1] & _SHADOW
            for n, row in zip(part.rules, part.rows, strict=False)
        )

    def refund(self, part: _Part) -> ScriptCall | None:
        """Write what gives back all that a part has charged."""
        keys, charges = [], []
        for n, row in zip(part.rules, part.rows, strict=False):
            code, flags, period, limit, _, cost, *_ = self.fields[n]
            if row[0] == PASSED and cost > 0 and not flags & _LOOK:
                keys.append(self.key(n))
                charges.append(_REFUND.pack(code, row[4], row[2] if flags & _LEASE else cost, period, limit))
        return (
            ScriptCall("refund", keys, [self.frozen[0] if self.frozen else b"", *charges]) if keys else None
        )


def _decide(
    call: ScriptCall, group: Callable[[bytes], bytes]
) -> Generator[list[ScriptCall], list[Reply], Spread]:
    question = _Question(call, group)
    charging = [part for part in question.parts if question.charges(part)]
    at_once = len(charging) < 2  # noqa: PLR2004 - one part cannot disagree with itself
    calls = [question.call(part, earnest=at_once or part not in charging) for part in question.parts]
    for part, reply in zip(question.parts, (yield calls), strict=True):
        part.read(reply, question.asked(part, earnest=at_once or part not in charging))
        if isinstance(part.error, TryAgain) and not question.by_key:
            charged = [one for one in charging if one is not part and at_once and not one.error]
            yield from _give_back(question, charged)
            raise part.error
    alive = [part for part in question.parts if part.error is None]
    if not alive and question.parts[0].error is not None:
        raise question.parts[0].error
    returned: list[bytes] = []
    charged = [part for part in charging if part in alive and part.verdict == 0]
    if any(part.verdict == BANNED for part in alive):
        if at_once:
            returned = yield from _give_back(question, charged)
        return _finish(question, _banned(alive), returned)
    if not at_once and not any(map(question.denies, alive)):
        returned = yield from _charge(question, [part for part in charging if part in alive])
    return _finish(question, None, returned)


def _charge(question: _Question, parts: list[_Part]) -> Generator[list[ScriptCall], list[Reply], list[bytes]]:
    """Charge parts that had room a moment ago; where one has none any more, give the others' back."""
    before = [part.rows for part in parts]
    replies = yield [question.call(part, marks=False) for part in parts]
    for part, reply in zip(parts, replies, strict=True):
        part.read(reply, len(part.rules))
    alive = [part for part in parts if part.error is None]
    if not any(map(question.denies, alive)):
        return []
    charged = [part for part in alive if not question.denies(part)]
    returned = yield from _give_back(question, charged)
    for part, rows in zip(parts, before, strict=True):
        if part in charged:
            part.rows = rows
    return returned


def _give_back(
    question: _Question, parts: list[_Part]
) -> Generator[list[ScriptCall], list[Reply], list[bytes]]:
    """Give back what parts have charged; what cannot be given back leaves its window by itself."""
    refunds = [refund for part in parts if (refund := question.refund(part))]
    if refunds:
        yield refunds
    return [key for refund in refunds for key in refund.keys]


def _banned(parts: list[_Part]) -> bytes:
    """Write the reply of the ban that ends last."""
    banned = [part for part in parts if part.verdict == BANNED]
    longest = max(banned, key=lambda part: part.expires or inf)
    mark = longest.marks[longest.mark - 1] + 1
    return _HEAD.pack(BANNED, mark, longest.now, longest.expires)


def _finish(question: _Question, banned: bytes | None, returned: list[bytes]) -> Spread:
    """Put the parts together, in the order of the call."""
    if banned is not None:
        return Spread(banned, returned)
    alive = [part for part in question.parts if part.error is None]
    rows = {n: row for part in alive for n, row in zip(part.rules, part.rows, strict=True)}
    denied = any(map(question.denies, alive))
    # Of several clocks the latest: what ends at an instant is remembered for no longer than it lasts.
    now = max(part.now for part in alive) if alive else 0.0
    body = b"".join(_ROW.pack(*(int(rows[n][0]), *rows[n][1:])) for n in sorted(rows))
    reply = _HEAD.pack(DENIED if denied else 0, 0, now, 0) + body
    failed = next((part.error for part in question.parts if part.error is not None), None)
    if failed is not None:
        marks = sorted(n for part in alive for n in part.marks)
        raise PartlyAnswered(failed, reply, marks, sorted(rows))
    return Spread(reply, returned)


_ASKING = {"decide": _decide, "refund": _refund}
