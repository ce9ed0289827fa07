"""
Throttles for Django REST framework: the admin's rules, and DRF's own names over exact limits.

On one view they decide together, in one script call: denied, none of them is charged.
"""

from __future__ import annotations

from ratelimit_app.throttling.denials import Blocked, Limited, TooLarge, Unavailable
from ratelimit_app.throttling.rates import (
    AnonRateThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
)
from ratelimit_app.throttling.rules import RuleThrottle

__all__ = [
    "AnonRateThrottle",
    "Blocked",
    "Limited",
    "RuleThrottle",
    "ScopedRateThrottle",
    "SimpleRateThrottle",
    "TooLarge",
    "Unavailable",
    "UserRateThrottle",
]
