"""Publishing: rules and lists from the database to Redis, on commit, and the repair of whatever was missed."""

from __future__ import annotations

from ratelimit_app.publishing.ledger import NO_BAN, Ban, read_bans, read_snapshot
from ratelimit_app.publishing.publisher import publish, publish_many
from ratelimit_app.publishing.repair import Report, publish_missed, publish_missing, sync
from ratelimit_app.publishing.status import backlog, entries_published, rules_published

__all__ = [
    "NO_BAN",
    "Ban",
    "Report",
    "backlog",
    "entries_published",
    "publish",
    "publish_many",
    "publish_missed",
    "publish_missing",
    "read_bans",
    "read_snapshot",
    "rules_published",
    "sync",
]
