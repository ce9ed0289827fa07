"""Networks as numbers: read and written at a tenth of what `ipaddress` takes, for lists of a million."""

from __future__ import annotations

from ipaddress import IPv6Address
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from ratelimit_app.core.addresses import parse_network

LENGTHS = {4: 32, 6: 128}

_IPV6 = 6
# In these lie networks of addresses that carry an IPv4 one, which `parse_network` unwraps.
_CARRIES_IPV4, _6TO4, _TEREDO = 96, 0x2002, 0x20010000


def read_network(text: str) -> tuple[int, int, int]:
    """Give version, prefix length and number of a network; host bits are cut off. Raises ValueError."""
    address, slash, digits = text.partition("/")
    try:
        # The system's own reader, at a tenth of the time: reading 100,000 must not hold a process up.
        version = _IPV6 if ":" in address else 4
        number = int.from_bytes(inet_pton(AF_INET6 if version == _IPV6 else AF_INET, address))
        prefix = int(digits) if slash else LENGTHS[version]
        is_plain = not slash or (digits.isascii() and digits.isdigit() and prefix <= LENGTHS[version])
    except (OSError, ValueError):
        is_plain = False
    if not is_plain or (
        version == _IPV6 and (prefix >= _CARRIES_IPV4 or number >> 112 == _6TO4 or number >> 96 == _TEREDO)
    ):
        network = parse_network(text)
        return network.version, network.prefixlen, int(network.network_address)
    shift = LENGTHS[version] - prefix
    return version, prefix, number >> shift << shift


def write_network(version: int, prefix: int, number: int) -> str:
    """Write a network in its one form; a full-length prefix is not written."""
    if version == _IPV6:
        text = inet_ntop(AF_INET6, number.to_bytes(16))
        if "." in text:  # the system writes the last part of some as IPv4
            text = str(IPv6Address(number))
    else:
        text = inet_ntop(AF_INET, number.to_bytes(4))
    return text if prefix == LENGTHS[version] else f"{text}/{prefix}"
