"""Identities that code and people name, written as the doors write them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import Address, network_text, parse_address, parse_network
from ratelimit_app.core.asking import Memory, question
from ratelimit_app.core.entries import is_written
from ratelimit_app.core.identity import (
    IdentityError,
    identity_of,
    is_digest,
    join,
    kind_of,
    parse_custom,
    parse_named,
    split,
)
from ratelimit_app.normalizing import normalized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimit_app.core.asking import Door, Question
    from ratelimit_app.core.plans import Plan
    from ratelimit_app.core.snapshot import Snapshot

_READABLE = frozenset({"user", "device", "view", "key"})


class IdentityFacts:
    """The facts of an identity that code names: itself."""

    __slots__ = ("given", "identity", "memory")
    request = None
    is_spared = False

    def __init__(self, identity: str) -> None:
        self.given, self.identity = identity, canonical(identity)
        self.memory = Memory()

    @property
    def address(self) -> Address | None:
        """The address that the identity names, if it is one: the whole of it, not its network."""
        is_ip = self.identity.startswith("ip:")
        return parse_address(self.given[3:].partition("/")[0]) if is_ip else None

    def user_identity(self) -> str | None:
        """The identity itself when it is a user's."""
        return next((part for part in split(self.identity) if part.startswith("user:")), None)

    def unknown(self, facts: Sequence[str]) -> Sequence[str]:
        """Nothing: all is known."""
        return ()

    def question(self, plan: Plan, snapshot: Snapshot, door: Door) -> Question:
        """Give the marks, the keys and the demands of these rules: the same for all calls of an identity."""
        return _question(self.given, plan, snapshot.marked_kinds, door.units)

    def marks(self, kinds: frozenset[str]) -> Sequence[str]:
        """Its parts that may be blacklisted."""
        identity = self.identity
        parts = [part for part in split(identity) if kind_of(part) in kinds]
        address = self.address
        return parts if not parts or address is None else [*parts, f"ip:{address}"]


@lru_cache(maxsize=16_384)
def _question(given: str, plan: Plan, kinds: frozenset[str], units: int) -> Question:
    facts = IdentityFacts(given)
    return question(plan, units, facts.marks(kinds), lambda _: facts.identity)


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
    if type(identity) is not str or not identity:
        msg = f"{identity!r} is no identity: expected text such as 'ip:203.0.113.9' or 'user:42'."
        raise ValueError(msg)
    return _canonical(resolved(identity), conf.key_secret, conf.ipv4_prefix, conf.ipv6_prefix)


@lru_cache(maxsize=16_384)
def _canonical(identity: str, secret: bytes, ipv4_prefix: int, ipv6_prefix: int) -> str:
    if identity == "global":
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
