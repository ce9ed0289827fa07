"""The rate-limit headers: IETF draft 10 (`RateLimit-Policy`, `RateLimit`), the legacy triple, Retry-After."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratelimit_app.core.decision import RuleResult

STYLES = ("ietf", "legacy", "both", None)


def seconds(value: float) -> int:
    """Round a duration in seconds up, to at least 1: a client that waits so long is not denied again for that."""
    return max(1, ceil(value))


def limit_headers(result: RuleResult, style: str | None) -> dict[str, str]:
    """Write the headers that describe one rule's result; resets are seconds from now, never timestamps."""
    # Units of one charge have stamps of their own, microseconds apart: they do not make a second.
    reset = str(ceil(round(max(result.reset_after, 0.0), 3)))
    headers = {}
    if style in ("ietf", "both"):
        name = _quoted(result.rule)
        headers["RateLimit-Policy"] = f"{name};q={result.limit};w={seconds(result.period)}"
        headers["RateLimit"] = f"{name};r={result.remaining};t={reset}"
    if style in ("legacy", "both"):
        headers["X-RateLimit-Limit"] = str(result.limit)
        headers["X-RateLimit-Remaining"] = str(result.remaining)
        headers["X-RateLimit-Reset"] = reset
    return headers


def retry_after(wait: float | None) -> dict[str, str]:
    """Write Retry-After in whole seconds; nothing where waiting never helps."""
    return {} if wait is None else {"Retry-After": str(seconds(wait))}


def _quoted(name: str) -> str:
    """Write a structured-field string: printable ASCII, quotes and backslashes escaped."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in name)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
