"""Whether networks share an address: asked of a set of them before anybody is banned."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.addresses import NetworkSet

small = st.tuples(st.integers(0, 255), st.integers(24, 32)).map(
    lambda pair: ip_network((f"203.0.113.{pair[0]}", pair[1]), strict=False)
)
large = st.tuples(st.integers(0, 65_535), st.integers(96, 128)).map(
    lambda pair: ip_network((f"2001:db8::{pair[0]:x}", pair[1]), strict=False)
)
networks = st.one_of(small, large)


@given(st.lists(networks, max_size=6), networks)
def test_overlaps_of_a_set_agrees_with_each_of_its_networks(members, asked):
    """The set says yes exactly when one of its networks holds, is held by or equals the one asked for."""
    expected = any(member.version == asked.version and member.overlaps(asked) for member in members)
    assert expected == NetworkSet(members).overlaps(asked)
