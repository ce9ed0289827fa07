"""Notices: each process learns once what it must forget, and never misses one without knowing it."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from ratelimit_app.conf import conf
from ratelimit_app.store import notices


def read(reader: notices.Reader, valkey: Any) -> set[str] | None:
    """Let a reader ask once."""
    pipe = valkey.pipeline(transaction=False)
    reader.ask(pipe)
    return reader.take(pipe.execute(raise_on_error=False)[0])


def test_a_notice_when_sent_is_read_once_by_each_reader(valkey: Any) -> None:
    """Whoever starts later reads the whole stream, which names what it cannot have remembered yet."""
    one, other = notices.Reader(), notices.Reader()
    assert set() == read(one, valkey)
    notices.send(["user:1", "ip:203.0.113.9"])
    assert {"user:1", "ip:203.0.113.9"} == read(one, valkey)
    assert set() == read(one, valkey)
    notices.send(["user:2"])
    assert {"user:2"} == read(one, valkey)
    assert {"user:1", "ip:203.0.113.9", "user:2"} == read(other, valkey)
    assert 0 < valkey.ttl(conf.keys.notices) <= notices.TTL


def test_a_notice_when_it_is_about_more_than_a_hundred_is_one_of_everything(valkey: Any) -> None:
    """An import does not push out what others have to read."""
    reader = notices.Reader()
    notices.send([f"user:{n}" for n in range(notices.MAX_NAMED)])
    found = read(reader, valkey)
    assert found is not None
    assert notices.MAX_NAMED == len(found)
    notices.send([f"user:{n}" for n in range(notices.MAX_NAMED + 1)])
    assert read(reader, valkey) is None
    assert set() == read(reader, valkey)
    assert notices.MAX_NAMED + 1 == valkey.xlen(conf.keys.notices)


@pytest.mark.parametrize("has_read", [True, False])
def test_notices_when_some_were_trimmed_before_they_were_read_are_of_everything(
    valkey: Any, has_read: bool
) -> None:
    """A process that slept through a thousand notices forgets all, whether or not it had read one before."""
    reader = notices.Reader()
    if has_read:
        notices.send(["user:0"])
        read(reader, valkey)
    for _ in range(13):
        notices.send([f"user:{n}" for n in range(notices.MAX_NAMED)])
    assert valkey.xlen(conf.keys.notices) < 1_300
    assert read(reader, valkey) is None
    notices.send(["user:1"])
    assert {"user:1"} == read(reader, valkey)


def test_notices_when_redis_has_lost_them_are_of_everything_once(valkey: Any) -> None:
    """After a flush, or the end of a day without one, nobody knows what was said in between."""
    reader = notices.Reader()
    notices.send(["user:1"])
    read(reader, valkey)
    valkey.delete(conf.keys.notices)
    assert read(reader, valkey) is None
    assert set() == read(reader, valkey)
    notices.send(["user:2"])
    assert {"user:2"} == read(reader, valkey)


def test_notices_when_the_new_stream_has_smaller_ids_are_not_missed(valkey: Any) -> None:
    """A server that came back with its clock set back numbers its entries below those that were read."""
    reader = notices.Reader()
    notices.send(["user:1"])
    read(reader, valkey)
    valkey.delete(conf.keys.notices)
    valkey.xadd(conf.keys.notices, {"identity": "user:2"}, id="1-1")
    assert read(reader, valkey) is None
    valkey.xadd(conf.keys.notices, {"identity": "user:3"}, id="1-2")
    assert {"user:2", "user:3"} == read(reader, valkey)


def test_a_key_when_it_is_no_stream_makes_every_reading_one_of_everything(valkey: Any) -> None:
    """C136: somebody else's value under our key costs memory of denials, neither an error nor a wrong denial."""
    valkey.set(conf.keys.notices, "nonsense")
    reader = notices.Reader()
    notices.send(["user:1"])
    assert [None, None] == [read(reader, valkey) for _ in range(2)]


def test_a_change_when_it_fails_fails_although_its_notice_is_sent(valkey: Any) -> None:
    """Only the notice's own key may be of another type."""
    valkey.set("a-key", "text")
    pipe = valkey.pipeline(transaction=True)
    pipe.hset("a-key", "field", "value")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        notices.commit(pipe, ["user:1"])
    assert {"user:1"} == read(notices.Reader(), valkey)
