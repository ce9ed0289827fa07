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


@cache
def names() -> tuple[str, ...]:
    """Name every script."""
    found = files("ratelimit_app.store").joinpath("lua").iterdir()
    return tuple(sorted(path.name.removesuffix(".lua") for path in found if path.name.endswith(".lua")))


@cache
def script(name: str) -> Script:
    """Load a script by its file's name."""
    text = files("ratelimit_app.store").joinpath(f"lua/{name}.lua").read_bytes()
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
