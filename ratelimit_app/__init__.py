"""
Exact, atomic rate limiting for Django: rules in the admin, one trip to Redis, bans for repeat offenders.

The functions are imported when they are first used, so that `ratelimit_app` can stand in INSTALLED_APPS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratelimit_app.core.decision import Decision, Reason, RuleResult, Verdict
    from ratelimit_app.core.explanation import Explanation
    from ratelimit_app.exceptions import Ratelimited
    from ratelimit_app.explaining import aexplain, explain
    from ratelimit_app.limiter import (
        aacquire,
        acheck,
        acquire,
        apeek,
        arefund,
        areset,
        check,
        peek,
        refund,
        reset,
    )
    from ratelimit_app.lists import ablock, aunblock, block, unblock

__version__ = "0.1.0"

_HOMES = {
    "ratelimit_app.core.decision": ("Decision", "Reason", "RuleResult", "Verdict"),
    "ratelimit_app.core.explanation": ("Explanation",),
    "ratelimit_app.exceptions": ("Ratelimited",),
    "ratelimit_app.explaining": ("aexplain", "explain"),
    "ratelimit_app.limiter": (
        "aacquire", "acheck", "acquire", "apeek", "arefund", "areset", "check", "peek", "refund", "reset",
    ),
    "ratelimit_app.lists": ("ablock", "aunblock", "block", "unblock"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Decision",
    "Explanation",
    "Ratelimited",
    "Reason",
    "RuleResult",
    "Verdict",
    "aacquire",
    "ablock",
    "acheck",
    "acquire",
    "aexplain",
    "apeek",
    "arefund",
    "areset",
    "aunblock",
    "block",
    "check",
    "explain",
    "peek",
    "refund",
    "reset",
    "unblock",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
