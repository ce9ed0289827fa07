"""Addresses cut out of networks, and what is left."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.feeds.cutting import Spared
from ratelimit_app.core.networks import read_network, write_network

# Close together, so that they meet; some of them hold what counts as IPv4.
BASES = {
    4: [0xCB007100, 0, 0xFFFFFF00],
    6: [0x20010DB8 << 96, 0, 0xFFFF << 32, 0x2002 << 112, (1 << 128) - 256],
}
WIDTH = {4: 32, 6: 128}


def _numbers(base: int, version: int, low: int, wide: int) -> tuple[int, int, int]:
    return version, WIDTH[version] - wide, base + low >> wide << wide


def _near(version: int) -> Any:
    return st.sampled_from(BASES[version]).flatmap(
        lambda base: st.builds(
            lambda low, wide: _numbers(base, version, low, wide), st.integers(0, 255), st.integers(0, 8)
        )
    )


def _addresses(network: tuple[int, int, int]) -> set[tuple[int, int]]:
    version, prefix, number = network
    return {(version, number + low) for low in range(1 << WIDTH[version] - prefix)}


anything = st.sampled_from([4, 6]).flatmap(_near)


@given(anything, st.lists(anything, max_size=6))
def test_networks_when_cut_out_leave_all_others(
    network: tuple[int, int, int], spared: list[tuple[int, int, int]]
) -> None:
    """Every address is in what is left or among those cut out, in no two parts, and nothing is added."""
    out = {address for one in spared for address in _addresses(one)}
    parts = list(Spared(spared).left_of(*network))
    left = [address for part in parts for address in _addresses(part)]
    assert len(left) == len(set(left))
    assert set(left) == _addresses(network) - out
    assert all(number % (1 << WIDTH[version] - prefix) == 0 for version, prefix, number in parts)
    assert Spared(spared).overlaps(*network) == bool(_addresses(network) & out)


def test_a_network_when_nothing_is_cut_out_is_itself() -> None:
    """The widest and the narrowest of both families, whatever is spared elsewhere."""
    elsewhere = Spared([read_network("192.0.2.0/24"), read_network("2001:db8::/32")])
    for text in ("0.0.0.0/1", "203.0.113.7", "8000::/1", "2001:db9::1", "::ffff:0:0/95"):
        network = read_network(text)
        assert not elsewhere.overlaps(*network)
        assert list(elsewhere.left_of(*network)) == [network]
    assert list(Spared().left_of(6, 0, 0)) == [(6, 0, 0)]
    assert list(Spared([(4, 0, 0)]).left_of(4, 0, 0)) == []


def test_a_wide_network_when_many_are_cut_out_is_cut_once() -> None:
    """What it takes grows with what is written, not with its square: the parts are as many as the gaps ask for."""
    spared = [(4, 32, (10 << 24) + step * 512) for step in range(1 << 15)]
    parts = list(Spared(spared).left_of(*read_network("10.0.0.0/8")))
    assert sum(ip_network(write_network(*part)).num_addresses for part in parts) == (1 << 24) - len(spared)
    assert len(parts) == len(spared) * 9
