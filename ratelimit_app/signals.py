"""Signals: what the app tells a project. Return values of receivers are ignored; their exceptions are logged."""

from __future__ import annotations

from django.dispatch import Signal

# A request was limited, blocked or found the store unavailable: sender (the door), request, decision.
request_denied = Signal()

# A ban began or was extended: sender, identity (text), entry (the BlacklistEntry).
identity_blocked = Signal()

# A ban was lifted by a person: sender, identity (text).
identity_unblocked = Signal()

# A new version of rules and lists is in Redis: sender, version.
snapshot_published = Signal()

# Redis stopped deciding, and decides again: sender, error (text) and alias.
store_degraded = Signal()
store_recovered = Signal()

# Something that a person should look at: sender, kind, message, details.
alert_raised = Signal()

# Internal: rows of ours were written without save(): sender (the model), using, identities.
rows_changed = Signal()
