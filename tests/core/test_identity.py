"""Identities: one line of text that never means two, holds no secret and breaks no log."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratelimit_app.core.identity import (
    DIGESTED_KINDS,
    MAX_VALUE,
    NAMED_KINDS,
    PLAIN_KINDS,
    IdentityError,
    Source,
    digest,
    escape,
    identity_of,
    join,
    kind_of,
    observed,
    parse_custom,
    parse_sources,
    split,
    value_of,
)
from tests.cases import HOSTILE_TEXTS

SECRET = b"a secret of the tests"
texts = st.text(max_size=90) | st.sampled_from(HOSTILE_TEXTS) | st.from_regex(r"\A.{0,70}~[0-9a-f]{32}\Z")
sources = st.sampled_from([Source(kind) for kind in sorted(PLAIN_KINDS)]) | st.builds(
    Source, st.sampled_from(sorted(NAMED_KINDS)), st.sampled_from(["a", "b", "x-api-key", "a.b", "c[0]"])
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ip", "ip"),
        ("user+ip", "user+ip"),
        (" ip + field:email ", "ip+field:email"),
        ("header:X-Api_Key", "header:x-api-key"),
        ("cookie:Cart", "cookie:Cart"),
        ("get:page", "param:page"),
        ("post:email", "field:email"),
        ("field:user[email]", "field:user[email]"),
    ],
)
def test_a_key_source_when_read_has_one_form(text: str, expected: str) -> None:
    """Sources are canonical: header names in any case are one (C137), django-ratelimit's names are understood."""
    assert expected == "+".join(str(source) for source in parse_sources(text))


@pytest.mark.parametrize(
    "text",
    [
        "usr",
        "",
        "  ",
        "ip:x",
        "header",
        "header:",
        "header:a b",
        "ip+",
        "+",
        "ip++user",
        "IP",
        "field:é",
        "key:1",
    ],
)
def test_a_key_source_when_unknown_is_refused(text: str) -> None:
    """An unknown source is no constant that everybody shares: the message says what there is (C28)."""
    with pytest.raises(IdentityError, match=r"user_or_ip.*header:<name>") as caught:
        parse_sources(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["ip+ip", "get:a+param:a", "header:A+header:a"])
def test_a_key_source_when_named_twice_is_refused(text: str) -> None:
    """Naming one source twice is a mistake that is told."""
    with pytest.raises(IdentityError, match="names one key source twice"):
        parse_sources(text)


@given(sources, texts, sources, texts)
def test_two_identities_when_their_values_differ_have_different_texts(
    one: Source, value: str, other: Source, second: str
) -> None:
    """No two (source, value) pairs that clients can send are written alike (C19, C30)."""
    assume((one, value) != (other, second))
    assert observed(one, value, SECRET) != observed(other, second, SECRET)


@given(st.lists(st.tuples(sources, texts), min_size=1, max_size=3))
def test_a_joined_identity_when_split_gives_its_parts(pairs: list[tuple[Source, str]]) -> None:
    """A value cannot pretend to be two parts: `+` inside it is escaped (C30)."""
    parts = [observed(source, value, SECRET) for source, value in pairs]
    assert parts == split(join(parts))


@given(sources, texts)
def test_an_identity_when_written_is_one_printable_short_line(source: Source, value: str) -> None:
    """At most 64 characters of value; no blanks at its ends, controls, braces or joins (C25)."""
    text = observed(source, value, SECRET)
    assert text.isprintable()
    assert not set("{}+") & set(text)
    assert len(value_of(text)) <= MAX_VALUE
    assert str(source) == kind_of(text)
    assert text == f"{kind_of(text)}:{value_of(text)}"


@pytest.mark.parametrize("kind", ["session", "header:authorization", "cookie:c", "param:p", "field:email"])
@pytest.mark.parametrize("value", ["s3cret-token", *HOSTILE_TEXTS])
def test_a_secret_value_when_written_is_a_digest(kind: str, value: str) -> None:
    """Only `~` and 32 hex digits stand for secret and personal values (C26)."""
    (source,) = parse_sources(kind)
    assert source.kind in DIGESTED_KINDS
    assert re.fullmatch(re.escape(kind) + ":~[0-9a-f]{32}", observed(source, value, SECRET))


def test_a_digest_when_typed_by_a_person_is_taken_and_when_sent_is_not() -> None:
    """What was copied from a log names the same identity; a client that sends a digest is not that identity."""
    (source,) = parse_sources("header:x-api-key")
    written = identity_of(source, "the key", SECRET)
    copied = value_of(written)
    assert written == identity_of(source, copied, SECRET)
    assert written != observed(source, copied, SECRET)


def test_a_digest_when_the_secret_or_the_kind_differs_differs() -> None:
    """Digests of two installations, or of two kinds, cannot be compared."""
    values = {
        digest(SECRET, "header:a", "v"),
        digest(b"other", "header:a", "v"),
        digest(SECRET, "header:b", "v"),
        digest(SECRET, "header:a", "", "v"),
    }
    assert len(values) == 4


@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_a_digest_when_the_parts_differ_differs(one: list[str], other: list[str]) -> None:
    """Parts are prefixed by their length: where one ends cannot be moved (C30)."""
    assume(one != other)
    assert digest(SECRET, *one) != digest(SECRET, *other)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ab12", "ab12"),
        ("a b", "a b"),
        (" a", "%20a"),
        ("a\n", "a%0A"),
        ("50%", "50%25"),
        ("a+b", "a%2Bb"),
        ("{x}", "%7Bx%7D"),
        ("é", "é"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_a_value_when_escaped_stays_readable(value: str, expected: str) -> None:
    """Only what would break a line, a key or a join is replaced."""
    assert expected == escape(value)


@given(texts, texts)
def test_escaping_when_values_differ_keeps_them_apart(one: str, other: str) -> None:
    """Two values never have one escaped form."""
    assume(one != other)
    assert escape(one) != escape(other)


def test_a_long_value_when_written_keeps_its_beginning_and_a_digest() -> None:
    """People recognise the start, machines the rest; a value that looks cut already is cut again."""
    device = Source("device")
    long = identity_of(device, "d" * 100, SECRET)
    assert long.startswith("device:" + "d" * 31 + "~")
    assert MAX_VALUE == len(value_of(long))
    assert long != identity_of(device, value_of(long), SECRET)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user:42", "user:42"),
        ("order:7", "order:7"),
        ("just text", "key:just text"),
        ("9:30", "key:9:30"),
        ("tenant:a+b", "tenant:a%2Bb"),
    ],
)
def test_an_identity_made_in_code_when_read_has_a_kind(text: str, expected: str) -> None:
    """Any `kind:value` is taken; bare text gets the kind `key`, so that it meets no real one (C19)."""
    assert expected == parse_custom(text, SECRET)


def test_a_secret_made_in_code_when_read_is_digested() -> None:
    """`header:<name>:<value>` typed in code is the identity that a request with this header has (C26)."""
    source = Source("header", "x-api-key")
    assert observed(source, "the:key", SECRET) == parse_custom("header:X-Api-Key:the:key", SECRET)
