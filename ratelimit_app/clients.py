"""Who sends a request: the address that the project's proxies vouch for, and a word about a proxy that nobody has named."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ratelimit_app import snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import (
    Address,
    Client,
    NetworkSet,
    client_address,
    client_of,
    parse_address,
    peer_client,
)
from ratelimit_app.core.forwarding import hops

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("ratelimit_app")

_UNPREFIXED = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
# What proxies write without being told to.
_USUAL = {
    f"HTTP_{name.upper().replace('-', '_')}": name for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP")
}
# Longer headers are read and not kept: a client chooses how long its own part is, and a cache is full of them.
_MAX_KEPT = 512
_warned: set[str] = set()


def client_from(meta: Mapping[str, Any]) -> Client | None:
    """Give who sends a request, by its `META`; None when nobody trustworthy names an address."""
    header, peer = meta.get(meta_name(conf.client_ip_header)), meta.get("REMOTE_ADDR") or ""
    prefixes = conf.ipv4_prefix, conf.ipv6_prefix
    if header:
        walk = _kept_walk if len(header) <= _MAX_KEPT else _walk
        client = walk(peer, conf.client_ip_header, header, conf.trusted_proxies, conf.trusts_unix, *prefixes)
    else:
        client = peer_client(peer, *prefixes)
    if "unlisted_proxy" not in _warned and client is not None:
        _look_for_proxy(meta, peer, client.address)
    return client


def _walk(  # noqa: PLR0913, PLR0917 - all that the answer depends on
    peer: str,
    name: str,
    header: str,
    trusted: NetworkSet,
    trusts_unix: bool,
    ipv4_prefix: int,
    ipv6_prefix: int,
) -> Client | None:
    address = client_address(peer, hops(name, header), trusted, trusts_unix)
    return None if address is None else client_of(address, ipv4_prefix, ipv6_prefix)


_kept_walk = lru_cache(maxsize=16_384)(_walk)


@lru_cache(maxsize=256)
def meta_name(header: str) -> str:
    """Name a header as WSGI does, so that one can be read without building the mapping of all."""
    key = header.upper().replace("-", "_")
    return key if key in _UNPREFIXED else f"HTTP_{key}"


def _look_for_proxy(meta: Mapping[str, Any], peer: str, address: Address) -> None:
    """Tell once of a peer inside the network that forwards for others and is not believed, by whatever header."""
    own = conf.client_ip_header
    name = own if meta.get(meta_name(own)) else next((_USUAL[key] for key in _USUAL if key in meta), None)
    if name is None or not _is_unlisted_proxy(address, peer):
        return
    also = "" if name == own else f" and name the header that it writes in CLIENT_IP_HEADER (now {own!r})"
    warn_once(
        "unlisted_proxy",
        f"ratelimit.proxy_unlisted {name} arrives from the private address {address}, which is not in"
        f" RATELIMIT_APP['TRUSTED_PROXIES']: if it is your proxy, list it{also}, or all its clients share one limit.",
    )
    snapshot_cache.tell_unlisted(str(address))


def _is_unlisted_proxy(address: Address, peer: str) -> bool:
    """Whether the client is its peer, of a network that is not the internet's, and no proxy of ours."""
    return address == parse_address(peer) and not address.is_global and address not in conf.trusted_proxies


def warn_once(what: str, message: str) -> None:
    """Log a warning at the first time that a process comes to it."""
    if what not in _warned:
        _warned.add(what)
        logger.warning(message)
