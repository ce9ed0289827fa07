"""Networks as numbers: the same as `ipaddress` reads and writes, faster."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimit_app.core.addresses import parse_network
from ratelimit_app.core.networks import read_network, write_network

numbers = st.one_of(
    st.tuples(st.just(4), st.integers(0, 32), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(6), st.integers(0, 128), st.integers(0, 2**128 - 1)),
    st.tuples(st.just(6), st.integers(90, 128), st.integers(0xFFFF << 32, (0xFFFF << 32) + 2**32)),
    st.tuples(st.just(6), st.integers(90, 128), st.integers(0, 2**33)),
)


def plain(network: IPv4Network | IPv6Network) -> str:
    """Write a network as rows have it."""
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)


@given(numbers)
@example((6, 96, 0x64FF9B << 96))
def test_a_network_when_read_and_written_is_what_the_slow_way_says(drawn: tuple[int, int, int]) -> None:
    """Host bits, embedded IPv4, full lengths: bit by bit as `parse_network`, and one form for each."""
    version, prefix, number = drawn
    kind = IPv4Network if version == 4 else IPv6Network
    network = kind((number, prefix), strict=False)
    address = f"{kind((number, kind(0).max_prefixlen)).network_address}/{prefix}"
    expected = parse_network(str(network))
    for text in (str(network), address, address.upper()):
        found = read_network(text)
        assert (expected.version, expected.prefixlen, int(expected.network_address)) == found
        assert plain(expected) == write_network(*found)


@given(st.text(alphabet="0123456789abcdefABCDEF:./% ", max_size=30))
def test_a_text_when_arbitrary_is_read_as_the_slow_way_does(text: str) -> None:
    """Neither more nor less is taken for a network."""
    try:
        expected = parse_network(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            read_network(text)
    else:
        assert (expected.version, expected.prefixlen, int(expected.network_address)) == read_network(text)


@pytest.mark.parametrize(
    "text", ["1.2.3.4/", "1.2.3.4/33", "1.2.3.4/+8", "1.2.3.4/\u0668", "1.2.3", "01.2.3.4", "::/129", ""]
)
def test_a_text_when_it_is_no_network_is_refused(text: str) -> None:
    """Digits of other alphabets, signs, octal and short forms."""
    with pytest.raises(ValueError, match=r"."):
        read_network(text)
