"""Identities that code and people name, written as the doors write them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import Address, network_text, parse_address, parse_network
from ratelimit_app.core.asking import Memory
from ratelimit_app.core.entries import is_written
from ratelimit_app.core.identity import parse_custom, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimit_app.core.rules import Rule
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

    def rule_identity(self, rule: Rule) -> str:
        """The identity itself."""
        return self.identity

    def mark_identities(self, snapshot: Snapshot, with_user: bool) -> Sequence[str]:
        """Its parts that may be blacklisted."""
        identity = self.identity
        if "+" in identity:
            return [part for part in split(identity) if snapshot.is_marked(part)]
        if not snapshot.is_marked(identity):
            return ()
        address = self.address
        whole = identity if address is None else f"ip:{address}"
        return (identity,) if whole == identity else (identity, whole)


def canonical(identity: str) -> str:
    """
    Write an identity as the doors write it: an address as its network, secret values as digests.

    Raises ValueError when it is no text, is empty, or names an address that is none.
    """
    if type(identity) is not str or not identity:
        msg = f"{identity!r} is no identity: expected text such as 'ip:203.0.113.9' or 'user:42'."
        raise ValueError(msg)
    return _canonical(identity, conf.key_secret, conf.ipv4_prefix, conf.ipv6_prefix)


@lru_cache(maxsize=16_384)
def _canonical(identity: str, secret: bytes, ipv4_prefix: int, ipv6_prefix: int) -> str:
    if identity == "global":
        return identity
    if "+" in identity and all(":" in part for part in identity.split("+")):
        return "+".join(_canonical(part, secret, ipv4_prefix, ipv6_prefix) for part in identity.split("+"))
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
