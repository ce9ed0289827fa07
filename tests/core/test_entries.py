"""Entries of the lists: one form for each identity, whatever is typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.addresses import NetworkSet, parse_address, parse_network
from ratelimit_app.core.entries import (
    ALLOWABLE_KINDS,
    block_danger,
    canonical,
    canonical_kind,
    is_exact,
    network_value,
    parse_identity,
    width_danger,
)
from ratelimit_app.core.folding import fold
from ratelimit_app.core.identity import MAX_VALUE, IdentityError, Source, folded, identity_of, observed

SECRET = b"secret"
KINDS = ["user", "device", "session", "header:x-key", "cookie:id", "param:q", "field:email"]


@given(
    st.sampled_from(KINDS), st.text(min_size=1, max_size=200).filter(lambda text: text.strip() and fold(text))
)
def test_a_canonical_value_when_read_again_is_the_same(kind: str, value: str) -> None:
    """Saving a row twice changes nothing, and no form is longer than an identity may be."""
    once = canonical(kind, value, SECRET)
    assert once == canonical(*once, SECRET)
    assert len(once[1]) <= MAX_VALUE
    assert once[1].isprintable()


@given(
    st.sampled_from(KINDS),
    st.text(min_size=1, max_size=200).filter(lambda text: text == text.strip() and fold(text)),
)
def test_an_observed_identity_when_copied_into_a_list_is_found_again(kind: str, value: str) -> None:
    """What a log shows can be pasted into the form: it is the identity that requests have."""
    name, _, rest = kind.partition(":")
    source = Source(name, rest)
    seen = observed(source, folded(source, value), SECRET)
    assert parse_identity(seen, SECRET) == tuple_of(seen, kind)
    if name == "field":  # what was typed is what requests send, too
        assert parse_identity(f"{kind}:{value}", SECRET) == tuple_of(seen, kind) or value.startswith("~")


def tuple_of(identity: str, kind: str) -> tuple[str, str]:
    """The two parts of an identity's text."""
    return kind, identity[len(kind) + 1 :]


@given(st.ip_addresses(), st.integers(0, 128))
def test_a_network_when_written_in_any_way_has_one_form(address: object, prefix: int) -> None:
    """C15, C100: the one form is read as itself, and holds the address."""
    bits = 32 if "." in str(address) else 128
    value = network_value(f"{address}/{min(prefix, bits)}")
    assert value == network_value(value)
    assert value == network_value(f" {value} ")


@pytest.mark.parametrize("text", ["ip:203.0.113.9", "ip:2001:db8::/64", "user:42", "device:a:b"])
def test_an_identity_when_canonical_is_read_as_it_stands(text: str) -> None:
    """Kind and value, joined again, are the text."""
    assert text == ":".join(parse_identity(text, SECRET))


@pytest.mark.parametrize(
    "text", ["", "x", "ip", "ip:", "user: ", "global:all", "view:x", "header:x", "user+ip:1:2", "a:b"]
)
def test_an_identity_when_it_cannot_be_listed_is_refused(text: str) -> None:
    """The message names what is expected."""
    with pytest.raises(IdentityError, match="expected"):
        parse_identity(text, SECRET)


def test_a_secret_when_refused_is_not_in_the_message() -> None:
    """C26: an error about a secret value does not hold it."""
    with pytest.raises(IdentityError) as refusal:
        canonical("header:x-key", "hunter2" * 2_000, SECRET)
    assert "hunter2" not in str(refusal.value)


def test_a_kind_when_it_may_only_be_blocked_is_refused_for_the_allowlist() -> None:
    """Clients do not choose their way onto the allowlist."""
    assert "header:x-key" == canonical_kind("header:X_Key")
    with pytest.raises(IdentityError, match="ip or user"):
        canonical_kind("device", ALLOWABLE_KINDS)


def test_a_value_that_looks_cut_when_typed_is_kept() -> None:
    """A long value is shown cut with its digest; that text names it."""
    shown = identity_of(Source("device"), "x" * 500, SECRET)
    assert shown == ":".join(parse_identity(shown, SECRET))


@pytest.mark.parametrize(
    ("identity", "exact"),
    [
        ("user:1/2", True), ("ip:203.0.113.9", True), ("ip:2001:db8::5", True), ("ip:2001:db8::/64", True),
        ("ip:2001:db8::/65", False), ("ip:203.0.113.0/24", False), ("ip:203.0.113.0/64", False),
    ],
)  # fmt: skip
def test_an_identity_when_it_is_one_client_has_a_mark(identity: str, exact: bool) -> None:
    """Single addresses, and networks at the prefix at which clients are told apart."""
    assert exact == is_exact(identity, 32, 64)
    assert is_exact("ip:203.0.113.0/24", 24, 64)


@pytest.mark.parametrize(
    ("network", "danger"),
    [
        ("0.0.0.0/7", "loopback|wider"), ("64.0.0.0/7", "wider"), ("2001::/31", "wider"), ("127.0.0.0/8", "loopback"),
        ("::1", "loopback"), ("10.0.0.0/16", "proxy"), ("10.0.5.0/24", "proxy"), ("10.0.5.9", "proxy"),
        ("198.51.100.0/24", "own address"),
    ],
)  # fmt: skip
def test_a_danger_when_blocking_a_network_is_named(network: str, danger: str) -> None:
    """C114: what would take the site down, or the one who blocks."""
    trusted = NetworkSet([parse_network("10.0.5.0/24")])
    found = block_danger(parse_network(network), trusted, parse_address("198.51.100.7")) or ""
    assert any(word in found for word in danger.split("|"))


@pytest.mark.parametrize("network", ["10.0.4.0/24", "64.0.0.0/8", "2001:db8::/32", "198.51.101.0/24"])
def test_a_danger_when_there_is_none_is_none(network: str) -> None:
    """Other networks need no second thought."""
    trusted = NetworkSet([parse_network("10.0.5.0/24")])
    assert block_danger(parse_network(network), trusted, parse_address("198.51.100.7")) is None
    assert width_danger(parse_network(network)) is None


@pytest.mark.parametrize("text", ["ip:x", "ip:1.2.3", "ip:192.0.2.0/33"])
def test_an_address_when_it_is_none_is_refused_with_examples(text: str) -> None:
    """The form and the command say what an address or a network looks like (C100, C135)."""
    with pytest.raises(IdentityError, match="is not an address or a network: expected such as 203"):
        parse_identity(text, SECRET)


@pytest.mark.parametrize(("typed", "stored"), [("%FF", "%25FF"), ("%zz", "%25zz"), ("a%0Ab", "a%0Ab")])
def test_a_value_when_it_only_resembles_a_written_one_is_written_anew(typed: str, stored: str) -> None:
    """Escapes that this app would not have written are a client's own characters."""
    assert ("device", stored) == canonical("device", typed, SECRET)
