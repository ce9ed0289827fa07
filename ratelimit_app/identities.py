"""Identities that code and people name, written as the doors write them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import network_text, parse_address, parse_network
from ratelimit_app.core.asking import Memory, question
from ratelimit_app.core.calls import Demand
from ratelimit_app.core.entries import is_written
from ratelimit_app.core.identity import (
    MAX_VALUE,
    IdentityError,
    identity_of,
    is_digest,
    join,
    kind_of,
    parse_custom,
    parse_named,
    split,
)
from ratelimit_app.core.keys import MARK
from ratelimit_app.normalizing import normalized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimit_app.core.asking import Door, Question
    from ratelimit_app.core.plans import Plan
    from ratelimit_app.core.snapshot import Snapshot

_READABLE = frozenset({"user", "device", "view", "key"})
# What is written as it is given, whatever else is done with others.
_PLAIN = re.compile(rf"(?:{'|'.join(sorted(_READABLE))}):[A-Za-z0-9_.\-]{{1,{MAX_VALUE}}}")


class Named:
    """
    An identity that code names, read once, with what was worked out for it last.

    `identity`: as the doors write it. `kind`: of one that was given so, in one part; blank: not so simple.
    `address`: that it names, if it is one: the whole of it, not its network.
    """

    __slots__ = ("_keys", "_question", "address", "identity", "kind")

    def __init__(self, given: str, identity: str) -> None:
        self.identity = identity
        self.kind = kind_of(identity) if given == identity and "+" not in identity else ""
        is_ip = identity.startswith("ip:")
        self.address = parse_address(given[3:].partition("/")[0]) if is_ip else None
        self._keys: tuple[Plan | None, bytes, bytes] = (None, b"", b"")
        self._question: tuple[Plan | None, frozenset[str], int, Any] = (None, frozenset(), 0, None)

    def keys(self, plan: Plan) -> tuple[bytes, bytes]:
        """Give the key of a plan's first log, and that of the identity's mark."""
        of, key, mark = self._keys
        if of is not plan:
            base = plan.keys.base(self.identity)
            key, mark = base + plan.parts[0].name, base + MARK
            self._keys = (plan, key, mark)
        return key, mark

    def question(self, plan: Plan, kinds: frozenset[str], units: int) -> Question:
        """Give the marks, the keys and the demands of these rules."""
        of, of_kinds, of_units, found = self._question
        if of is not plan or of_kinds is not kinds or of_units != units:
            found = self._ask(plan, kinds, units)
            self._question = (plan, kinds, units, found)
        return found  # type: ignore[no-any-return]

    def _ask(self, plan: Plan, kinds: frozenset[str], units: int) -> Question:
        if len(plan.parts) != 1 or not self.kind or self.address is not None:
            return question(plan, units, self._marks(kinds), lambda _: self.identity)
        # The usual case: one rate, and an identity that is its own mark.
        part, (key, mark) = plan.parts[0], self.keys(plan)
        demands = [Demand(part, self.identity, key, part.cost * units)]
        return ((self.identity,), [mark, key], demands) if self.kind in kinds else ((), [key], demands)

    def _marks(self, kinds: frozenset[str]) -> Sequence[str]:
        """Its parts that may be blacklisted."""
        parts = [part for part in split(self.identity) if kind_of(part) in kinds]
        return parts if not parts or self.address is None else [*parts, f"ip:{self.address}"]


class IdentityFacts:
    """The facts of an identity that code names: itself."""

    __slots__ = ("address", "identity", "memory", "named")
    request = None
    is_spared = False

    def __init__(self, named: Named) -> None:
        self.named, self.identity, self.address = named, named.identity, named.address
        self.memory = Memory()

    def user_identity(self) -> str | None:
        """The identity itself when it is a user's."""
        return next((part for part in split(self.identity) if part.startswith("user:")), None)

    def unknown(self, facts: Sequence[str]) -> Sequence[str]:
        """Nothing: all is known."""
        return ()

    def question(self, plan: Plan, snapshot: Snapshot, door: Door) -> Question:
        """Give the marks, the keys and the demands of these rules."""
        return self.named.question(plan, snapshot.marked_kinds, door.units)


def resolved(identity: str) -> str:
    """
    Put the project's own normalisers to work on an identity that code names; what they give is not remembered.

    Without any the identity stays as it is.
    """
    if not conf.normalizers or type(identity) is not str:
        return identity
    return join([_resolved(part) for part in _parts(identity)])


def _resolved(part: str) -> str:
    try:
        named = parse_named(part)
    except IdentityError:
        return part  # It is refused where it is read.
    if named is None or str(named[0]) not in conf.normalizers or is_digest(named[1]):
        return part
    source, value = named
    return identity_of(source, normalized(source, value), conf.key_secret)


def _parts(identity: str) -> list[str]:
    """Split a joined identity that code has written; a `+` before what has no kind belongs to the value."""
    parts: list[str] = []
    for part in split(identity):
        if parts and ":" not in part:
            parts[-1] += "+" + part
        else:
            parts.append(part)
    return parts if all(":" in part for part in parts) else [identity]


def canonical(identity: str) -> str:
    """
    Write an identity as the doors write it: an address as its network, secret values as digests.

    Raises ValueError when it is no text, is empty, or names an address that is none.
    """
    return named(identity).identity


def named(identity: str) -> Named:
    """Read an identity that code names. Raises ValueError as `canonical`."""
    if type(identity) is not str or not identity:
        msg = f"{identity!r} is no identity: expected text such as 'ip:203.0.113.9' or 'user:42'."
        raise ValueError(msg)
    text = resolved(identity) if conf.normalizers else identity
    return _named(text, conf.key_secret, conf.ipv4_prefix, conf.ipv6_prefix)


@lru_cache(maxsize=16_384)
def _named(text: str, secret: bytes, ipv4_prefix: int, ipv6_prefix: int) -> Named:
    return Named(text, _canonical(text, secret, ipv4_prefix, ipv6_prefix))


def _canonical(identity: str, secret: bytes, ipv4_prefix: int, ipv6_prefix: int) -> str:
    if identity == "global" or _PLAIN.fullmatch(identity):
        return identity
    parts = _parts(identity)
    if len(parts) > 1:
        return join([_canonical(part, secret, ipv4_prefix, ipv6_prefix) for part in parts])
    if identity.startswith("ip:") and identity != "ip:unknown":
        text = identity[3:]
        address = parse_address(text)
        if address is not None:
            return "ip:" + network_text(address, ipv4_prefix, ipv6_prefix)
        try:
            return f"ip:{parse_network(text)}"
        except ValueError as error:
            msg = f"{identity!r} names no address: expected one such as 'ip:203.0.113.9'."
            raise ValueError(msg) from error
    kind, _, value = identity.partition(":")
    is_copied = kind in _READABLE and is_written(value)  # from a decision, a log or the admin
    return identity if is_copied else parse_custom(identity, secret)
