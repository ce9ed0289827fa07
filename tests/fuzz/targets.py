"""The three targets: each takes bytes, makes of them what a client could send, and asserts what must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimit_app.core.addresses import NetworkSet, client_address, client_of, parse_network, unwrap
from ratelimit_app.core.forwarding import hops
from ratelimit_app.core.identity import Source, join, observed, split
from ratelimit_app.core.keys import Keys
from ratelimit_app.core.rates import RateError, parse_rates

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = b"a secret of the fuzzing"
KEYS = Keys("p" * 20, SECRET)
MAX_KEY = 200
MAX_REMEMBERED = 50_000
TRUSTED = NetworkSet(map(parse_network, ("10.0.0.0/8", "2001:db8:ff::/48")))
HEADERS = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Edge-Hops")
PROXY, REAL = "10.0.0.5", "203.0.113.9"
WRITTEN = {"Forwarded": f'for={REAL};proto=https;host="a,b"'}
KINDS = tuple(
    Source(*parts) for parts in (("user",), ("device",), ("view",), ("key",), ("header", "x-api-key"))
)


def text_of(data: bytes) -> str:
    """Read any bytes, as Python reads what is no UTF-8."""
    return data.decode("utf-8", "surrogateescape")


def resolver(data: bytes) -> None:
    """Any peer and any header end in an address or in none; what a client writes first moves nothing."""
    if not data:
        return
    header, (peer, _, value) = HEADERS[data[0] % len(HEADERS)], text_of(data[1:]).partition("|")
    for start in (peer, PROXY):
        found = client_address(start, hops(header, value), TRUSTED, trust_unix=True)
        if found is not None:
            client = client_of(found, 32, 64)
            assert unwrap(found) == found, f"{found} carries another address"
            assert len(KEYS.mark(client.network)) < MAX_KEY
            assert len(KEYS.mark(client.whole)) < MAX_KEY
    if header != "X-Real-IP":
        appended = f"{value}, {WRITTEN.get(header, REAL)}"
        assert REAL == str(client_address(PROXY, hops(header, appended), TRUSTED, trust_unix=False))


def rates(data: bytes) -> None:
    """Any text is a rate or a RateError; a rate that is written out is read as itself."""
    text = text_of(data)
    try:
        found = parse_rates(text)
    except RateError:
        return
    again = parse_rates("; ".join(map(str, found)))
    assert found == again, f"{text!r} is {found} and then {again}"


class Names:
    """Which identity and rule each key is of, as far as memory goes."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[object, ...]] = {}

    def note(self, key: bytes, meaning: tuple[object, ...]) -> None:
        """Remember what a key means; it must not have meant anything else."""
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        assert self._known.setdefault(key, meaning) == meaning, f"{key!r} is {meaning} and {self._known[key]}"
        assert len(key) < MAX_KEY, f"{key!r} has {len(key)} bytes"


names = Names()


def keys(data: bytes) -> None:
    """No two identities share a key, no two rules, no rule and a mark; none is as long as 200 bytes."""
    if not data:
        return
    count, rest = 1 + data[0] % 3, data[1:].split(b"\0", 3)
    parts = [(KINDS[place % len(KINDS)], text_of(raw)) for place, raw in enumerate(rest[:count])]
    rule = text_of(rest[-1])
    identity = join([observed(source, value, SECRET) for source, value in parts])
    assert identity.isprintable(), f"{identity!r} is not one line"
    assert len(split(identity)) == len(parts), f"{identity!r} is not of {len(parts)} parts"
    meant = tuple((str(source), value) for source, value in parts)
    for part in (0, 1):
        names.note(KEYS.log(identity, KEYS.rule_name(rule, part)), (meant, rule, part))
    names.note(KEYS.mark(identity), (meant, "mark"))
    names.note(KEYS.offences(identity), (meant, "offences"))


TARGETS: dict[str, Callable[[bytes], None]] = {"resolver": resolver, "rates": rates, "keys": keys}
SEEDS: dict[str, list[bytes]] = {
    "resolver": [
        b"\0|198.51.100.66, 203.0.113.9:51234", b'\1|for="[2001:db8::1]:80";by=_x, for=unknown', b"\2::ffff:10.0.0.5|",
        b"\0fe80::1%eth0|2002:c000:201::, 64:ff9b::1", b'\1|for="a\\",for=1.2.3.4',
    ],
    "rates": [b"5/s", b"100/m;1000/h", b"10 per 2 hours", b"20/500ms", b"1/0.5s", b"5/5min", b"9999999999/d"],
    "keys": [b"\0a\0b", b"\1a%b}{\0c+d\0rule#1", b"\2" + b"x" * 300, "\2\u200b\ud7ff\0\U0001f600".encode()],
}  # fmt: skip
