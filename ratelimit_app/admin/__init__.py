"""The admin: where people who are no programmers change rules and lists while the site runs."""

from __future__ import annotations

from ratelimit_app.admin.entries import AllowlistEntryAdmin, BlacklistEntryAdmin
from ratelimit_app.admin.policies import PromotionPolicyAdmin
from ratelimit_app.admin.rules import RuleAdmin

__all__ = ["AllowlistEntryAdmin", "BlacklistEntryAdmin", "PromotionPolicyAdmin", "RuleAdmin"]
