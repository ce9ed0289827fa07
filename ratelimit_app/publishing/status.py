"""What people are shown of Redis: whether it answers, and whether a row has arrived there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from django.db import DatabaseError

from ratelimit_app import snapshot_cache
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import BlacklistEntry, Rule, to_us
from ratelimit_app.publishing import ledger, repair

if TYPE_CHECKING:
    from collections.abc import Sequence


UNANSWERED = (
    "Redis does not answer. Edits are saved, and published by themselves within seconds of its return; until then "
    "every process goes on with the rules and bans that it knows."
)
LATE = "Redis does not have the latest edits yet. They are saved, and will be published by themselves."


def backlog() -> str:
    """Say that edits are saved but not yet in Redis, and what becomes of them; empty when all is there."""
    try:
        is_there = repair.has_rules()
    except StoreUnavailable:
        return UNANSWERED
    except DatabaseError:
        return ""  # another database's: the page is of this one
    return "" if is_there and not snapshot_cache.restorer.has_unpublished else LATE


def rules_published(rules: Sequence[Rule]) -> list[bool | None]:
    """Say of each rule whether Redis has it as it is (one that is off: not at all); None when Redis does not answer."""
    try:
        body = ledger.read_snapshot().body
    except StoreUnavailable:
        return [None] * len(rules)
    try:
        held = {row["name"]: row for row in json.loads(body or b"null")["rules"]}
    except (ValueError, TypeError, KeyError):
        return [False] * len(rules)
    return [held.get(rule.name) == (None if rule.mode == "off" else rule.to_dict()) for rule in rules]


def entries_published(entries: Sequence[BlacklistEntry]) -> list[bool | None]:
    """
    Say of each entry whether Redis bans its identity for at least as long; None when Redis does not answer.

    Of an entry that has ended there is nothing to publish: True.
    """
    try:
        held = ledger.read_bans([entry.identity for entry in entries])
    except StoreUnavailable:
        return [None] * len(entries)
    return [not entry.is_active() or _covers(held[entry.identity].decides, entry) for entry in entries]


def _covers(end: int | None, entry: BlacklistEntry) -> bool:
    if end is None:
        return False
    return end == 0 or (entry.expires_at is not None and end >= to_us(entry.expires_at))
