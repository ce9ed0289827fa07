"""From denial to ban: repeat offenders become blacklist entries, and entries that are over go away."""

from __future__ import annotations

from ratelimit_app.promotion.pruning import prune_batches, prune_expired
from ratelimit_app.promotion.report import Capped, Promotion, PromotionReport, Skipped
from ratelimit_app.promotion.run import promote_repeat_offenders

__all__ = [
    "Capped",
    "Promotion",
    "PromotionReport",
    "Skipped",
    "promote_repeat_offenders",
    "prune_batches",
    "prune_expired",
]
