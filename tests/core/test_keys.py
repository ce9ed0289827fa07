"""Redis keys: short, in the slot of their identity, and never shared by two identities."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratelimit_app.conf import MAX_PREFIX
from ratelimit_app.core.identity import Source, join, observed
from ratelimit_app.core.keys import SCHEMA, Keys
from tests.cases import HOSTILE_TEXTS

SECRET = b"a secret of the tests"
KEYS = Keys("rl", SECRET)
LONG_KEYS = Keys("p" * MAX_PREFIX, SECRET)
texts = st.text(max_size=300) | st.sampled_from(HOSTILE_TEXTS)
kinds = st.sampled_from(["user", "device", "view", "header", "key"])


def slot_part(key: bytes) -> bytes:
    """Give what Redis Cluster hashes of a key: what is between the first brace and the next one."""
    found = re.search(rb"\{([^}]+)\}", key)
    assert found is not None
    return found[1]


def all_keys(keys: Keys, identity: str, name: str) -> list[bytes]:
    """Give every key of an identity."""
    return [
        keys.log(identity, keys.rule_name(name)),
        keys.log(identity, keys.rule_name(name, 12)),
        keys.mark(identity),
        keys.offences(identity),
    ]


def test_a_key_when_read_by_a_person_says_what_it_is() -> None:
    """Prefix, schema, identity and rule stand in the key as they are."""
    expected = b"rl:%d:{ip:203.0.113.9}:login" % SCHEMA
    assert expected == KEYS.log("ip:203.0.113.9", KEYS.rule_name("login"))
    assert b"rl:1:{user:42}!mark" == KEYS.mark("user:42")
    assert b"rl:1:{user:42}!offences" == KEYS.offences("user:42")


@given(st.lists(st.tuples(kinds, texts), min_size=1, max_size=4), texts)
def test_a_key_when_anything_is_long_is_below_200_bytes(parts: list[tuple[str, str]], name: str) -> None:
    """No identity and no rule's name makes a key of 200 bytes (C25)."""
    identity = join([observed(Source(kind), value, SECRET) for kind, value in parts])
    assert all(len(key) < 200 for key in all_keys(LONG_KEYS, identity, name))


@given(kinds, texts, texts)
def test_the_keys_of_one_identity_when_hashed_share_a_slot(kind: str, value: str, name: str) -> None:
    """A value with braces does not move its keys to another slot (C25, C124)."""
    identity = observed(Source(kind), value, SECRET)
    keys = all_keys(KEYS, identity, name)
    tags = {slot_part(key) for key in keys}
    assert 1 == len(tags)
    assert all(key.startswith(b"rl:1:{" + tags.copy().pop() + b"}") for key in keys)


@given(st.tuples(kinds, texts), st.tuples(kinds, texts), texts, texts)
def test_two_logs_when_identity_or_rule_differ_are_two_keys(
    one: tuple[str, str], other: tuple[str, str], rule: str, second: str
) -> None:
    """Rules and identities never share a log by accident (C19, C21, C22)."""
    assume((one, rule) != (other, second))
    made = [
        KEYS.log(observed(Source(kind), value, SECRET), KEYS.rule_name(name))
        for (kind, value), name in ((one, rule), (other, second))
    ]
    assert made[0] != made[1]


@given(texts, texts, st.integers(0, 20), st.integers(0, 20))
def test_a_rule_name_when_it_looks_like_a_part_is_not_taken_for_one(
    one: str, other: str, part: int, second: int
) -> None:
    """`a` with two rates and a rule called `a#1` have keys of their own (C21)."""
    assume((one, part) != (other, second))
    assert KEYS.rule_name(one, part) != KEYS.rule_name(other, second)


def test_a_user_and_an_address_when_their_texts_agree_have_two_keys() -> None:
    """A user whose primary key is an address does not share that address's limit (C19)."""
    user, client = observed(Source("user"), "203.0.113.9", SECRET), "ip:203.0.113.9"
    assert KEYS.mark(user) != KEYS.mark(client)


@pytest.mark.parametrize("value", ["*", "[a]", "a?b", "a^b-c", "back\\slash"])
def test_a_pattern_when_the_identity_has_glob_signs_means_them_literally(value: str) -> None:
    """Resetting one identity deletes no other's logs."""
    pattern = KEYS.logs_pattern(f"user:{value}")
    plain = re.sub(rb"\\(.)", rb"\1", pattern)
    assert plain == KEYS.log(f"user:{value}", b"*")
    assert all(b"\\" + sign.encode() in pattern for sign in value if sign in "*?[]\\^-")
