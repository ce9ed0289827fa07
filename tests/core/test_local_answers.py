"""What a process answers by itself, from the replies alone; against Redis: tests/integration/test_local_answers.py."""

from __future__ import annotations

import struct

from ratelimit_app.core.calls import DENIED, OVER, Demand
from ratelimit_app.core.deny_cache import DenyCache
from ratelimit_app.core.keys import Keys
from ratelimit_app.core.local_answers import Asked, Local, learn, recall
from ratelimit_app.core.outage import OutageLimits
from ratelimit_app.core.permits import Permits
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.rules import rule_from_dict

SECOND = 1_000_000


def test_a_denial_when_another_server_answered_later_is_told_before_its_end() -> None:
    """The head of several servers' answer bears the latest clock; an instant told of a rule is by its own server's."""
    plan = Plan([rule_from_dict({"name": "grab", "key": "ip", "rate": "1/10s"})], Keys("t", b""))
    part = plan.parts[0]
    demand = Demand(part, "ip:192.0.2.1", b"key", 1)
    local = Local(DenyCache(10), None, Permits(), OutageLimits(0))

    def asked(at: float) -> Asked:
        return Asked([], [demand.key], [demand], plan.definitions, at, local.denials.generation)

    decided, head = 5_000 * SECOND, 5_000 * SECOND + 900
    row = struct.pack("<BBddBdddd", DENIED, 0, head, 0, OVER, 0, 10 * SECOND, 10 * SECOND, decided)
    learn(local, asked(100.0), row)
    for now in (100.0, 109.999, 110.0 - 1e-5):
        known = recall(local, asked(now), lambda: 0)
        assert known is not None
        (result,) = known.results
        assert 0 <= result.at - decided - round((now - 100.0) * SECOND) <= 1
        assert result.at < decided + 10 * SECOND
    assert recall(local, asked(110.0), lambda: 0) is None
