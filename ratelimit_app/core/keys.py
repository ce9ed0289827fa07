"""
Redis keys: `<prefix>:<schema>:{<identity>}:<rule>`, and `<prefix>:<schema>:<what>{site}` for what all share.

The identity is the hash tag, so that all keys of one identity share a slot of Redis Cluster; its braces are
escaped by `identity`. What all share has a slot of its own. No key is longer than 200 bytes: what is long becomes a digest.
"""

from __future__ import annotations

from functools import lru_cache

from ratelimit_app.core.identity import digest

SCHEMA = 1
MAX_IDENTITY = 110
MAX_NAME = 56
MARK = b"!mark"


class Keys:
    """Build the keys of one prefix; `secret` keys the digests that stand for long parts."""

    def __init__(self, prefix: str, secret: bytes) -> None:
        self.secret = secret
        self.root = f"{prefix}:{SCHEMA}"
        self.snapshot = self.of_site("snapshot")
        self.networks = self.of_site("networks")
        self.network_changes = self.of_site("networks:changes")
        self.marks = self.of_site("marks")
        self.offenders = self.of_site("offenders")
        self.notices = self.of_site("notices")
        self.processes = self.of_site("processes")
        self.warmup = self.of_site("warmup")
        self.synced = self.of_site("synced")
        self._head = f"{self.root}:{{".encode()

    def of_site(self, name: str) -> str:
        """Key of what is there once for the whole site: all of these share a slot."""
        return f"{self.root}:{name}{{site}}"

    def base(self, identity: str) -> bytes:
        """Begin all keys of an identity."""
        return self._head + self._tag(identity) + b"}"

    def log(self, identity: str, name: bytes) -> bytes:
        """Key of a rule's log for an identity; `name` comes from `rule_name`."""
        return self.base(identity) + b":" + name

    def logs_pattern(self, identity: str) -> bytes:
        """Glob of all logs of an identity."""
        tag = b"".join(
            b"\\" + byte if byte in b"*?[]\\^-" else byte for byte in _bytes_of(self._tag(identity))
        )
        return self._head + tag + b"}:*"

    def mark(self, identity: str) -> bytes:
        """Key of an identity's blacklist mark."""
        return self.base(identity) + MARK

    def offences(self, identity: str) -> bytes:
        """Key of an identity's offences, a hash of `<second>|<rule>` to a count."""
        return self.base(identity) + b"!offences"

    def _tag(self, identity: str) -> bytes:
        if len(identity) <= MAX_IDENTITY and identity.isascii():
            return identity.encode()
        raw = identity.encode("utf-8", "surrogatepass")
        return raw if len(raw) <= MAX_IDENTITY else digest(self.secret, "identity", identity).encode()

    def rule_name(self, name: str, part: int = 0) -> bytes:
        """Write a rule's name for its keys; `part` counts the rates of one rule."""
        return _rule_name(name, part, self.secret)


def _bytes_of(raw: bytes) -> list[bytes]:
    return [raw[i : i + 1] for i in range(len(raw))]


@lru_cache(maxsize=4_096)
def _rule_name(name: str, part: int, secret: bytes) -> bytes:
    raw = name.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_NAME or raw.startswith(b"~") or b"#" in raw:
        raw = digest(secret, "rule", name).encode()
    return raw + b"#%d" % part if part else raw
