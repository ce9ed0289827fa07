"""Networks with an expiry: found fast, changed one at a time, the longer one wins."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.access_lists import NEVER, NetworkTable

NOW = 1_000


def table() -> NetworkTable:
    """Give a table with a few networks of different ends."""
    made = NetworkTable()
    made.set("192.0.2.0/24", 2_000)
    made.set("192.0.2.128/25", 3_000)
    made.set("198.51.100.0/24", NEVER)
    made.set("2001:db8::/32", 2_000)
    return made


@pytest.mark.parametrize(
    ("address", "now", "expected"),
    [
        ("192.0.2.1", NOW, 2_000),
        ("192.0.2.200", NOW, 3_000),
        ("192.0.2.200", 2_000, 3_000),
        ("192.0.2.1", 1_999, 2_000),
        ("192.0.2.1", 2_000, None),
        ("198.51.100.7", 10**18, NEVER),
        ("203.0.113.9", NOW, None),
        ("2001:db8:1::1", NOW, 2_000),
        ("2001:db9::1", NOW, None),
    ],
)
def test_an_address_when_looked_up_gives_the_latest_end(address: str, now: int, expected: int | None) -> None:
    """Ended networks do not count, and of several live ones the longest does (C112)."""
    assert expected == table().find(ip_address(address), now)


def test_an_endless_network_when_it_lies_in_an_ending_one_wins() -> None:
    """`NEVER` is later than every time, in whatever order they were added."""
    for texts in (["10.0.0.0/8", "10.1.0.0/16"], ["10.1.0.0/16", "10.0.0.0/8"]):
        made = NetworkTable()
        made.set(texts[0], NEVER)
        made.set(texts[1], 5_000)
        assert made.find(ip_address("10.1.2.3"), NOW) == NEVER


def test_a_network_when_set_again_has_the_new_end() -> None:
    """An extension or a shortening replaces the end and adds no second row."""
    made = table()
    made.set("192.0.2.77/24", 9_000)
    assert made.find(ip_address("192.0.2.1"), NOW) == 9_000
    assert len(made) == 4


def test_a_network_when_discarded_is_gone_and_twice_is_no_fault() -> None:
    """Differences may name what was never here."""
    made = table()
    made.discard("192.0.2.9/24")
    made.discard("192.0.2.0/24")
    made.discard("203.0.113.0/29")
    assert made.find(ip_address("192.0.2.1"), NOW) is None
    assert len(made) == 3


@pytest.mark.parametrize("method", ["set", "discard"])
def test_a_text_when_no_network_is_a_value_error(method: str) -> None:
    """The caller reports the bad row and goes on with the others."""
    arguments = ("nonsense", NEVER) if method == "set" else ("nonsense",)
    with pytest.raises(ValueError, match="nonsense"):
        getattr(table(), method)(*arguments)


def test_a_table_when_empty_finds_nothing() -> None:
    """No networks, no hit, of either version."""
    made = NetworkTable()
    assert (None, None, 0) == (
        made.find(ip_address("::1"), 0),
        made.find(ip_address("127.0.0.1"), 0),
        len(made),
    )


rows = st.tuples(
    st.booleans(),
    st.integers(0, 255),
    st.integers(0, 128),
    st.one_of(st.just(NEVER), st.integers(900, 1_100)),
    st.booleans(),
)
BASES = {4: "192.0.2.0", 6: "2001:db8:0:1::"}


@given(st.lists(rows, max_size=40), st.integers(0, 255))
def test_a_table_when_changed_at_random_agrees_with_a_plain_list(
    changes: list[tuple[bool, int, int, int, bool]], last: int
) -> None:
    """Sets and discards of every length in any order leave what a list of networks would hold."""
    made, model = NetworkTable(), {}
    for is_6, host, prefix, expires, kept in changes:
        base = ip_address(BASES[6 if is_6 else 4]) + host
        network = ip_network(f"{base}/{min(prefix, base.max_prefixlen)}", strict=False)
        if kept:
            made.set(str(network), expires)
            model[network] = expires
        else:
            made.discard(str(network))
            model.pop(network, None)
    for text in BASES.values():
        address = ip_address(text) + last
        ends = [end for network, end in model.items() if address in network and (end == NEVER or end > NOW)]
        expected = NEVER if NEVER in ends else max(ends, default=None)
        assert expected == made.find(address, NOW)
    assert len(model) == len(made)
    assert bool(model) == bool(made)


def test_a_table_when_emptied_holds_nothing_any_more() -> None:
    """Daily lists that come and go do not grow a process."""
    made = NetworkTable()
    texts = [f"2a00:{number:x}::/{length}" for number in range(300) for length in (32, 40, 48, 64)]
    for text in texts + texts:
        made.set(text, NEVER)
    for text in texts + texts:
        made.discard(text)
    for level in made._levels[6]:
        assert (0, 0, 0) == (len(level.ends), len(level.lengths), len(level._shared))
    assert not made


def test_a_lookup_when_most_networks_are_elsewhere_looks_at_few_lengths() -> None:
    """However many lengths are in use, an address is tried with those near it alone."""
    made = NetworkTable()
    for number in range(200):
        made.set(f"{number}.1.0.0/{16 + number % 17}", NEVER)
        made.set(f"2a00:{number:x}::/{32 + number % 97}", NEVER)
    for levels in made._levels.values():
        assert 1 == max(len(lengths) for level in levels for lengths in level.lengths.values())
    assert (1, 3) == tuple(map(len, made._readers.values()))
