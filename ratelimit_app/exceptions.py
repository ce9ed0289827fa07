"""The exceptions that a project may meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured, PermissionDenied, RequestDataTooBig

from ratelimit_app.core.asking import Uncountable
from ratelimit_app.core.calls import StoreUnavailable

if TYPE_CHECKING:
    from ratelimit_app.core.decision import Decision


class Ratelimited(PermissionDenied):
    """
    A request that a decorator turned away under `RAISE`; the middleware answers it with 429, 403 or 503.

    `decision`: why.
    """

    def __init__(self, decision: Decision | None = None) -> None:
        super().__init__("" if decision is None else f"{decision.verdict}: {decision.reason}")
        self.decision = decision


class BodyTooLarge(RequestDataTooBig, Uncountable):
    """A body that is too large to be read for the field that an enforcing rule counts by: the doors answer 413."""


class LimitError(ImproperlyConfigured, ValueError):
    """A decorator or throttle that cannot be made; the message says what was given, expected, and what to do."""


__all__ = ["BodyTooLarge", "LimitError", "Ratelimited", "StoreUnavailable"]
