"""Entries of the lists: what people type for an identity, in the one form that rows, marks and lookups share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from ratelimit_app.core.addresses import NetworkSet, parse_network
from ratelimit_app.core.identity import (
    DIGESTED_KINDS,
    LISTABLE_KINDS,
    MAX_VALUE,
    NAMED_KINDS,
    IdentityError,
    Source,
    escape,
    folded,
    identity_of,
    is_digest,
    parse_sources,
    value_of,
)
from ratelimit_app.core.networks import read_network, write_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimit_app.core.addresses import Address, Network

ALLOWABLE_KINDS = frozenset({"ip", "user"})
WIDEST_PREFIX = {4: 8, 6: 32}
KINDS_HELP = "ip, user, device, session, header:<name>, cookie:<name>, param:<name> or field:<name>"

_MAX_TYPED = 10_000
_LOOPBACK = NetworkSet([parse_network("127.0.0.0/8"), parse_network("::1")])
_CUT = MAX_VALUE - 33


def canonical_kind(text: str, kinds: frozenset[str] = LISTABLE_KINDS) -> str:
    """Read the kind of an entry, such as `ip` or `header:x-api-key`. Raises IdentityError."""
    return str(_source(text, kinds))


def canonical(
    kind: str,
    value: str,
    secret: bytes,
    *,
    kinds: frozenset[str] = LISTABLE_KINDS,
    normalize: Callable[[Source, str], str] = folded,
) -> tuple[str, str]:
    """
    Give kind and value as rows hold them: networks without host bits, secret values normalised and digested.

    What is canonical already stays as it is. Raises IdentityError.
    """
    source = _source(kind, kinds)
    if source.kind in NAMED_KINDS and not is_digest(value) and len(value) <= _MAX_TYPED:
        value = normalize(source, value)
    if not value.strip() or len(value) > _MAX_TYPED:
        msg = f"A value is missing or too long for the kind {str(source)!r}: expected text of 1 to {_MAX_TYPED:,} characters."
        raise IdentityError(msg)
    if source.kind == "ip":
        return "ip", network_value(value)
    if source.kind not in DIGESTED_KINDS:
        value = value.strip()
        if is_written(value):
            return str(source), value
    return str(source), value_of(identity_of(source, value, secret))


def parse_identity(
    text: str,
    secret: bytes,
    *,
    kinds: frozenset[str] = LISTABLE_KINDS,
    normalize: Callable[[Source, str], str] = folded,
) -> tuple[str, str]:
    """Read `ip:203.0.113.9`, `user:42` or `header:x-api-key:<value>` as (kind, value). Raises IdentityError."""
    kind, colon, value = text.strip().partition(":")
    if kind in NAMED_KINDS:
        name, colon, value = value.partition(":")
        kind = f"{kind}:{name}"
    if not colon:
        msg = (
            f"{text!r:.80} is not an identity: expected kind:value, such as ip:203.0.113.9 or user:42; "
            f"kinds are {KINDS_HELP}."
        )
        raise IdentityError(msg)
    return canonical(kind, value, secret, kinds=kinds, normalize=normalize)


def network_value(text: str) -> str:
    """Write an address or a network in its one form; host bits are cut off. Raises IdentityError."""
    try:
        return write_network(*read_network(text.strip()))
    except ValueError as error:
        msg = f"{text!r:.80} is not an address or a network: expected such as 203.0.113.9, 203.0.113.0/24 or 2001:db8::/64."
        raise IdentityError(msg) from error


def holding(value: str) -> list[str]:
    """Write all networks that are wider than an address or a network and hold it, the narrowest first."""
    network = parse_network(value)
    return [str(network.supernet(new_prefix=prefix)) for prefix in range(network.prefixlen - 1, -1, -1)]


def is_written(value: str) -> bool:
    """Whether a value is what an identity's text holds already, so that what was copied from a log is understood."""
    if (
        len(value) == MAX_VALUE
        and value[_CUT] == "~"
        and all(char in "0123456789abcdef" for char in value[_CUT + 1 :])
    ):
        return True
    try:
        raw = unquote_to_bytes(value).decode("utf-8", "surrogatepass")
    except UnicodeError:
        return False
    return len(value) <= MAX_VALUE and escape(raw) == value


def is_exact(identity: str, ipv4_prefix: int, ipv6_prefix: int) -> bool:
    """
    Whether an entry is one client: a mark of its own, not a network to be searched.

    A single address is one, and a network at the prefix at which clients are told apart.
    """
    kind, _, value = identity.partition(":")
    if kind != "ip" or "/" not in value:
        return True
    return value.endswith(f"/{ipv6_prefix if ':' in value else ipv4_prefix}")


def width_danger(network: Network) -> str | None:
    """Say that a network is too wide to be listed without a second thought. None: it is not."""
    widest = WIDEST_PREFIX[network.version]
    return f"it is wider than /{widest}" if network.prefixlen < widest else None


def block_danger(network: Network, trusted: NetworkSet, own: Address | None) -> str | None:
    """Say what blocking this network would break: too wide, loopback, a trusted proxy, oneself. None: nothing."""
    if _LOOPBACK.overlaps(network):
        return "it holds loopback addresses, from which health checks and proxies come"
    if trusted.overlaps(network):
        return "it holds a trusted proxy, through which everybody comes"
    if own is not None and own in network:
        return f"it holds your own address, {own}"
    return width_danger(network)


def _source(text: str, kinds: frozenset[str]) -> Source:
    try:
        sources = parse_sources(text)
    except IdentityError:
        sources = ()
    if len(sources) != 1 or sources[0].kind not in kinds:
        expected = KINDS_HELP if kinds == LISTABLE_KINDS else " or ".join(sorted(kinds))
        msg = f"{text!r:.80} is not a kind that can be listed here: expected {expected}."
        raise IdentityError(msg)
    return sources[0]
