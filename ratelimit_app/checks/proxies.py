"""Checks of who is believed about the client's address."""

from __future__ import annotations

from ipaddress import collapse_addresses
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning

from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import UNIX, parse_network

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from ipaddress import IPv4Network

    from ratelimit_app.core.addresses import Network

# Wider than what the largest edges announce as one network of theirs.
_WIDEST = {4: 8, 6: 20}


def check_proxies(**_: Any) -> Iterable[CheckMessage]:
    """E004, E005, W023, W024: a proxy that is not named, or a trust that includes everybody, or strangers."""
    proxies = _given("TRUSTED_PROXIES", [])
    yield from _unnamed(proxies)
    if any(problem.name.endswith("['TRUSTED_PROXIES']") for problem in conf.problems()):
        return
    networks = {text: parse_network(text) for text in proxies if text != UNIX}
    everybody = [text for text, network in networks.items() if network.prefixlen == 0]
    everybody = everybody or [" with ".join(texts) for texts in _together(networks)]
    for text in everybody:
        yield Error(
            f"RATELIMIT_APP['TRUSTED_PROXIES'] has {text!r}: every client is believed whatever address it writes.",
            hint="List the proxies' own networks only.",
            id="ratelimit_app.E005",
        )
    for text, network in networks.items():
        if 0 < network.prefixlen < _WIDEST[network.version] and not network.is_private and not everybody:
            yield Warning(
                f"RATELIMIT_APP['TRUSTED_PROXIES'] has {text!r}, a public network wider than"
                f" /{_WIDEST[network.version]}: whoever has an address in it chooses who the client is.",
                hint="List the proxies' own networks only, as your provider publishes them.",
                id="ratelimit_app.W023",
            )


def _given(name: str, default: Any) -> Any:
    given = getattr(settings, "RATELIMIT_APP", {})
    return given.get(name, default) if isinstance(given, dict) else default


def _unnamed(proxies: Any) -> Iterator[CheckMessage]:
    """Tell of what says that there is a proxy, where none is named."""
    if proxies:
        return
    drf = getattr(settings, "REST_FRAMEWORK", {})
    old = "RATELIMIT_IP_META_KEY" if getattr(settings, "RATELIMIT_IP_META_KEY", None) else None
    old = "REST_FRAMEWORK['NUM_PROXIES']" if drf.get("NUM_PROXIES") else old
    if old:
        yield Error(
            f"{old} is set, but RATELIMIT_APP['TRUSTED_PROXIES'] is empty: all clients of the proxy share its limit.",
            hint="List the proxies' networks, such as RATELIMIT_APP = {'TRUSTED_PROXIES': ['10.0.0.0/8']}.",
            id="ratelimit_app.E004",
        )
    elif header := _given("CLIENT_IP_HEADER", None):
        yield Warning(
            f"RATELIMIT_APP['CLIENT_IP_HEADER'] is {header!r}, but TRUSTED_PROXIES is empty: no header is ever read.",
            hint="List the proxies that write it, such as 'TRUSTED_PROXIES': ['10.0.0.0/8'], or leave the header out.",
            id="ratelimit_app.W024",
        )


def _together(networks: dict[str, Network]) -> Iterator[list[str]]:
    """Give the networks of a family that are everybody together."""
    for version in (4, 6):
        own = {text: network for text, network in networks.items() if network.version == version}
        # One family at a time, as it wants them, which its types cannot say.
        together = collapse_addresses(cast("list[IPv4Network]", list(own.values())))
        if any(network.prefixlen == 0 for network in together):
            yield list(own)
