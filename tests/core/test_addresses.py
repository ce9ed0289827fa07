"""Client addresses: which hop is believed, and the network that stands for a client."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.addresses import (
    Network,
    NetworkSet,
    client_address,
    network_text,
    parse_address,
    parse_network,
    unwrap,
)
from ratelimit_app.core.forwarding import hops
from ratelimit_app.core.networks import read_network, write_network

TRUSTED = NetworkSet([parse_network("10.0.0.0/8"), parse_network("2001:db8:ff::/48")])
NOBODY = NetworkSet()
HEADERS = ("X-Forwarded-For", "Forwarded", "X-Real-IP")
addresses = st.ip_addresses(v=4) | st.ip_addresses(v=6)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Draw a network of any size around a few addresses, so that many overlap."""
    address = draw(st.sampled_from(["10.1.2.3", "10.1.200.3", "192.0.2.7", "2001:db8::1", "2001:db8:0:1::1"]))
    longest = ip_address(address).max_prefixlen
    return parse_network(f"{address}/{draw(st.integers(0, longest))}")


def client(peer: str, *forwarded: str, trusted: NetworkSet = TRUSTED, unix: bool = False) -> str:
    """Give the client as text."""
    return str(client_address(peer, hops("X-Forwarded-For", ",".join(forwarded)), trusted, unix))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("203.0.113.9", "203.0.113.9"),
        (" 203.0.113.9 ", "203.0.113.9"),
        ("203.0.113.9:51234", "203.0.113.9"),
        ("2001:DB8::1", "2001:db8::1"),
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ('"[2001:db8::1]:443"', "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("64:ff9b::192.0.2.1", "192.0.2.1"),
        ("64:ff9b::c000:201", "192.0.2.1"),
        ("::ffff:0:192.0.2.1", "192.0.2.1"),
        ("::192.0.2.1", "192.0.2.1"),
        ("2002:c000:201::", "192.0.2.1"),
        ("2002:c000:201:5:1:2:3:4", "192.0.2.1"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "192.0.2.45"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("::", "::"),
        ("::1", "::1"),
        ("2001:1::1", "2001:1::1"),
        ("2003:c000:201::", "2003:c000:201::"),
        ("64:ff9b:1::c000:201", "64:ff9b:1::c000:201"),
    ],
)
def test_an_address_when_spelt_differently_is_one(text: str, expected: str) -> None:
    """Ports, brackets, zones, case and IPv4 inside IPv6 do not make another client (C08, C13, C15)."""
    assert expected == str(parse_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "", "unknown", "_hidden", "1.2.3", "127.1", "0x7f.1", "010.0.0.1", "203.0.113.9:", "203.0.113.9:x",
        "203.0.113.9:123456", "[2001:db8::1", "[2001:db8::1]443", "[2001:db8::1]:x", "2001:db8::1::", "1.2.3.4.5",
        "for=203.0.113.9", "203.0.113.٩", "203.0.113.9:٤", "x" * 5_000, "203.0.113.9%eth0", "[203.0.113.9%1]:80",
    ],
)  # fmt: skip
def test_a_text_when_no_address_is_none(text: str) -> None:
    """What cannot be read exactly is not read at all (C10)."""
    assert parse_address(text) is None


@given(st.text(max_size=60))
def test_any_text_when_read_as_an_address_raises_nothing(text: str) -> None:
    """A header of any content never becomes an error of the request (C10)."""
    assert parse_address(text) is None or isinstance(parse_address(text), (IPv4Address, IPv6Address))


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("10.0.0.5", ["198.51.100.66, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["198.51.100.66", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["198.51.100.66, 203.0.113.9, 10.0.0.7,10.0.0.8"], "203.0.113.9"),
        ("10.0.0.5", ["203.0.113.9:51234"], "203.0.113.9"),
        ("10.0.0.5", ["::ffff:203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.5", ["203.0.113.9"], "203.0.113.9"),
        ("2001:db8:ff::1", ["[2001:db8::9]:80"], "2001:db8::9"),
        ("10.0.0.5", ["10.0.0.6, 10.0.0.7"], "10.0.0.6"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", [""], "10.0.0.5"),
    ],
)
def test_the_client_when_the_peer_is_trusted_is_the_first_stranger_from_the_right(
    peer: str, forwarded: list[str], expected: str
) -> None:
    """The leftmost entry is the attacker's text; the walk goes from the right (C01)."""
    assert expected == client(peer, *forwarded)


@pytest.mark.parametrize("forwarded", ["203.0.113.9", "10.0.0.5", "junk", "127.0.0.1"])
@pytest.mark.parametrize("trusted", [TRUSTED, NOBODY])
def test_the_client_when_the_peer_is_a_stranger_is_the_peer(forwarded: str, trusted: NetworkSet) -> None:
    """A header from an untrusted peer is not looked at (C02)."""
    assert client("198.51.100.4", forwarded, trusted=trusted) == "198.51.100.4"


def test_the_client_when_it_writes_a_victim_is_itself() -> None:
    """Whom the proxy appended is charged, not whom the client named (C03)."""
    assert client("10.0.0.5", "203.0.113.7, 203.0.113.66") == "203.0.113.66"


def test_the_client_when_it_comes_through_any_balancer_is_the_same() -> None:
    """Trusted hops in between make no new client (C04)."""
    chains = [("10.0.0.5", f"203.0.113.9, 10.0.0.{n}") for n in range(1, 7)]
    assert {"203.0.113.9"} == {client(peer, header) for peer, header in chains}


def test_the_client_when_no_proxy_is_named_is_the_peer() -> None:
    """Never guessed: with nobody trusted everybody behind the proxy is the proxy (C06 warns of it)."""
    assert client("10.0.0.5", "203.0.113.9", trusted=NOBODY) == "10.0.0.5"


@pytest.mark.parametrize("junk", ["not-an-ip", "unknown", "", "_hidden", "1.2.3", "x" * 5_000, "10.0.0.256"])
def test_the_walk_when_a_hop_cannot_be_read_stops_there(junk: str) -> None:
    """Junk is never skipped: what stands left of it was not vouched for (C10)."""
    assert client("10.0.0.5", f"198.51.100.66, {junk}") == "10.0.0.5"
    assert client("10.0.0.5", f"198.51.100.66, {junk}, 10.0.0.6") == "10.0.0.6"


@pytest.mark.parametrize(
    ("unix", "forwarded", "expected"),
    [
        (True, ["203.0.113.9"], "203.0.113.9"),
        (True, ["203.0.113.9, 10.0.0.7"], "203.0.113.9"),
        (True, [], "None"),
        (True, ["junk"], "None"),
        (False, ["203.0.113.9"], "None"),
        (False, [], "None"),
    ],
)
@pytest.mark.parametrize("peer", ["", "unix:"])
def test_the_client_when_the_peer_is_a_socket_needs_trust(
    peer: str, unix: bool, forwarded: list[str], expected: str
) -> None:
    """An empty peer raises nothing; its header counts only where `unix` is trusted (C07)."""
    assert expected == client(peer, *forwarded, unix=unix)


@given(st.sampled_from(HEADERS), st.text(max_size=30), st.lists(st.text(max_size=60), max_size=3))
def test_the_walk_when_given_any_text_raises_nothing(header: str, peer: str, forwarded: list[str]) -> None:
    """Any bytes in any header end in an address or in none (C07, C10)."""
    found = client_address(peer, hops(header, ",".join(forwarded)), TRUSTED, trust_unix=True)
    assert found is None or found.max_prefixlen in (32, 128)


@given(st.lists(addresses, min_size=1, max_size=5), addresses)
def test_the_walk_when_a_client_forges_hops_is_not_moved(
    forged: list[IPv4Address], real: IPv4Address
) -> None:
    """Whatever the client writes to the left of what the proxy appends changes nothing (C01, C03)."""
    real_text = str(unwrap(real))
    header = ", ".join(map(str, forged))
    if unwrap(real) not in TRUSTED:
        assert real_text == client("10.0.0.5", f"{header}, {real}")


def test_an_address_when_in_one_64_is_one_client() -> None:
    """A host that owns an IPv6 network is one client; the next network is another (C12)."""
    hosts = [IPv6Address(f"2001:db8:aa:1::{n}") for n in range(1, 5)]
    assert {"2001:db8:aa:1::/64"} == {network_text(host, 32, 64) for host in hosts}
    assert network_text(IPv6Address("2001:db8:aa:2::1"), 32, 64) == "2001:db8:aa:2::/64"


def test_an_address_when_the_prefix_is_full_is_written_alone() -> None:
    """`ip:203.0.113.9`, not `ip:203.0.113.9/32`; a shorter prefix is written."""
    assert network_text(IPv4Address("203.0.113.9"), 32, 64) == "203.0.113.9"
    assert network_text(IPv6Address("2001:db8::1"), 32, 128) == "2001:db8::1"
    assert network_text(IPv4Address("203.0.113.9"), 24, 64) == "203.0.113.0/24"


@given(st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_two_ipv4_clients_when_mapped_into_ipv6_stay_two(one: IPv4Address, other: IPv4Address) -> None:
    """A dual-stack server does not fold all IPv4 clients into one network (C13)."""
    texts = [network_text(unwrap(IPv6Address(f"::ffff:{address}")), 32, 64) for address in (one, other)]
    assert [str(one), str(other)] == texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.121/24", "192.0.2.0/24"),
        ("192.0.2.1", "192.0.2.1/32"),
        (" 192.0.2.0/24 ", "192.0.2.0/24"),
        ("2001:DB8::1/64", "2001:db8::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1/32"),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("64:ff9b::192.0.2.0/120", "192.0.2.0/24"),
        ("::/0", "::/0"),
        ("::ffff:0:0/90", "::ffff:0:0/90"),
        ("2002:c000:201::/48", "192.0.2.1/32"),
        ("2002:c000:201:5::/64", "192.0.2.1/32"),
        ("2002:c000:200::/40", "192.0.2.0/24"),
        ("2002:c0a8:1::/48", "2002:c0a8:1::/48"),
        ("2000::/4", "2000::/4"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "192.0.2.45/32"),
        ("2001:0:4136:e378::/64", "2001:0:4136:e378::/64"),
        ("::1", "::1/128"),
    ],
)
def test_a_network_when_read_has_one_form(text: str, expected: str) -> None:
    """Host bits are cut off, and IPv4 inside IPv6 is IPv4 (C15, C100); the reader of long lists agrees."""
    network = ip_network(expected, strict=False)
    assert network == parse_network(text)
    assert (network.version, network.prefixlen, int(network.network_address)) == read_network(text.strip())


@given(addresses, st.integers(0, 128))
def test_an_address_when_carried_in_any_way_lies_in_its_network(address: IPv4Address, length: int) -> None:
    """An entry of an address, however it is written, meets whoever comes from it (C15)."""
    network = parse_network(f"{address}/{min(length, address.max_prefixlen)}")
    client = unwrap(address)
    if address.max_prefixlen == min(length, address.max_prefixlen):
        assert client in network
        assert network == parse_network(str(client))
    assert network == ip_network(write_network(*read_network(str(network))))


@pytest.mark.parametrize(
    "inside", ["10.0.0.5", "127.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.1.1", "100.64.0.1"]
)
def test_an_address_when_a_tunnel_claims_to_be_inside_is_no_proxy(inside: str) -> None:
    """Who writes a private address into a tunnel's is not taken for a proxy, nor for loopback (C02)."""
    number = int(IPv4Address(inside))
    carried = [number, 0xFFFF << 48 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80]
    carried.append(0x20010000 << 96 | number ^ 0xFFFFFFFF)
    for peer in map(IPv6Address, carried):
        assert peer == unwrap(peer)
        assert str(peer) == client(
            str(peer), "203.0.113.9", trusted=NetworkSet([parse_network(f"{inside}/8")])
        )


@pytest.mark.parametrize("text", ["", "x", "192.0.2.0/33", "192.0.2", "192.0.2.1/24/24", "fe80::1%eth0/300"])
def test_a_network_when_malformed_is_a_value_error(text: str) -> None:
    """What is no network is refused where it is typed (C100)."""
    with pytest.raises(ValueError, match=r".+"):
        parse_network(text)


@given(st.lists(networks(), max_size=6), addresses | st.sampled_from([ip_address("10.1.2.9")]))
def test_a_set_of_networks_when_asked_for_an_address_agrees_with_ipaddress(
    members: list[Network], address: IPv4Address
) -> None:
    """The fast look-up says what a walk over all networks would say."""
    expected = any(address.version == network.version and address in network for network in members)
    assert expected == (address in NetworkSet(members))
    assert bool(members) == bool(NetworkSet(members))


@given(st.lists(networks(), max_size=6), networks())
def test_a_set_of_networks_when_asked_for_an_overlap_agrees_with_ipaddress(
    members: list[Network], network: Network
) -> None:
    """`overlaps` finds wider, equal and narrower networks, and no neighbours."""
    expected = any(network.version == other.version and network.overlaps(other) for other in members)
    assert expected == NetworkSet(members).overlaps(network)


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("Forwarded", "for=203.0.113.9", "203.0.113.9"),
        ("forwarded", "For=203.0.113.9;proto=https;by=10.0.0.5", "203.0.113.9"),
        ("Forwarded", 'by=10.0.0.5; for="203.0.113.9:51234"', "203.0.113.9"),
        ("Forwarded", 'for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::17"),
        ("Forwarded", 'for="203\\.0.113.9"', "203.0.113.9"),
        ("Forwarded", "for=198.51.100.66, for=203.0.113.9", "203.0.113.9"),
        ("Forwarded", "for=198.51.100.66, for=203.0.113.9, for=10.0.0.7;by=10.0.0.8", "203.0.113.9"),
        ("Forwarded", 'for=203.0.113.9;host="a, for=198.51.100.66"', "203.0.113.9"),
        ("Forwarded", 'for=203.0.113.9;host="a\\", for=198.51.100.66"', "203.0.113.9"),
        ("Forwarded", 'for="198.51.100.66, for=203.0.113.9', "203.0.113.9"),
        ("Forwarded", 'x="\\, for=203.0.113.9', "203.0.113.9"),
        ("Forwarded", "for=198.51.100.66, for=unknown", "10.0.0.5"),
        ("Forwarded", "for=198.51.100.66, for=_gazonk, for=10.0.0.6", "10.0.0.6"),
        ("Forwarded", "for=198.51.100.66, proto=https", "10.0.0.5"),
        ("Forwarded", "for=203.0.113.9;for=198.51.100.66", "10.0.0.5"),
        ("Forwarded", 'for="203.0.113.9:_port"', "203.0.113.9"),
        ("Forwarded", 'for="[2001:db8::1]:_p-1.x"', "2001:db8::1"),
        ("Forwarded", 'for="_hidden:_port"', "10.0.0.5"),
        ("Forwarded", 'for="unknown:_port"', "10.0.0.5"),
        ("Forwarded", 'for="203.0.113.9:_"', "10.0.0.5"),
        ("Forwarded", 'for="203.0.113.9:_a:_b"', "10.0.0.5"),
        ("X-Forwarded-For", "203.0.113.9:_port", "10.0.0.5"),
        ("Forwarded", "for = 203.0.113.9", "10.0.0.5"),
        ("Forwarded", "for=203.0.113.9 by=10.0.0.5", "10.0.0.5"),
        ("Forwarded", "203.0.113.9", "10.0.0.5"),
        ("Forwarded", "for=", "10.0.0.5"),
        ("Forwarded", "", "10.0.0.5"),
        ("Forwarded", ",", "10.0.0.5"),
        ("X-Real-IP", " 203.0.113.9 ", "203.0.113.9"),
        ("CF-Connecting-IP", "2001:db8::9", "2001:db8::9"),
        ("x-real-ip", "10.0.0.6", "10.0.0.6"),
        ("True-Client-IP", "198.51.100.66, 203.0.113.9", "10.0.0.5"),
        ("X-Real-IP", "unknown", "10.0.0.5"),
        ("X-Edge-Hops", "198.51.100.66, 203.0.113.9", "203.0.113.9"),
    ],
)
def test_a_header_when_read_by_its_own_rules_names_the_nearest_stranger(
    header: str, value: str, expected: str
) -> None:
    """RFC 7239, one address of an edge, or a list: nothing that stands left hides what a proxy wrote (C01, C10)."""
    assert expected == str(client_address("10.0.0.5", hops(header, value), TRUSTED, trust_unix=False))


@given(
    st.text(max_size=60), st.sampled_from(["for=203.0.113.9", 'for="203.0.113.9:80";proto=https;host="a,b"'])
)
def test_a_forwarded_header_when_a_client_begins_it_ends_as_the_proxy_wrote_it(
    forged: str, written: str
) -> None:
    """Quotes, backslashes and commas of a client do not reach over the comma that the proxy has put (C01, C03)."""
    for value in (f"{forged}, {written}", f"{forged},{written}"):
        assert "203.0.113.9" == str(
            client_address("10.0.0.5", hops("Forwarded", value), TRUSTED, trust_unix=False)
        )


class Watched(str):
    """A text that counts the characters which are taken from it."""

    taken = 0

    def __getitem__(self, place: Any) -> str:
        found = super().__getitem__(place)
        self.taken += len(found)
        return found


@pytest.mark.parametrize("filling", ['"', '\\"', "\\", '",'])
def test_a_forwarded_header_when_full_of_quotes_is_read_a_few_times_over(filling: str) -> None:
    """Reading takes as long as the text is, not its square: it is the client who chooses the length."""
    value = Watched(filling * 4_000 + '"')
    assert "" in list(hops("Forwarded", value))
    assert value.taken < 10 * len(value)
