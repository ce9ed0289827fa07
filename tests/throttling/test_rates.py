"""DRF's own names over exact limits."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from rest_framework import throttling as drf
from rest_framework.test import APIRequestFactory

from ratelimit_app import offences
from ratelimit_app.throttling import (
    AnonRateThrottle,
    RuleThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
)
from tests.throttling.api import Anonymous, Answering, BurstFirst, Grabs, call, codes, get, logs, request_for

if TYPE_CHECKING:
    from rest_framework.views import APIView

pytestmark = pytest.mark.urls("tests.throttling.api")


def test_denial_keeps_drfs_body(both: None, rules: Any, rates: Any) -> None:
    """C71: DRF's text and a Retry-After that agree; our headers beside them."""
    rules()
    rates(anon="2/min")
    answers = get("/anonymous/", 3, headers={"accept": "application/json"})
    assert [200, 200, 429] == codes(answers)
    assert answers[2].json() == {
        "detail": f"Request was throttled. Expected available in {answers[2]['Retry-After']} seconds."
    }
    assert 55 <= int(answers[2]["Retry-After"]) <= 60
    assert ["1", "0", "0"] == [answer["X-RateLimit-Remaining"] for answer in answers]
    assert (answers[2]["RateLimit-Policy"], answers[2]["Cache-Control"]) == ('"anon";q=2;w=60', "no-store")


def test_zero_rate_denies_without_a_time(both: None, rules: Any, rates: Any) -> None:
    """C81: a limit that never lets pass is a 429 without header, and no crash over its format."""
    rules()
    rates(anon="0/day")
    answer = get("/anonymous/", headers={"accept": "application/json"})[0]
    assert (429, False) == (answer.status_code, answer.has_header("Retry-After"))
    assert answer.json() == {"detail": "Request was throttled."}


def test_rates_are_read_at_call_time(rules: Any, rates: Any) -> None:
    """C86: a changed setting counts at once, and what was counted still counts."""
    rules()
    rates(anon="1/m")
    assert [200, 429] == codes(get("/anonymous/", 2))
    rates(anon="3/m")
    assert [200, 200, 429] == codes(get("/anonymous/", 3))
    rates(anon=None)
    assert [200] * 5 == codes(get("/anonymous/", 5))
    assert AnonRateThrottle.THROTTLE_RATES == {"anon": None}


def test_missing_rate_is_improperly_configured(rules: Any, rates: Any) -> None:
    """A scope without a rate is told, never let pass."""
    rates(user="1/m")
    with pytest.raises(ImproperlyConfigured, match="anon"):
        AnonRateThrottle()
    with pytest.raises(ImproperlyConfigured, match="scope"):
        SimpleRateThrottle()


@pytest.mark.parametrize("rate", ["10/month", "10/week-end", "5/x", "-1/s", "1.5/s", "10", "ten/s", ""])
def test_bad_rate_is_refused_at_the_earliest(rules: Any, rates: Any, rate: str) -> None:
    """C135: in a class when it is made, from the settings when it is read; never taken for another rate."""
    rates(anon=rate)
    with pytest.raises(ImproperlyConfigured, match=re.escape(repr(rate))):
        AnonRateThrottle()
    with pytest.raises(ImproperlyConfigured, match=r"Bad.*is not a rate"):
        type("Bad", (UserRateThrottle,), {"rate": rate})


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("5/s", (5, 1)),
        ("5/sec", (5, 1)),
        ("5/min", (5, 60)),
        ("5/minute", (5, 60)),
        ("5/h", (5, 3_600)),
        ("5/hour", (5, 3_600)),
        ("5/day", (5, 86_400)),
        ("10/30s", (10, 30)),
        ("20/5m", (20, 300)),
        ("20/500ms", (20, 0.5)),
        ("100000/day", (100_000, 86_400)),
        ("5/s;100/h", (100, 3_600)),
        (None, (None, None)),
    ],
)
def test_rates_of_drf_and_ours_are_read(rates: Any, rate: str | None, expected: tuple[Any, Any]) -> None:
    """C134: what DRF accepts means the same; multiples and fractions are understood."""
    rates(anon=rate)
    throttle = AnonRateThrottle()
    assert (throttle.num_requests, throttle.duration) == expected
    assert throttle.parse_rate(rate) == expected


def test_several_rates_in_one_text(rules: Any, rates: Any, travel: Any) -> None:
    """`2/10s;3/m` is both of them."""
    rules()
    rates(anon="2/10s;3/m")
    assert [200, 200, 429] == codes(get("/anonymous/", 3))
    travel(10.1)
    assert [200, 429] == codes(get("/anonymous/", 2))
    travel(10.1)
    assert [429] == codes(get("/anonymous/"))


def test_user_and_address_are_counted_apart(rules: Any, db: Any, valkey: Any) -> None:
    """C19: users by their key on all addresses, others by their network; offences go to them by the scope."""
    rules()
    ann = User.objects.create_user("ann")
    calls = [call(BurstFirst, ann, REMOTE_ADDR=f"203.0.113.{n}").status_code for n in range(3)]
    assert [200, 200, 429] == calls
    assert 200 == call(BurstFirst, REMOTE_ADDR="203.0.113.1").status_code
    tags = {key.decode().split("{")[1].split("}")[0] for key in valkey.keys("rl:1:{*}:*")}
    assert tags == {f"user:{ann.pk}", "ip:203.0.113.1"}
    offences.flush()
    assert ("@burst", 1) in [(slot, count) for _, slot, count in offences.counts(f"user:{ann.pk}")]


def test_anonymous_throttle_is_not_for_users(rules: Any, db: Any, rates: Any) -> None:
    """As in DRF, a signed-in user is none of its business."""
    rules()
    rates(anon="1/m")
    ann = User.objects.create_user("ann")
    assert [200] * 3 == [call(Anonymous, ann).status_code for _ in range(3)]


def test_scope_of_the_view_is_shared_by_its_views(rules: Any, rates: Any) -> None:
    """ScopedRateThrottle: one count for a scope, another for another one; a view without a scope has no limit."""
    rules()
    rates(grabs="2/m", sales="1/m")
    assert [200, 200, 429] == codes([*get("/grabs/"), *get("/moregrabs/"), *get("/grabs/")])
    assert [200, 429] == codes(get("/sales/", 2))

    class Free(Answering):
        throttle_classes = [ScopedRateThrottle]

    assert [200] * 3 == [call(Free).status_code for _ in range(3)]


def test_unrelated_classes_of_one_scope_are_independent(rules: Any) -> None:
    """C22: the same scope in unrelated classes shares nothing; a common group and inheritance do."""

    def view_of(throttle: type[SimpleRateThrottle]) -> type[APIView]:
        return type("View", (Answering,), {"throttle_classes": [throttle]})

    def made(name: str, base: type = UserRateThrottle, **fields: Any) -> type[APIView]:
        return view_of(type(name, (base,), fields))

    rules()
    first = type("First", (UserRateThrottle,), {"scope": "x", "rate": "1/m"})
    assert [200, 429] == [call(view_of(first)).status_code for _ in range(2)]
    assert 200 == call(made("Second", scope="x", rate="1/m")).status_code
    assert 429 == call(made("Heir", first)).status_code
    assert 200 == call(made("Third", scope="x", rate="1/m", group="g")).status_code
    assert 429 == call(made("Fourth", scope="y", rate="1/m", group="g")).status_code


def test_overridden_cache_key_is_the_identity(rules: Any, valkey: Any) -> None:
    """A subclass's text is whom it counts, None is nobody, and what the parent says stays the client."""

    class ByTenant(SimpleRateThrottle):
        scope, rate = "tenant", "1/m"

        def get_cache_key(self, request: Any, view: Any) -> str | None:
            return request.GET.get("tenant")  # type: ignore[no-any-return]

    class Sparing(UserRateThrottle):
        scope, rate = "sparing", "1/m"

        def get_cache_key(self, request: Any, view: Any) -> str | None:
            return None if "spare" in request.GET else super().get_cache_key(request, view)

    class Tenants(Answering):
        throttle_classes = [ByTenant]

    class Spared(Answering):
        throttle_classes = [Sparing]

    rules()
    queries = ["tenant=a", "tenant=a", "tenant=b", "", ""]
    assert [200, 429, 200, 200, 200] == [call(Tenants, QUERY_STRING=query).status_code for query in queries]
    assert [200, 429, 200] == [call(Spared, QUERY_STRING=query).status_code for query in ("", "", "spare=1")]
    tags = {key.decode().split("{")[1].split("}")[0] for key in valkey.keys("rl:1:{*}:*")}
    assert tags == {"key:a", "key:b", "ip:127.0.0.1"}


def test_overridden_ident_is_no_address(rules: Any, valkey: Any) -> None:
    """A subclass that reads the client from elsewhere makes a text, which is never banned as an address."""

    class ByHeader(UserRateThrottle):
        scope, rate = "header", "1/m"

        def get_ident(self, request: Any) -> str:
            return str(request.headers["x-client"])

    class View(Answering):
        throttle_classes = [ByHeader]

    rules()
    assert [200, 429, 200] == [call(View, HTTP_X_CLIENT=client).status_code for client in ("a", "a", "b")]
    tags = {key.decode().split("{")[1].split("}")[0] for key in valkey.keys("rl:1:{*}:*")}
    assert tags == {"key:throttle_header_a", "key:throttle_header_b"}


def test_overridden_parse_rate_and_wait_work(rules: Any) -> None:
    """A grammar and a wait of the project's own."""

    class Own(UserRateThrottle):
        scope, rate = "own", "one an hour"

        def parse_rate(self, rate: str | None) -> tuple[int, int]:
            return (1, 3_600)

        def wait(self) -> float:
            return 7.0

    class View(Answering):
        throttle_classes = [Own]

    rules()
    answers = [call(View) for _ in range(2)]
    assert [200, 429] == codes(answers)
    assert answers[1]["Retry-After"] == "7"


def test_limit_set_by_a_subclass_at_the_call_counts(rules: Any) -> None:
    """Subclasses that choose a rate in allow_request, or ask for several, work and decide together."""

    class Tiers(UserRateThrottle):
        rate = "9/m"

        def allow_request(self, request: Any, view: Any) -> bool:
            for rate in ("2/m", "5/h"):
                self.rate = rate
                self.num_requests, self.duration = self.parse_rate(rate)
                if not super().allow_request(request, view):
                    return False
            return True

    class View(Answering):
        throttle_classes = [Tiers]

    rules()
    assert [200, 200, 429] == codes([call(View) for _ in range(3)])


def test_wait_without_a_denial_is_none(rules: Any, rates: Any) -> None:
    """C85: before any call, after an exempt one, and after an allowed one."""
    rules()
    rates(anon="5/m")
    throttle = AnonRateThrottle()
    assert throttle.wait() is None
    throttle.allow_request(request_for(), None)
    assert throttle.wait() is None
    assert ScopedRateThrottle().wait() is None
    assert RuleThrottle().wait() is None


def test_instance_keeps_nothing_of_another_request(rules: Any, rates: Any, db: Any) -> None:
    """C85: one instance for two users, and for a view without a scope after a denial."""
    rules()
    rates(user="1/m", grabs="1/m")
    throttle, users = UserRateThrottle(), [User.objects.create_user(name) for name in "ab"]
    verdicts = [throttle.allow_request(request_for(user), None) for user in (users[0], users[0], users[1])]
    assert ([True, False, True], None) == (verdicts, throttle.wait())
    scoped = ScopedRateThrottle()
    assert [True, False] == [scoped.allow_request(request_for(), Grabs()) for _ in range(2)]
    assert (True, None) == (scoped.allow_request(request_for(), Answering()), scoped.wait())


@pytest.mark.parametrize(
    "header", ["198.51.100.66, 203.0.113.9", "1.2.3.4,203.0.113.9", "garbage, 203.0.113.9"]
)
def test_ident_is_what_the_trusted_proxies_tell(rules: Any, header: str) -> None:
    """C01, C04: the first address from the right that is no proxy of ours, however the text begins."""
    request = request_for(REMOTE_ADDR="10.0.0.5", HTTP_X_FORWARDED_FOR=header)
    assert AnonRateThrottle().get_ident(request) == "203.0.113.9"
    untrusted = request_for(REMOTE_ADDR="192.0.2.7", HTTP_X_FORWARDED_FOR=header)
    assert AnonRateThrottle().get_ident(untrusted) == "192.0.2.7"


def test_invented_first_addresses_share_one_limit(bare: None, rules: Any, rates: Any) -> None:
    """C01: a client that writes into the header gets no fresh limit."""
    rules()
    rates(anon="3/m")
    answers = [
        Client().get(
            "/anonymous/", REMOTE_ADDR="10.0.0.5", HTTP_X_FORWARDED_FOR=f"198.51.100.{n}, 203.0.113.9"
        )
        for n in range(4)
    ]
    assert [200, 200, 200, 429] == codes(answers)


def test_paths_through_six_balancers_are_one_client(bare: None, rules: Any, rates: Any, valkey: Any) -> None:
    """C04: chains that differ only in our own hops are one key."""
    rules()
    rates(anon="9/m")
    for n in range(1, 7):
        Client().get(
            "/anonymous/", REMOTE_ADDR=f"10.0.0.{n}", HTTP_X_FORWARDED_FOR=f"203.0.113.9, 10.0.1.{n}"
        )
    assert list(logs(valkey).values()) == [6]


def test_simultaneous_requests_get_exactly_the_limit(bare: None, rules: Any, rates: Any, valkey: Any) -> None:
    """C50: 40 requests at once, limit 10: ten pass."""
    rules()
    rates(anon="10/m")
    with ThreadPoolExecutor(16) as pool:
        codes = list(pool.map(lambda _: call(Anonymous).status_code, range(40)))
    assert (10, 30) == (codes.count(200), codes.count(429))
    assert list(logs(valkey).values()) == [10]


def test_async_view_is_limited(rules: Any, rates: Any) -> None:
    """C78: a view that checks its throttles in a thread, as ADRF does, is limited like any other."""
    rules({"rate": "2/m", "scope": "grab"})
    rates(anon="3/m")

    class AsyncView(Answering):
        throttle_classes = [AnonRateThrottle, RuleThrottle]
        throttle_scope = "grab"

        async def respond(self) -> int:
            request = self.initialize_request(APIRequestFactory().get("/"))
            self.request, self.headers = request, {}
            try:
                await sync_to_async(self.initial)(request)
            except Exception as error:  # noqa: BLE001 - as DRF does
                return int(self.handle_exception(error).status_code)
            return 200

    async def all_of_them() -> list[int]:
        return [await AsyncView().respond() for _ in range(3)]

    assert [200, 200, 429] == asyncio.run(all_of_them())


def test_throttles_are_drfs_own_kind() -> None:
    """What asks for DRF's classes finds them."""
    for ours in (SimpleRateThrottle, AnonRateThrottle, UserRateThrottle, ScopedRateThrottle):
        assert issubclass(ours, getattr(drf, ours.__name__))
        assert issubclass(ours, SimpleRateThrottle)
