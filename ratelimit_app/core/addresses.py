"""Client addresses: which hop of a request is the client, and the network that stands for it."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPV4LENGTH, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
UNIX = "unix"

# The first bits of addresses that carry an IPv4 one in their last 32: mapped (RFC 4291), translated (RFC 2765),
# NAT64 (RFC 6052), compatible (RFC 4291).
_MAPPED, _TRANSLATED, _NAT64, _COMPATIBLE = 0xFFFF, 0xFFFF << 16, 0x64FF9B << 64, 0
_TAILED = frozenset({_MAPPED, _TRANSLATED, _NAT64, _COMPATIBLE})
_6TO4, _TEREDO = 0x2002, 0x20010000  # RFC 3056, RFC 4380
_ALL = 0xFFFFFFFF
_IPV6LENGTH = 128
_6TO4_START, _6TO4_END = 16, 48  # the bits between which the IPv4 address stands
# `::` and `::1` are no IPv4 addresses, nor is anything else of a few bits.
_LEAST_COMPATIBLE = 1 << 24
# No address is longer with its brackets, zone, port and quotes; what is need not be looked at, nor remembered.
_MAX_TEXT = 100
# Nobody outside has these: a tunnel that claims one would be taken for a proxy, or for loopback.
_INSIDE = tuple(
    (int(network.network_address) >> 32 - network.prefixlen, 32 - network.prefixlen)
    for network in map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.168.0.0/16",
        ),
    )
)


@lru_cache(maxsize=16_384)
def parse_address(text: str) -> Address | None:
    """Read an address with an optional port, brackets or zone; IPv4 written inside IPv6 counts as IPv4."""
    text = text.strip().strip('"')
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not _is_port(port)):
            return None
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        if not _is_port(":" + port):
            return None
    else:
        host = text
    try:
        return unwrap(_address(host.partition("%")[0] if ":" in host else host))
    except ValueError:
        return None


def _address(text: str) -> Address:
    """Read an address by the system's own reader, which takes what `ipaddress` takes at a tenth of its time."""
    try:
        if ":" in text:
            return IPv6Address(int.from_bytes(inet_pton(AF_INET6, text)))
        return IPv4Address(int.from_bytes(inet_pton(AF_INET, text)))
    except (OSError, ValueError):
        return ip_address(text)


def _written(address: Address, prefix: int) -> str:
    """Write the network of an address; a full-length prefix is not written."""
    length = address.max_prefixlen
    number = int(address) >> (length - prefix) << (length - prefix)
    if length == IPV4LENGTH:
        text = inet_ntop(AF_INET, number.to_bytes(4))
    else:
        text = inet_ntop(AF_INET6, number.to_bytes(16))
        if "." in text:  # the system writes the last part of some as IPv4
            text = str(IPv6Address(number))
    return text if prefix == length else f"{text}/{prefix}"


def _is_port(text: str) -> bool:
    digits = text[1:]
    return text[0] == ":" and digits.isascii() and digits.isdigit() and len(digits) <= len("65535")


def unwrap(address: Address) -> Address:
    """
    Give the IPv4 address that an IPv6 one carries, by its bits, else the address itself.

    Mapped, translated, compatible, NAT64, 6to4 and Teredo: whoever has one IPv4 address has many of these. One that
    carries an address from inside somebody's network stays as it is, unless it is mapped: that is how a socket of
    both families writes any IPv4 peer.
    """
    if isinstance(address, IPv6Address):
        number = int(address)
        head = number >> 32
        if head in _TAILED:
            inner = number & _ALL
            if head == _COMPATIBLE and inner < _LEAST_COMPATIBLE:
                return address
        elif number >> 112 == _6TO4:
            inner = number >> 80 & _ALL
        elif number >> 96 == _TEREDO:
            inner = ~number & _ALL
        else:
            return address
        if head == _MAPPED or not any(inner >> shift == start for start, shift in _INSIDE):
            return IPv4Address(inner)
    return address


def parse_network(text: str) -> Network:
    """Read an address or a network, of IPv4 where it holds only what counts as IPv4; host bits are cut off. Raises ValueError."""
    network = ip_network(text.strip(), strict=False)
    if isinstance(network, IPv4Network):
        return network
    number, prefix = int(network.network_address), network.prefixlen
    if prefix >= _IPV6LENGTH - IPV4LENGTH and number >> 32 in _TAILED:
        length = prefix - (_IPV6LENGTH - IPV4LENGTH)
    elif prefix >= _6TO4_START and number >> 112 == _6TO4:
        length = min(prefix, _6TO4_END) - _6TO4_START
    elif prefix == _IPV6LENGTH:
        length = IPV4LENGTH
    else:
        return network
    inner = unwrap(network.network_address)
    return IPv4Network((inner, length), strict=False) if isinstance(inner, IPv4Address) else network


def client_address(peer: str, hops: Iterable[str], trusted: NetworkSet, trust_unix: bool) -> Address | None:
    """
    Walk from the peer to the left while the hops are trusted; the first hop that is not is the client.

    `hops`: what the forwarding header says of each hop, the nearest first. One that cannot be read stops the walk
    at the last one that could. None when the peer is a unix socket and nobody vouches for a better address.
    """
    client = parse_address(peer) if peer else None
    if not (trust_unix if client is None else client in trusted):
        return client
    for hop in hops:
        address = parse_address(hop) if len(hop) <= _MAX_TEXT else None
        if address is None:
            break
        client = address
        if address not in trusted:
            break
    return client


class Client(NamedTuple):
    """A client: its address, and the identities of its network and of the whole address."""

    address: Address
    network: str
    whole: str


def client_of(address: Address, ipv4_prefix: int, ipv6_prefix: int) -> Client:
    """Write what stands for a client's address."""
    prefix = ipv4_prefix if isinstance(address, IPv4Address) else ipv6_prefix
    whole = "ip:" + _written(address, address.max_prefixlen)
    is_whole = prefix == address.max_prefixlen
    return Client(address, whole if is_whole else "ip:" + _written(address, prefix), whole)


@lru_cache(maxsize=16_384)
def peer_client(text: str, ipv4_prefix: int, ipv6_prefix: int) -> Client | None:
    """Write what stands for a peer that is the client itself; None where it has no address."""
    address = parse_address(text)
    return None if address is None else client_of(address, ipv4_prefix, ipv6_prefix)


@lru_cache(maxsize=16_384)
def network_text(address: Address, ipv4_prefix: int, ipv6_prefix: int) -> str:
    """Write the network of an address at the configured prefix; a full-length prefix is not written."""
    return _written(address, ipv4_prefix if isinstance(address, IPv4Address) else ipv6_prefix)


class NetworkSet:
    """Find whether an address lies in any of some networks: one dict look-up for each prefix length in use."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._tables: dict[int, dict[int, set[int]]] = {4: {}, 6: {}}
        for network in networks:
            shift = network.max_prefixlen - network.prefixlen
            table = self._tables[network.version].setdefault(shift, set())
            table.add(int(network.network_address) >> shift)

    def __contains__(self, address: Address) -> bool:
        number = int(address)
        for shift, table in self._tables[address.version].items():  # noqa: SIM110 - a generator costs as much again
            if number >> shift in table:
                return True
        return False

    def overlaps(self, network: Network) -> bool:
        """Whether any of the networks shares an address with this one."""
        number, own = int(network.network_address), network.max_prefixlen - network.prefixlen
        for shift, table in self._tables[network.version].items():
            if shift >= own:
                if number >> shift in table:
                    return True
            elif any(part >> (own - shift) == number >> own for part in table):
                return True
        return False

    def __bool__(self) -> bool:
        return any(self._tables.values())
