"""The throttle of the admin's rules."""

from __future__ import annotations

from typing import Any

from ratelimit_app.core.decision import Decision, Verdict
from ratelimit_app.requests import facts_of
from ratelimit_app.throttling.denials import denial_of
from ratelimit_app.throttling.together import Claim, Member, decide


class RuleThrottle(Member):
    """
    Decide by the lists, the rules of the view's `throttle_scope`, and what the middleware has left.

    Denials are raised: `Limited` (429), `Blocked` (403), `Unavailable` (503) and `TooLarge` (413), all of them
    DRF's APIException.
    """

    def allow_request(self, request: Any, view: Any) -> bool:
        """Let the request pass, or raise the denial."""
        scope = getattr(view, "throttle_scope", None) or ""
        decision = decide(self, facts_of(request), request, view, Claim(scope=scope))
        if decision is not None and not decision.allowed and _is_ours(decision):
            raise denial_of(decision)
        return True


def _is_ours(decision: Decision) -> bool:
    """Whether the admin's rules deny; where only a rule of code does, the throttle that has it answers."""
    denying = [result for result in decision.results if not result.allowed and not result.shadow]
    return decision.verdict is not Verdict.LIMITED or any(not r.label.startswith("@") for r in denying)
