"""Denied again: what a process answers, without the flow, to an identity that it has just denied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimit_app import local_cache, offences, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.local_answers import again
from ratelimit_app.signals import request_denied

if TYPE_CHECKING:
    from ratelimit_app.core.asking import Door
    from ratelimit_app.core.decision import Decision
    from ratelimit_app.core.deny_cache import Denial
    from ratelimit_app.core.local_answers import Local
    from ratelimit_app.identities import Named


def denied_again(door: Door, named: Named) -> Decision | None:
    """
    Answer, in a fraction of the flow's time, what it would answer to an identity denied before; None: ask the flow.

    `door`: of a call in code. Whatever the order of a decision puts before its one rate is left to the flow.
    """
    plan, local = door.plan, local_cache.local()
    if plan is None or len(plan.parts) != 1 or not named.kind:
        return None
    key, mark = named.keys(plan)
    now = snapshot_cache.clock()
    denial = local.denials.peek(key, now)
    if denial is None or door.look or not _is_alone(local, denial, named.kind, mark):
        return None
    part = plan.parts[0]
    if denial.definition != part.definition or denial.cost != door.units:
        return None
    local.denials.hit()
    offences.record(((denial.identity, part.rule.label),))
    return again(denial, part, now)


def _is_alone(local: Local, denial: Denial, kind: str, mark: bytes) -> bool:
    """Whether nothing but a denial has to be looked at: no list, no mark, no penalty box, no listener."""
    snapshot = snapshot_cache.known()
    if snapshot is None or not conf.enabled or local.penalties is not None or request_denied.receivers:
        return False
    listed = snapshot.allowed_networks or snapshot.networks if kind == "ip" else snapshot.allowed_users
    is_marked = kind in snapshot.marked_kinds and denial.identity not in denial.marks
    return not (listed or is_marked) and local.denials.peek(mark, 0.0) is None
