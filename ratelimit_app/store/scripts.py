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


@cache
def names() -> tuple[str, ...]:
    """Name every script."""
    found = files("ratelimit_app.store").joinpath("lua").iterdir()
    return tuple(sorted(path.name.removesuffix(".lua") for path in found if path.name.endswith(".lua")))


@cache
def script(name: str) -> Script:
    """Load a script by its file's name."""
    text = files("ratelimit_app.store").joinpath(f"lua/{name}.lua").read_bytes()
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
