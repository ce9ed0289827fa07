"""The rehearsal's witness on the server: it tells when the limiter charged whom, for the report to check."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ratelimit_app.requests import facts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse

    from ratelimit_app.core.decision import RuleResult

HEADER = "X-Charges"


def charges_header(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """
    Put every charge of a request into a header: `[[rule, identity, limit, period, at], ...]`, times in microseconds.

    It looks behind the library's public face, since a charge that stands although a later door said no is in no
    answer. A real site tells its clients no such thing.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response[HEADER] = json.dumps([_row(result) for result in _charged(request)])
        return response

    return middleware


def _charged(request: HttpRequest) -> list[RuleResult]:
    memory = facts_of(request).memory
    # A door that says no charges none of its rules, those that had room included.
    spared = memory.denied.results if memory.denied else ()
    return [result for result in memory.results.values() if result.allowed and result not in spared]


def _row(result: RuleResult) -> tuple[str, str, int, int, int]:
    return (result.rule, result.identity, result.limit, round(result.period * 1_000_000), result.at)
