"""The Lua scripts, and the bytes that run them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratelimit_app.core.calls import ScriptCall


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua file: its text, and the head of the command that runs it by digest."""

    text: bytes
    head: bytes


# A script may begin in its own file and go on in others: they are one text, and see each other's locals.
_PARTS = {"decide": ("states", "logs", "judge"), "refund": ("states", "refund_units")}


@cache
def script(name: str) -> Script:
    """Load a script by the name of the file that it begins with."""
    folder = files("ratelimit_app.store").joinpath("lua")
    text = b"".join(folder.joinpath(f"{part}.lua").read_bytes() for part in (name, *_PARTS.get(name, ())))
    sha = sha1(text, usedforsecurity=False).hexdigest().encode()
    return Script(text, _bulk(b"EVALSHA") + _bulk(sha))


def evalsha(call: ScriptCall) -> bytes:
    """Pack the command that runs a script that the server knows."""
    return _pack(script(call.script).head, call)


def evaluate(call: ScriptCall) -> bytes:
    """Pack the command that sends the script with the call."""
    return _pack(_bulk(b"EVAL") + _bulk(script(call.script).text), call)


def _pack(head: bytes, call: ScriptCall) -> bytes:
    keys, args = call.keys, call.args
    words = [b"*%d\r\n" % (3 + len(keys) + len(args)), head, _bulk(b"%d" % len(keys))]
    words += [b"$%d\r\n%b\r\n" % (len(word), word) for word in keys]
    words += [b"$%d\r\n%b\r\n" % (len(word), word) for word in args]
    return b"".join(words)


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)
