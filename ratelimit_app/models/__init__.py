"""Rules, lists and policies: the truth, from which Redis and every process are told."""

from __future__ import annotations

from ratelimit_app.models.entries import AllowlistEntry, BlacklistEntry, Entry, Origin
from ratelimit_app.models.policies import PromotionPolicy
from ratelimit_app.models.publications import Publication
from ratelimit_app.models.rules import Mode, Rule
from ratelimit_app.models.validation import to_us

__all__ = [
    "AllowlistEntry",
    "BlacklistEntry",
    "Entry",
    "Mode",
    "Origin",
    "PromotionPolicy",
    "Publication",
    "Rule",
    "to_us",
]
