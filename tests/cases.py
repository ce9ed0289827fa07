"""Tables that several test modules share: rates, hostile texts, forwarding headers."""

from __future__ import annotations

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000

# Text of a rate: (limit, period in microseconds).
RATES = {
    "5/s": (5, SECOND),
    "100/m": (100, MINUTE),
    "10/30s": (10, 30 * SECOND),
    "100/5min": (100, 5 * MINUTE),
    "20/5m": (20, 5 * MINUTE),
    "10/minute": (10, MINUTE),
    "20/500ms": (20, SECOND // 2),
    "10 per 2 hours": (10, 2 * HOUR),
    "10 PER hour": (10, HOUR),
    "1000/d": (1000, DAY),
    "100/36h": (100, 36 * HOUR),
    "5/10s": (5, 10 * SECOND),
    "3/w": (3, 7 * DAY),
    "3 / 2 weeks": (3, 14 * DAY),
    "  7/Hr  ": (7, HOUR),
    "0/s": (0, SECOND),
    "1000000000/ms": (1_000_000_000, 1_000),
    "1/3660d": (1, 3_660 * DAY),
}

# What looks like a rate and is refused, with a part of the reason.
BAD_RATES = {
    "10/month": "no unit of time",
    "10/week-end": "does not fit",
    "5/x": "no unit of time",
    "-1/s": "does not fit",
    "1.5/s": "does not fit",
    "5/1.5s": "does not fit",
    "1e3/s": "does not fit",
    "": "does not fit",
    "abc": "does not fit",
    "5": "does not fit",
    "5/": "does not fit",
    "/s": "does not fit",
    "5/s/s": "does not fit",
    "5/s extra": "does not fit",
    "5/s\n6/m": "does not fit",
    "5 per": "does not fit",
    "5pers": "does not fit",
    "\N{ARABIC-INDIC DIGIT FIVE}/s": "does not fit",
    "5/s;": "does not fit",
    ";": "does not fit",
    "5/-1s": "does not fit",
    "5/0s": "longer than nothing",
    "5/3661d": "at most ten years",
    "1000000001/s": "at most 1,000,000,000",
    "9999999999999/s": "does not fit",
    "5/s;6/s": "same period",
    "5/60s;6/m": "same period",
}

# Values that have broken keys, logs or slots somewhere (C25).
HOSTILE_TEXTS = [
    "a b",
    " padded ",
    "\r\nSet-Cookie: x",
    "\x00",
    "\x1b[31mred",
    "emoji \N{SMILING FACE WITH OPEN MOUTH}",
    "\ud800 lone surrogate",
    "{x}",
    "}{",
    "a+b",
    "100%",
    "%25",
    "x" * 10_000,
    "ü" * 64,
    "\N{SMILING FACE WITH OPEN MOUTH}" * 64,
    "\u202egnp.exe",
    "\u2028",
    "*?[]^\\-",
    "~" + "0" * 32,
    "a~" + "f" * 32,
    "kind:value",
    "::",
]
