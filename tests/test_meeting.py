"""Whom a rule meets over HTTP: where the router sends the request counts, not how the client spells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import clear_script_prefix, include, path, re_path, register_converter, set_script_prefix
from django.views.static import serve
from rest_framework.urlpatterns import format_suffix_patterns

from ratelimit_app import routing
from tests import views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.urls(__name__)]
OURS = "ratelimit_app.middleware.RateLimitMiddleware"
COMMON = "django.middleware.common.CommonMiddleware"
LOCALE = "django.middleware.locale.LocaleMiddleware"


def executed(request: HttpRequest, **_: Any) -> HttpResponse:
    """Tell which method was executed."""
    return HttpResponse(request.method)


class Things(views.Api):
    """An API that is asked for formats by suffix."""

    def get(self, request: Any, format: str | None = None) -> Any:
        """Answer."""
        return super().get(request)


class Slug:
    """A converter that asks what there is, as one does that looks into a database."""

    regex = "[a-z]+"
    known: ClassVar[set[str]] = set()

    def to_python(self, value: str) -> str:
        """Refuse what is not there."""
        if value not in self.known:
            raise ValueError(value)
        return value

    to_url = str


register_converter(Slug, "known")


inner = ([path("pay/<int:number>/", executed, name="pay")], "inner")
outer = ([path("inner/", include(inner, namespace="deep"))], "outer")

urlpatterns = [
    path("admin/", admin.site.urls),
    path("page/", executed, name="page"),
    path("item/<int:number>/", executed, name="item"),
    # As a pattern without case has it; one with a flag cannot be reversed, which the admin needs.
    re_path("^[lL][oO][gG][iI\u0130\u0131][nN]/?$", executed, name="login"),
    re_path(r"^open", executed, name="open"),
    path("files/<path:name>", executed, name="files"),
    path("static/<path:path>", serve, {"document_root": "/nonexistent"}, name="static"),
    path("unnamed/", executed),
    path("grown/<known:slug>/", executed, name="grown"),
    path("outer/", include(outer, namespace="eu")),
    path("tenants/<slug:tenant>/", include(([path("buy/", executed, name="buy")], "shop"))),
    *format_suffix_patterns([path("things/", Things.as_view(), name="things")]),
    *format_suffix_patterns([path("plainly", Things.as_view(), name="plainly")], allowed=["json", "api"]),
    *i18n_patterns(path("account/", executed, name="account"), prefix_default_language=False),
]


class Elsewhere:
    """The URLs that a middleware switches to."""

    urlpatterns = [path("hidden/", executed, name="hidden")]


def either(change: Callable[[HttpRequest], None]) -> Any:
    """Make a middleware of both colours that changes a request."""

    def factory(get_response: Any) -> Any:
        if iscoroutinefunction(get_response):

            async def amiddleware(request: HttpRequest) -> Any:
                change(request)
                return await get_response(request)

            return markcoroutinefunction(amiddleware)

        def middleware(request: HttpRequest) -> Any:
            change(request)
            return get_response(request)

        return middleware

    factory.sync_capable = factory.async_capable = True  # type: ignore[attr-defined]
    return factory


def _override(request: HttpRequest) -> None:
    asked = request.headers.get("X-HTTP-Method-Override") or request.GET.get("_method")
    if request.method in ("POST", "OPTIONS", "GET") and asked:
        request.method = asked.upper()


def _unversion(request: HttpRequest) -> None:
    request.path_info = request.path_info.removeprefix("/v1")


def _switch(request: HttpRequest) -> None:
    if request.path_info == "/hidden/":
        request.urlconf = Elsewhere  # type: ignore[assignment]


override, unversion, switch = either(_override), either(_unversion), either(_switch)


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Any:
    """Send requests in either colour; gives the statuses: await send("GET /a", "POST /b", header="x")."""

    async def send_(*asked: str, **headers: str) -> list[int]:
        client: Any = AsyncClient()
        generic = client.generic if request.param == "async" else sync_to_async(Client().generic)
        parts = [each.partition(" ") for each in asked]
        return [(await generic(method, url, headers=headers)).status_code for method, _, url in parts]

    return send_


@pytest.fixture
def _below_a_script() -> Iterator[None]:
    """What a server says to Django before each request, which the test client leaves out."""
    routing._route.cache_clear()
    set_script_prefix("/app/")
    yield
    clear_script_prefix()
    routing._route.cache_clear()


@pytest.fixture
def stack(settings: Any) -> Any:
    """Put middleware before and after ours: stack(before=[…], after=[…])."""

    def use(before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> None:
        settings.MIDDLEWARE = [*before, OURS, *after]

    return use


@pytest.mark.parametrize(
    ("route", "spellings"),
    [
        ("login", ["/login", "/login/", "/LOGIN", "/LoGiN/", "/%6cogin", "/%4Cogin/", "/login?x=1", "/login/?next=/"]),
        ("/login", ["/login", "/login/", "/LOGIN", "/%6cogin", "/login?x=1", "/%6Cog%69n"]),
        ("/login/", ["/login", "/login/", "/LOGIN/", "/%4c%4f%47%49%4e", "/login?", "/login/?a=/b"]),
        ("open", ["/open", "/open/", "/open;x=1", "/open.json", "/opener", "/open%2e%2e", "/open/%2e%2e/page"]),
        ("item", ["/item/1/", "/item/2/", "/item/%33/", "/item/4/?x", "/item/0005/"]),
        ("/item", ["/item/1/", "/item/2/", "/item/%33/", "/item/4/?x", "/item/0005/"]),
        ("files", ["/files/a", "/files//a", "/files/../a", "/files/%2e%2e/a", "/files/%252e%252e/a", "/files/a%2fb", "/files/a;b=c"]),
        ("/files/", ["/files/a", "/files//a", "/files/../a", "/files/%2e%2e/a", "/files/%252e%252e/a", "/files/a%2fb", "/files/./../x"]),
        ("/page", ["/page/", "/page/../page/", "/page//", "/./page/", "/PAGE/", "/page/%2e", "/x/../page/", "/p%61ge"]),
        ("things", ["/things/", "/things.json", "/things.json/", "/things/?format=json", "/things.api?format=json"]),
        ("/things/", ["/things/", "/things.json", "/things.json/", "/things/?format=json", "/things.api"]),
        ("/plainly/", ["/plainly", "/plainly.json", "/plainly.api"]),
        ("/p%61ge/", ["/page/", "/p%61ge/", "/PAGE"]),
        ("/%66iles/%252e", ["/files/%252e", "/files/%252E/x"]),
        ("eu:deep:pay", ["/outer/inner/pay/1/", "/outer/inner/pay/2/"]),
        ("shop:buy", ["/tenants/acme/buy/", "/tenants/other/buy/", "/tenants/ACME/buy/"]),
        ("static", ["/static/a.css", "/static/b.css", "/static/%2e%2e/c.css"]),
        ("/static/", ["/static/a.css", "/static/b.css", "/STATIC/c.css"]),
        ("tests.test_meeting.executed", ["/unnamed/", "/unnamed/?x"]),
        ("/nowhere/", ["/nowhere", "/nowhere/", "/nowhere/1", "/NOWHERE//2", "/a/../nowhere/"]),
        ("", ["/page/", "/nowhere", "/item/1/", "//", "/%00", "/\u00e9"]),
    ],
)  # fmt: skip
@pytest.mark.django_db
async def test_a_rule_when_the_path_is_spelt_in_any_way_counts_once_for_all(
    send: Any, rules: Any, route: str, spellings: list[str]
) -> None:
    """C23, C144, C145, C147: whichever way leads there, it is one count; the next is limited, another place is not."""
    rules({"rate": f"{len(spellings)}/h", "route": route})
    answers = await send(*(f"GET {spelling}" for spelling in spellings))
    assert 429 not in answers
    assert [429] * len(spellings) == await send(*(f"GET {spelling}" for spelling in spellings))
    if route:
        assert 429 not in await send("GET /admin/login/", "GET /otherwise/", "GET /lo", "GET /thing")


def test_a_prefix_when_letters_only_look_alike_to_a_pattern_without_case_is_met(rules: Any) -> None:
    """C145: a dotless i, and a capital with its dot, are an i to `(?i)`: the view is reached, and so is the rule."""
    rules({"rate": "2/h", "route": "/login/"})
    urls = ("/log\u0131n", "/LOG\u0130N/", "/login")
    assert [200, 200, 429] == [Client().get(url).status_code for url in urls]


@pytest.mark.parametrize("route", ["/caf\u00e9/", "/caf%C3%A9", "/CAF\u00c9", "/%63af%c3%a9/"])
def test_a_prefix_when_copied_from_an_address_bar_is_what_it_stands_for(rules: Any, route: str) -> None:
    """C145: as letters or as percent signs, a path is one path."""
    rules({"rate": "2/h", "route": route})
    urls = ("/caf\u00e9/", "/caf%C3%A9", "/CAF%C3%89/x")
    assert [404, 404, 429] == [Client().get(url).status_code for url in urls]


def test_a_prefix_when_its_bytes_are_no_text_is_read_as_django_reads_them(rules: Any) -> None:
    """C145: what cannot be decoded stays percent signs, on both sides."""
    rules({"rate": "1/h", "route": "/%ff/"})
    assert [404, 429] == [Client().get(url).status_code for url in ("/%ff", "/%FF/x")]


@pytest.mark.parametrize(
    ("route", "others"),
    [
        ("/login/", ["/login-help/", "/api/login/", "/%2Flogin", "/logins"]),
        ("/things/", ["/things.json.bak", "/thing.json", "/a/things.json"]),
        ("/page/", ["/page.json", "/page;x=1", "/%252fpage/", "/pag%2565/"]),
        ("page", ["/page", "/PAGE/", "/page//", "/page/%2e"]),
    ],
)
async def test_a_rule_when_the_path_leads_elsewhere_is_not_met(
    send: Any, rules: Any, route: str, others: list[str]
) -> None:
    """What only resembles a path, and is another place to the router, is another place: no false friend."""
    rules({"rate": "0/s", "route": route})
    expected = {"/%2Flogin": [429]}
    for other in others:
        assert expected.get(other, [404]) == await send(f"GET {other}"), other


async def test_a_missing_slash_when_it_is_redirected_is_limited_where_it_arrives(
    send: Any, rules: Any, stack: Any
) -> None:
    """C144: APPEND_SLASH answers by itself and reaches no view; a prefix covers it, and blank rules too."""
    stack(before=(COMMON,))
    rules({"rate": "1/h", "route": "page"})
    assert [301, 200, 301, 429] == await send("GET /page", "GET /page/", "GET /page", "GET /page/")
    rules({"rate": "2/h", "route": "/page/", "name": "below"})
    assert [301, 200, 429, 429] == await send("GET /page", "GET /page/", "GET /page", "GET /page/")


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW", "post", "x-y"]


async def test_a_rule_without_methods_when_any_is_used_counts_them_together(send: Any, rules: Any) -> None:
    """C149: no method, known or invented, is a way round; OPTIONS alone is free, as the contract says (C72)."""
    rules({"rate": f"{len(METHODS)}/h"})
    assert 429 not in await send(*(f"{method} /page/" for method in METHODS))
    assert [429] * len(METHODS) == await send(*(f"{method} /page/" for method in METHODS))
    assert [200, 200] == await send("OPTIONS /page/", "options /page/")


@pytest.mark.parametrize(
    ("methods", "met", "passing"),
    [
        ("get", ["GET", "HEAD", "get"], ["POST", "OPTIONS", "BREW"]),
        ("HEAD", ["HEAD"], ["GET"]),
        ("Post, delete", ["POST", "DELETE", "post"], ["GET", "PUT"]),
        ("options", ["OPTIONS"], ["GET", "BREW"]),
    ],
)
async def test_a_rule_with_methods_when_asked_limits_these_alone(
    send: Any, rules: Any, methods: str, met: list[str], passing: list[str]
) -> None:
    """C72, C137: in any case, GET with HEAD."""
    rules({"rate": "0/s", "methods": methods})
    assert [429] * len(met) == await send(*(f"{method} /page/" for method in met))
    assert [200] * len(passing) == await send(*(f"{method} /page/" for method in passing))


async def test_a_method_override_when_nobody_obeys_it_changes_nothing(send: Any, rules: Any) -> None:
    """C149: Django ignores the header, and so do we: a POST stays a POST."""
    rules({"rate": "3/h", "methods": "POST"})
    for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        assert [200] == await send("POST /page/?_method=GET", **{name: "GET"})
    assert [429] == await send("POST /page/?_method=OPTIONS", **{"X-HTTP-Method-Override": "OPTIONS"})


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("sent", ["POST", "GET", "OPTIONS"])
async def test_a_method_override_when_a_middleware_obeys_it_meets_the_rules_of_what_is_executed(
    send: Any, rules: Any, stack: Any, place: str, sent: str
) -> None:
    """C149: wherever the middleware stands, a DELETE in disguise is limited as a DELETE."""
    stack(**{place: ("tests.test_meeting.override",)})
    rules({"rate": "2/h", "methods": "DELETE", "route": "page"})
    assert [200] == await send("DELETE /page/")
    assert [200, 429] == await send(*[f"{sent} /page/"] * 2, **{"X-HTTP-Method-Override": "delete"})
    assert [429] == await send(f"{sent} /page/?_method=DELETE")
    assert [200] == await send(f"{sent} /page/")


async def test_a_method_override_when_it_stands_after_ours_takes_no_request_out_of_a_rule(
    send: Any, rules: Any, stack: Any
) -> None:
    """C149: it arrived as a POST, and is counted as one, whatever it becomes; a rule for both is charged once."""
    stack(after=("tests.test_meeting.override",))
    rules({"rate": "2/h", "methods": "POST"})
    assert [200, 200, 429] == await send(*["POST /page/"] * 3, **{"X-HTTP-Method-Override": "GET"})
    rules({"rate": "2/h", "methods": "POST, GET", "name": "both"})
    assert [200, 200, 429] == await send(*["POST /page/"] * 3, **{"X-HTTP-Method-Override": "GET"})


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_path_when_a_middleware_rewrites_it_meets_the_rules_of_where_it_arrives(
    send: Any, rules: Any, stack: Any, place: str
) -> None:
    """C144: the view and its path are limited, however the request came to them."""
    stack(**{place: ("tests.test_meeting.unversion",)})
    for route in ("page", "/page/"):
        rules({"rate": "2/h", "route": route, "name": f"r{len(route)}"})
        assert [200, 200, 429] == await send("GET /v1/page/", "GET /page/", "GET /v1/page/")
    rules({"rate": "0/s", "route": "/v1/"})
    assert [429, 200] == await send("GET /v1/page/", "GET /page/")


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_urlconf_when_a_middleware_switches_it_names_the_view(
    send: Any, rules: Any, stack: Any, place: str
) -> None:
    """`request.urlconf` decides, wherever it is set."""
    stack(**{place: ("tests.test_meeting.switch",)})
    rules({"rate": "1/h", "route": "hidden"})
    assert [200, 429, 200] == await send("GET /hidden/", "GET /hidden/", "GET /page/")


async def test_a_view_when_the_router_learns_of_it_while_the_site_runs_is_met(
    send: Any, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C144: Django's word is the last, not what was remembered of the path when it led nowhere."""
    rules({"rate": "2/h", "route": "grown"})
    assert [404] * 3 == await send(*["GET /grown/page/"] * 3)
    monkeypatch.setattr(Slug, "known", {"page"})
    assert [200, 200, 429] == await send(*["GET /grown/page/"] * 3)
    monkeypatch.setattr(Slug, "known", set())
    assert [404] == await send("GET /grown/page/")


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_language_when_it_is_part_of_the_path_leads_to_one_view(
    send: Any, rules: Any, stack: Any, settings: Any, place: str
) -> None:
    """`i18n_patterns`: `/account/` and `/de/account/` are one view, also where the language is found out after us."""
    settings.LANGUAGES = [("en", "English"), ("de", "Deutsch")]
    stack(**{place: (LOCALE,)})
    rules({"rate": "3/h", "route": "account"})
    assert [200, 200, 200] == await send("GET /account/", "GET /de/account/", "GET /de/account/")
    assert [429, 429] == await send("GET /de/account/", "GET /account/")


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("route", ["page", "/page/", "/app/page/", "/APP"])
def test_a_script_name_when_there_is_one_may_be_written_or_left_out(
    rules: Any, settings: Any, route: str, forced: bool
) -> None:
    """A prefix is the path as the URLs write it, or as the browser shows it."""
    extra: dict[str, Any] = {} if forced else {"SCRIPT_NAME": "/app"}
    if forced:
        settings.FORCE_SCRIPT_NAME = "/app"
    rules({"rate": "2/h", "route": route})
    assert [200, 200, 429] == [Client().get("/page/", **extra).status_code for _ in range(3)]


@pytest.mark.django_db
@pytest.mark.usefixtures("_below_a_script")
@pytest.mark.parametrize(("route", "limited"), [("", False), ("/", False), ("/app/", False), ("/admin/", True), ("/app/admin/", True)])  # fmt: skip
def test_the_admin_site_when_below_a_script_name_is_exempt_unless_named(
    rules: Any, settings: Any, route: str, limited: bool
) -> None:
    """Its root is found whatever the script is called."""
    settings.FORCE_SCRIPT_NAME = "/app"
    rules({"rate": "0/s", "route": route})
    assert (429 if limited else 200) == Client().get("/admin/login/").status_code


async def test_a_view_when_no_middleware_sends_it_elsewhere_is_decided_once(
    send: Any, rules: Any, valkey: Any
) -> None:
    """Looking again costs no second call."""
    rules({"rate": "9/h", "route": "item"})
    await send("GET /item/1/")
    before = valkey.info("commandstats")["cmdstat_evalsha"]["calls"]
    await send("GET /item/2/")
    assert 1 == valkey.info("commandstats")["cmdstat_evalsha"]["calls"] - before


async def test_a_request_when_sent_elsewhere_and_denied_there_keeps_what_it_was_charged(
    send: Any, rules: Any, stack: Any, valkey: Any
) -> None:
    """Arrivals count: the first decision stands, whatever the second says; the denial names the second's rule."""
    stack(after=("tests.test_meeting.unversion",))
    rules({"rate": "9/h", "name": "all"}, {"rate": "0/s", "name": "page", "route": "page"})
    assert [429] == await send("GET /v1/page/")
    assert 1 == valkey.zcard("rl:1:{ip:127.0.0.1}:all")
