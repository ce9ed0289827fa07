"""Throttles for Django REST framework (being written)."""

from __future__ import annotations

from rest_framework.throttling import BaseThrottle


class RuleThrottle(BaseThrottle):
    """Placeholder until the door has landed."""

    def allow_request(self, request, view):  # type: ignore[no-untyped-def]
        return True
