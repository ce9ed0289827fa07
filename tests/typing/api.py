"""How users write it, checked by the type checker and never run: what must not be an error, and what must be one."""

from __future__ import annotations

from typing import assert_type

from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from ratelimit_app import (
    Decision,
    Explanation,
    Ratelimited,
    Reason,
    RuleResult,
    Verdict,
    aacquire,
    acheck,
    acquire,
    aexplain,
    apeek,
    arefund,
    areset,
    aunblock,
    block,
    check,
    explain,
    peek,
    refund,
    reset,
    unblock,
)
from ratelimit_app.compat import Usage, get_usage, is_ratelimited
from ratelimit_app.decorators import ratelimit
from ratelimit_app.testing import clear_limits, disable_limits, override_rules, travel


async def explanations() -> None:
    """An explanation has typed fields, by both twins."""
    assert_type(explain("user:42"), Explanation)
    assert_type((await aexplain("user:42")).windows[0].opens_in, float | None)


def decisions(request: HttpRequest) -> None:
    """The functions give a Decision with typed fields."""
    decision = check(request, scope="sale", cost=2)
    assert_type(decision, Decision)
    assert_type(decision.allowed, bool)
    assert_type(decision.verdict, Verdict)
    assert_type(decision.reason, Reason)
    assert_type(decision.rule, str | None)
    assert_type(decision.limit, int | None)
    assert_type(decision.remaining, int | None)
    assert_type(decision.retry_after, float | None)
    assert_type(decision.reset_after, float)
    assert_type(decision.degraded, bool)
    assert_type(decision.results, tuple[RuleResult, ...])
    assert_type([result.at for result in decision.results], list[int])
    assert_type(acquire("user:42", "5/s", group="login", cost=1, burst=None), Decision)
    assert_type(peek("user:42", None, group="login"), Decision)
    assert_type(refund(decision), int)
    assert_type(reset("user:42"), int)
    assert_type(unblock("user:42"), int)
    block("ip:203.0.113.0/24", reason="scripts", period=3_600)


async def async_decisions(request: HttpRequest) -> None:
    """The async twins give the same."""
    decision = await acheck(request)
    assert_type(decision, Decision)
    assert_type(await aacquire("user:42", "5/s", group="login"), Decision)
    assert_type(await apeek("user:42", "5/s", group="login"), Decision)
    assert_type(await arefund(decision), int)
    assert_type(await areset("user:42"), int)
    assert_type(await aunblock("user:42"), int)


def mistakes(request: HttpRequest, decision: Decision) -> None:
    """What the type checker refuses; an ignore that is not needed would be an error itself."""
    decision.allowed = False  # type: ignore[misc]
    check(request, "sale")  # type: ignore[call-arg]
    acquire("user:42", "5/s")  # type: ignore[call-arg]
    acquire("user:42", "5/s", "login")  # type: ignore[call-arg]
    block("user:42")  # type: ignore[call-arg]


@ratelimit(key="ip", rate="5/m", method=("POST", "PUT"))
def page(request: HttpRequest, slug: str) -> HttpResponse:
    """A decorated view keeps its signature."""
    return HttpResponse(slug)


@ratelimit(key=lambda group, request: request.user.pk, rate=lambda group, request: None, block=False)
async def async_page(request: HttpRequest) -> HttpResponse:
    """A decorated async view stays one."""
    return HttpResponse()


@ratelimit(key="user_or_ip", rate="5/m", method=ratelimit.UNSAFE)
def form(request: HttpRequest) -> HttpResponse:
    """A set of methods by django-ratelimit's name."""
    return HttpResponse()


def sets_of_methods(request: HttpRequest) -> None:
    """The names stand on the decorator and on the functions, which keep their own signatures."""
    assert_type(ratelimit.UNSAFE, tuple[str, ...])
    assert_type(ratelimit.ALL, None)
    assert_type(is_ratelimited(request, "login", key="ip", rate="5/m", method=is_ratelimited.UNSAFE), bool)
    assert_type(get_usage(request, "login", key="ip", rate="5/m", method=get_usage.ALL), Usage | None)
    ratelimit(key=7, rate="5/m")  # type: ignore[arg-type]
    ratelimit(keys="ip")  # type: ignore[call-arg]


class Page(View):
    """A decorated method."""

    @method_decorator(ratelimit("sale", scope="sale", cost=2))
    def post(self, request: HttpRequest) -> HttpResponse:
        """Answer."""
        return HttpResponse()


async def calls(request: HttpRequest) -> None:
    """Decorated views are called as before."""
    assert_type(page(request, "x"), HttpResponse)
    assert_type(await async_page(request), HttpResponse)
    page(request)  # type: ignore[call-arg]


def failures(error: Ratelimited) -> Decision | None:
    """The exception carries the decision."""
    return error.decision


@override_rules({"rate": "5/s"}, grab="5/s")
@disable_limits()
@clear_limits()
@travel(60)
def helpers() -> None:
    """The helpers for tests are decorators and context managers."""
    with override_rules(grab="5/s"), disable_limits(), clear_limits(), travel(-1.5):
        pass
