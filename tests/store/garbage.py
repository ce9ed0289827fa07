"""Replies that are none: what a broken proxy, another protocol or a server in trouble may send for a script."""

from __future__ import annotations

import struct

from tests.store.fake_server import CLOSE

NAN, INF = float("nan"), float("inf")


def bulk(body: bytes) -> bytes:
    """Write a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(body), body)


def reply_of(
    verdict: int, *rows: tuple[float, ...], mark: int = 0, now: float = 1.0, ends: float = 0
) -> bytes:
    """Write what decide.lua returns."""
    packed = struct.pack("<BBdd", verdict, mark, now, ends)
    return bulk(packed + b"".join(struct.pack("<Bdddd", int(row[0]), *row[1:]) for row in rows))


GOOD, LATE = (reply_of(0, (0, 4.0, 0.0, 1e6, 1.0), now=now) for now in (7.0, 8.0))

# What is no RESP, or none that ends.
BROKEN = {
    "zeros": b"\x00\x00\x00\r\n",
    "high bytes": b"\xff\xfe\xfd\r\n",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "size that is none": b"$abc\r\n",
    "size below nothing": b"$-5\r\n",
    "size beyond reason": b"$99999999999999999999999\r\n",
    "array below nothing": b"*-7\r\n",
    "array that is none": b"*x\r\n",
    "integer that is none": b":12x\r\n",
    "double that is none": b",1.2.3\r\n",
    "boolean that is none": b"#x\r\n",
    "bulk cut short": b"$52\r\nabc" + CLOSE,
    "array cut short": b"*2\r\n:1\r\n" + CLOSE,
    "line cut short": b"+O" + CLOSE,
    "nothing": CLOSE,
    "never ending line": b"+" + b"x" * 200_000,
    "deep": b"*1\r\n" * 50_000,
}

# Proper RESP that is no reply of the script.
ODD = {
    "status": b"+OK\r\n",
    "integer": b":1\r\n",
    "null": b"_\r\n",
    "old null": b"$-1\r\n",
    "null array": b"*-1\r\n",
    "empty": b"$0\r\n\r\n",
    "empty array": b"*0\r\n",
    "array": b"*2\r\n:1\r\n$1\r\na\r\n",
    "array of an error": b"*1\r\n-ERR inside\r\n",
    "true": b"#t\r\n",
    "double": b",nan\r\n",
    "big number": b"(3492890328409238509324850943850943825024385\r\n",
    "set": b"~1\r\n:1\r\n",
    "map": b"%1\r\n+a\r\n:1\r\n",
    "verbatim": b"=8\r\ntxt:abcd\r\n",
    "bulk error": b"!10\r\nERR broken\r\n",
    "wrong size": bulk(b"abc"),
    "head alone": reply_of(0),
    "one row too many": reply_of(0, (0, 1, 0, 1, 1), (0, 1, 0, 1, 1)),
    "unknown verdict": reply_of(9, (0, 1, 0, 1, 1)),
    "a mark that was not asked": reply_of(2, mark=9),
    "denied by nobody": reply_of(1, (2, 0, 0, 0, 1)),
}

NOT_NUMBERS = {
    "remaining that is none": reply_of(0, (0, NAN, 0, 1, 1)),
    "stamp beyond reason": reply_of(0, (0, 1, 0, 1, INF)),
    "time that is none": reply_of(2, mark=1, now=NAN, ends=NAN),
    "wait that is none": reply_of(1, (1, 0, NAN, 1, 1)),
    "wait without end": reply_of(1, (1, 0, INF, 1, 1)),
}

# A server's own words for trouble.
ERRORS = {
    words.split()[0].decode(errors="replace") or "no words": b"-" + words + b"\r\n"
    for words in (
        b"",
        b"ERR unknown command 'evalsha'",
        b"\xff\xfe no text",
        b"LOADING Valkey is loading the dataset in memory",
        b"BUSY Valkey is busy running a script",
        b"READONLY You can't write against a read only replica.",
        b"MASTERDOWN Link with MASTER is down",
        b"OOM command not allowed when used memory > 'maxmemory'.",
        b"MISCONF errors writing to the AOF file",
        b"NOREPLICAS Not enough good replicas to write.",
        b"NOAUTH Authentication required.",
        b"WRONGPASS invalid username-password pair",
        b"NOPERM this user has no permissions",
        b"MOVED 1234 127.0.0.1:1",
        b"MOVED",
        b"ASK 1234 127.0.0.1:1",
        b"CLUSTERDOWN Hash slot not served",
        b"CROSSSLOT Keys in request don't hash to the same slot",
        b"TRYAGAIN Multiple keys request during rehashing of slot",
        b"NOSCRIPT No matching script.",
        b"EXECABORT Transaction discarded",
        b"UNKILLABLE Sorry",
        b"WRONGTYPE Operation against a key holding the wrong kind of value",
    )
    if words != b""
} | {"no words": b"-\r\n"}
