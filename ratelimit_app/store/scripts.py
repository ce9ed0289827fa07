"""The Lua scripts, and the bytes that run them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratelimit_app.core.calls import ScriptCall


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua file: its text, and the digest that the server knows it by."""

    text: bytes
    sha: bytes


# A script may begin in its own file and go on in others: they are one text, and see each other's locals.
_PARTS = {"decide": ("states", "logs", "judge"), "refund": ("states", "refund_units")}


@cache
def names() -> tuple[str, ...]:
    """Name every script."""
    parts = {part for of_one in _PARTS.values() for part in of_one}
    found = files("ratelimit_app.store").joinpath("lua").iterdir()
    every = {path.name.removesuffix(".lua") for path in found if path.name.endswith(".lua")}
    return tuple(sorted(every - parts))


@cache
def script(name: str) -> Script:
    """Load a script by the name of the file that it begins with."""
    folder = files("ratelimit_app.store").joinpath("lua")
    text = b"".join(folder.joinpath(f"{part}.lua").read_bytes() for part in (name, *_PARTS.get(name, ())))
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


def evalsha(call: ScriptCall) -> bytes:
    """Pack the command that runs a script that the server knows."""
    keys, args = call.keys, call.args
    words = [b"$%d\r\n%b\r\n" % (len(word), word) for word in (*keys, *args)]
    return _head(call.script, len(keys), len(args)) + b"".join(words)


def evaluate(call: ScriptCall) -> bytes:
    """Pack the command that sends the script with the call."""
    digest, text = _bulk(script(call.script).sha), _bulk(script(call.script).text)
    return evalsha(call).replace(_bulk(b"EVALSHA") + digest, _bulk(b"EVAL") + text, 1)


@lru_cache(maxsize=1_024)
def _head(name: str, keys: int, args: int) -> bytes:
    """Pack what is the same in all calls of a script with so many keys and arguments."""
    words = b"".join(map(_bulk, (b"EVALSHA", script(name).sha, b"%d" % keys)))
    return b"*%d\r\n%b" % (3 + keys + args, words)


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)
