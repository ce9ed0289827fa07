"""
Identities: who is limited, as one line of text that is the same in admin, commands, signals, logs and keys.

`kind:value`, several joined by `+`. Two different (kind, value) pairs never have the same text: what a value
may not hold as it is gets escaped, and what is long, secret or personal is replaced by a keyed digest.
"""

from __future__ import annotations

import hmac
import re
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from ratelimit_app.core.folding import fold

PLAIN_KINDS = frozenset({"ip", "user", "user_or_ip", "device", "session", "global", "view"})
NAMED_KINDS = frozenset({"header", "cookie", "param", "field"})
ALIASES = {"get": "param", "post": "field"}
DIGESTED_KINDS = frozenset({"session"}) | NAMED_KINDS
CLIENT_CHOSEN_KINDS = frozenset({"device"}) | NAMED_KINDS
FOLDED_KINDS = frozenset({"field"})
USER_KINDS = frozenset({"user", "user_or_ip"})
HOLDING_KINDS = frozenset({"ip"}) | USER_KINDS
LISTABLE_KINDS = frozenset({"ip", "user", "device", "session"}) | NAMED_KINDS
MAX_VALUE = 64

_NAME = re.compile(r"[A-Za-z0-9_.\-\[\]]{1,64}")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_\-]{0,31}")
_DIGEST = re.compile(r"~[0-9a-f]{32}")
_LOOKS_CUT = re.compile(r".*~[0-9a-f]{32}", re.DOTALL)
_PLAIN = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_VALUE}}}")
_ESCAPED = frozenset("%+{}")

SOURCES_HELP = (
    "ip, user, user_or_ip, device, session, global, view, header:<name>, cookie:<name>, param:<name>, field:<name>, "
    "or several joined by '+'"
)


class IdentityError(ValueError):
    """A key source or an identity that cannot be read; the message says what was expected."""


class Source(NamedTuple):
    """Where one part of an identity comes from: a kind, and the name that header, cookie, param and field have."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


@lru_cache(maxsize=1_024)
def parse_sources(text: str) -> tuple[Source, ...]:
    """Read a key source such as `user+ip` or `ip+field:email`. Raises IdentityError."""
    if not text or not text.strip():
        msg = f"{text!r} is not a key source: expected {SOURCES_HELP}."
        raise IdentityError(msg)
    sources = tuple(_parse_source(part.strip(), text) for part in text.split("+"))
    if len(set(sources)) < len(sources):
        msg = f"{text!r} names one key source twice: leave one of them out."
        raise IdentityError(msg)
    return sources


def are_client_chosen(sources: tuple[Source, ...]) -> bool:
    """Whether clients choose every part: whoever changes them escapes."""
    return all(source.kind in CLIENT_CHOSEN_KINDS for source in sources)


def hold_client(sources: tuple[Source, ...]) -> bool:
    """Whether a part is the address or the user, which clients do not choose."""
    return any(source.kind in HOLDING_KINDS for source in sources)


def _parse_source(part: str, text: str) -> Source:
    kind, colon, name = part.partition(":")
    kind = ALIASES.get(kind, kind)
    if kind in PLAIN_KINDS and not colon:
        return Source(kind)
    if kind in NAMED_KINDS and _NAME.fullmatch(name):
        return Source(kind, name.lower().replace("_", "-") if kind == "header" else name)
    msg = f"{text!r} is not a key source ({part!r} is not known): expected {SOURCES_HELP}."
    raise IdentityError(msg)


def digest(secret: bytes, *parts: str) -> str:
    """Give `~` and 32 hex digits: HMAC-SHA256 over length-prefixed parts, so that no two tuples share an input."""
    message = b"".join(
        b"%d:%b" % (len(raw), raw) for raw in (part.encode("utf-8", "surrogatepass") for part in parts)
    )
    return "~" + hmac.new(secret, message, sha256).hexdigest()[:32]


def folded(source: Source, value: str) -> str:
    """Give the form in which a value is counted: names in fields fold, tokens elsewhere stay as they are."""
    return fold(value) if source.kind in FOLDED_KINDS else value


def is_digest(value: str) -> bool:
    """Whether a value is the digest of one already, as logs and the admin show it."""
    return _DIGEST.fullmatch(value) is not None


def identity_of(source: Source, value: str, secret: bytes) -> str:
    """Write one part of an identity for a value taken from a request or typed by a person."""
    kind = str(source)
    if source.kind in DIGESTED_KINDS:
        return f"{kind}:{value if is_digest(value) else digest(secret, kind, value)}"
    return f"{kind}:{_written(kind, value, secret)}"


def observed(source: Source, value: str, secret: bytes) -> str:
    """Like identity_of, for a value that a client sent: one that looks like a digest is digested all the same."""
    if source.kind in DIGESTED_KINDS:
        kind = str(source)
        return f"{kind}:{digest(secret, kind, value)}"
    return identity_of(source, value, secret)


def _written(kind: str, value: str, secret: bytes) -> str:
    if _PLAIN.fullmatch(value):
        return value
    text = escape(value)
    if len(text) <= MAX_VALUE and not _LOOKS_CUT.fullmatch(text):
        return text
    return text[: MAX_VALUE - 33] + digest(secret, kind, value)


def escape(value: str) -> str:
    """Replace what would break a line, a key or a join by `%` escapes; everything else stays readable."""
    if value.isprintable() and not _ESCAPED.intersection(value) and value == value.strip():
        return value
    return "".join(_escaped(char) for char in value)


def _escaped(char: str) -> str:
    if char.isprintable() and char not in _ESCAPED and char != " ":
        return char
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def join(parts: list[str] | tuple[str, ...]) -> str:
    """Make one identity of several parts."""
    return parts[0] if len(parts) == 1 else "+".join(parts)


def split(identity: str) -> list[str]:
    """Give the parts of a joined identity; a plain one is its only part."""
    return identity.split("+")


def kind_of(part: str) -> str:
    """Give the kind of one part, with the name that header, cookie, param and field carry."""
    kind, _, rest = part.partition(":")
    return f"{kind}:{rest.partition(':')[0]}" if kind in NAMED_KINDS else kind


def value_of(part: str) -> str:
    """Give the value of one part."""
    return part[len(kind_of(part)) + 1 :]


def parse_named(text: str) -> tuple[Source, str] | None:
    """Read `header:x-api-key:<value>` and its like; None for every other kind. Raises IdentityError."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in NAMED_KINDS:
        return None
    name, _, value = rest.partition(":")
    return _parse_source(f"{kind}:{name}", text), value


def parse_custom(text: str, secret: bytes) -> str:
    """Read an identity made in code: any `kind:value`, or bare text, which gets the kind `key`."""
    named = parse_named(text)
    if named is not None:
        source, value = named
        return identity_of(source, folded(source, value), secret)
    kind, colon, value = text.partition(":")
    if not colon or not _KIND.fullmatch(kind):
        kind, value = "key", text
    return identity_of(Source(kind), value, secret)
