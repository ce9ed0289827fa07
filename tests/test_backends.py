"""Tries to authenticate: counted wherever a password can be tried, and stopped before it is looked at."""

from __future__ import annotations

import base64
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import aauthenticate, authenticate
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from django.test import AsyncClient, Client, RequestFactory, override_settings

from ratelimit_app import clients, offences
from ratelimit_app.authentication import BACKEND
from ratelimit_app.backends import RateLimitBackend
from ratelimit_app.conf import conf
from ratelimit_app.core.access_lists import NEVER, NetworkTable
from ratelimit_app.exceptions import Ratelimited
from ratelimit_app.identities import canonical
from ratelimit_app.signals import request_denied
from ratelimit_app.testing import travel
from tests import logins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODEL = "django.contrib.auth.backends.ModelBackend"
RIGHT, WRONG = "right horse", "wrong horse"
ACCOUNT = {"name": "account", "rate": "3/m", "key": "field:username", "scope": "authenticate"}
FAILED = {"name": "failed", "rate": "3/m", "key": "field:username", "scope": "login_failed"}


@pytest.fixture(autouse=True)
def _project(settings: Any, transactional_db: Any) -> Iterator[None]:
    """A project with every kind of login, one staff account, and our backend before a recording one."""
    settings.ROOT_URLCONF = "tests.logins"
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "TRUSTED_PROXIES": ["127.0.0.1"]}
    settings.AUTHENTICATION_BACKENDS = [BACKEND, "tests.logins.Recording", MODEL]
    User.objects.create_user("alice", "alice@example.org", RIGHT, is_staff=True)
    logins.tried.clear()
    yield
    logins.tried.clear()


def form(url: str, accept: str = "text/html") -> Callable[..., Any]:
    """Give the function that fills in a page's form."""

    def send(name: str, password: str, forwarded: str = "") -> Any:
        headers = {"accept": accept} | _from(forwarded)
        return Client().post(url, {"username": name, "password": password}, headers=headers)

    return send


def sent_json(url: str) -> Callable[..., Any]:
    """Give the function that sends JSON, whose field is `login`."""

    def send(name: str, password: str, forwarded: str = "") -> Any:
        sent = {"login": name, "password": password}
        return Client().post(url, sent, content_type="application/json", headers=_from(forwarded))

    return send


def sent_async(url: str) -> Callable[..., Any]:
    """Give the function that sends JSON to an async project."""

    def send(name: str, password: str, forwarded: str = "") -> Any:
        sent = {"login": name, "password": password}
        ask = async_to_sync(AsyncClient().post)
        return ask(url, sent, content_type="application/json", headers=_from(forwarded))

    return send


def basic(name: str, password: str, forwarded: str = "") -> Any:
    """Ask an API with basic authentication."""
    token = base64.b64encode(f"{name}:{password}".encode()).decode()
    return Client().get("/basic/", headers={"Authorization": f"Basic {token}"} | _from(forwarded))


def _from(address: str) -> dict[str, str]:
    return {"X-Forwarded-For": address} if address else {}


WAYS: dict[str, Callable[..., Any]] = {
    "page": form("/accounts/login/"),
    "admin": form("/admin/login/"),
    "token": form("/token/", "*/*"),
    "basic": basic,
    "json": sent_json("/json/"),
    "forgetful": sent_json("/forgetful/"),
    "async": sent_async("/async/"),
    "aforgetful": sent_async("/aforgetful/"),
    "async on sync": sent_json("/async/"),
    "decorated": sent_json("/decorated/"),
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
def test_an_account_when_tried_at_any_login_is_limited_at_all_of_them(way: str, rules: Any) -> None:
    """C151: used up at one login page, it is refused at every other, and no password is looked at; others pass."""
    rules(ACCOUNT)
    for name in ("alice", " ALICE", "Alice"):
        assert 429 != WAYS["page"](name, WRONG).status_code
    assert 3 == len(logins.tried)
    answer = WAYS[way]("alice", RIGHT)
    assert 429 == answer.status_code
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert "no-store" in answer["Cache-Control"]
    assert 3 == len(logins.tried)
    assert 429 != WAYS[way]("bob", WRONG).status_code
    assert 4 == len(logins.tried)


@ways
def test_an_account_when_tried_at_one_login_is_limited_there(way: str, rules: Any) -> None:
    """C16, C151: each way counts by itself, and exactly: three tries, spelled as one likes, then 429."""
    rules(ACCOUNT)
    answers = [WAYS[way](name, WRONG).status_code for name in ("alice", "ALICE", "alice ", "Alice", "alice")]
    assert [429, 429] == answers[3:]
    assert 429 not in answers[:3]
    assert 3 == len(logins.tried)


@ways
def test_an_address_when_it_tries_many_accounts_is_limited(way: str, rules: Any) -> None:
    """C84: a rule by address counts the tries of one machine, also of code that names no request; others pass."""
    rules({"name": "machine", "rate": "3/m", "key": "ip", "scope": "authenticate"})
    answers = [WAYS[way](f"user{n}", WRONG).status_code for n in range(4)]
    assert 429 == answers[3]
    assert 429 not in answers[:3]
    assert 429 != WAYS[way]("user9", WRONG, "203.0.113.7").status_code


@ways
def test_an_attacker_when_the_rule_joins_the_address_locks_no_victim_out(way: str, rules: Any) -> None:
    """`ip+field:username`: whoever guesses is refused, and the account's owner comes in from elsewhere."""
    rules({**ACCOUNT, "key": "ip+field:username"})
    page = WAYS["page"]
    answers = [page("alice", WRONG, "198.51.100.66").status_code for _ in range(4)]
    assert [200, 200, 200, 429] == answers
    assert WAYS[way]("alice", RIGHT).status_code in {200, 302}


@ways
def test_failures_when_counted_alone_leave_success_free(way: str, rules: Any) -> None:
    """`login_failed`: who knows the password comes in as often as needed; three failures are the end for any."""
    rules(FAILED)
    right = [WAYS[way]("alice", RIGHT).status_code for _ in range(5)]
    assert not {429, 401, 400} & set(right)
    wrong = [WAYS[way]("Alice ", WRONG).status_code for _ in range(4)]
    assert 429 == wrong[3]
    assert 429 not in wrong[:3]
    before = len(logins.tried)
    assert 429 == WAYS[way]("alice", RIGHT).status_code
    assert before == len(logins.tried)
    with travel(61):
        assert WAYS[way]("alice", RIGHT).status_code in {200, 302}


def test_failures_when_refused_are_not_counted_again(rules: Any, valkey: Any) -> None:
    """A refused try is neither a failure nor a charge: the window ends when its own failures leave it (C35)."""
    rules(FAILED, {**ACCOUNT, "rate": "100/m"})
    for _ in range(6):
        WAYS["page"]("alice", WRONG)
    logs = {key.rpartition(b":")[2]: valkey.zcard(key) for key in valkey.keys("rl:1:{*}:*")}
    assert {b"failed": 3, b"account": 3} == logs


def test_a_field_when_the_body_has_another_is_the_credential(rules: Any) -> None:
    """What is checked counts: a made-up `username` beside the login's own field moves nothing."""
    rules(ACCOUNT)
    answers = []
    for n in range(4):
        sent = {"login": "alice", "password": WRONG, "username": f"made-up-{n}"}
        answers.append(Client().post("/json/", sent, content_type="application/json").status_code)
    assert [401, 401, 401, 429] == answers


@pytest.mark.parametrize("key", ["field:csrf", "field:tenant"])
def test_a_field_when_it_is_no_credential_is_the_bodys(key: str, rules: Any) -> None:
    """A rule may count by any field that the login page sends; one that nobody sends is the address."""
    rules({**ACCOUNT, "key": key})
    sent = {"username": "alice", "password": WRONG, "tenant": "north"}
    answers = [Client().post("/accounts/login/", sent).status_code for _ in range(4)]
    assert [200, 200, 200, 429] == answers
    other = {"username": "alice", "password": WRONG, "tenant": "south"}
    expected = 200 if key == "field:tenant" else 429
    assert expected == Client().post("/accounts/login/", other).status_code


def test_tries_when_batched_in_one_request_count_each(rules: Any) -> None:
    """C154: ten passwords in one request are ten tries: three are looked at."""
    rules(ACCOUNT)
    answer = Client().post("/batch/", {"passwords": [WRONG] * 10}, content_type="application/json")
    assert 429 == answer.status_code
    assert 3 == len(logins.tried)


def test_a_try_when_the_view_gives_its_request_back_stays_counted(rules: Any, valkey: Any) -> None:
    """A refund is of the request's own charges: it does not make passwords free."""
    rules(ACCOUNT, {"name": "site", "rate": "100/m", "key": "ip"})
    send = sent_json("/refunding/")
    assert [401, 401, 401, 429] == [send("alice", WRONG).status_code for _ in range(4)]
    assert 0 == valkey.zcard(conf.keys.log("ip:127.0.0.1", b"site"))


def test_a_login_when_its_second_try_passes_is_answered_by_the_view(rules: Any) -> None:
    """A page that tries a name twice signs in by the second; the refusal of the first is no longer the answer."""
    rules({**ACCOUNT, "rate": "1/m"})
    sent = {"login": "used-up", "password": RIGHT}
    client = Client()
    WAYS["json"]("used-up", WRONG)
    answer = client.post("/twice/", sent, content_type="application/json")
    assert (200, {"in": True}) == (answer.status_code, answer.json())
    assert "_auth_user_id" in client.session


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("request_", [None, "dict", "real"])
def test_a_try_when_code_asks_is_decided_with_and_without_a_request(
    colour: str, request_: Any, rules: Any
) -> None:
    """A command, a socket or a mail server: the credentials are known, whatever stands for the request."""
    rules(ACCOUNT)
    given: Any = {"real": RequestFactory().post("/"), "dict": {"type": "websocket"}, None: None}[request_]
    ask = authenticate if colour == "sync" else async_to_sync(aauthenticate)
    found = [ask(given, username="alice", password=RIGHT) for _ in range(5)]
    assert ["alice"] * 3 + [None] * 2 == [user and user.username for user in found]
    assert ask(given, username="bob", password=WRONG) is None
    assert [RIGHT] * 3 + [WRONG] == logins.tried


def test_a_try_when_there_is_no_request_counts_by_what_is_known(
    rules: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an address the account is left of `ip+field:username`; pure address rules share one log, and it is told."""
    rules({**ACCOUNT, "key": "ip+field:username"}, {**ACCOUNT, "name": "machine", "key": "ip", "rate": "5/m"})
    clients._warned.clear()
    with caplog.at_level(logging.WARNING, "ratelimit_app"):
        for name in ("alice", "alice", "alice", "alice", "bob", "carol", "dave"):
            authenticate(username=name, password=WRONG)
    assert 5 == len(logins.tried)
    assert 1 == caplog.text.count("ratelimit.address_unknown")


def test_a_try_when_its_request_is_over_is_nobodys(rules: Any, valkey: Any) -> None:
    """Code that runs after a request in the same thread is not counted as its client."""
    rules({**ACCOUNT, "key": "ip"})
    WAYS["forgetful"]("alice", WRONG, "203.0.113.7")
    authenticate(username="alice", password=WRONG)
    logs = {key: valkey.zcard(key) for key in valkey.keys("rl:1:{*}:*")}
    assert {b"rl:1:{ip:203.0.113.7}:account": 1, b"rl:1:{ip:unknown}:account": 1} == logs


def test_tries_when_many_threads_make_them_at_once_are_counted_exactly(rules: Any) -> None:
    """C50: forty guesses at once, spelled in many ways, are three looks at the password."""
    rules(ACCOUNT)

    def guess(number: int) -> bool:
        try:
            RateLimitBackend().authenticate(None, username=("alice", "ALICE ", "Alice")[number % 3])
        except Ratelimited:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert 3 == sum(pool.map(guess, range(40)))


@pytest.mark.parametrize("model_field", ["username", "email"])
def test_a_login_name_when_called_by_either_word_is_one(model_field: str, rules: Any) -> None:
    """`username` is Django's word for what the user model may call otherwise: a rule by either counts both."""
    rules({**ACCOUNT, "key": f"field:{model_field}"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(User, "USERNAME_FIELD", "email")
        for given in ({"username": "a@example.org"}, {"email": "A@example.org"}) * 2:
            authenticate(None, password=WRONG, **given)
    assert 3 == len(logins.tried)


def test_a_denial_when_it_is_a_try_is_an_offence_and_a_signal(rules: Any, valkey: Any) -> None:
    """Whoever is refused can be promoted, under the rule that refused; both scopes."""
    rules({**ACCOUNT, "key": "ip", "rate": "2/m"}, {**FAILED, "key": "ip", "rate": "1/m"})
    heard: list[Any] = []

    def listen(sender: Any, request: Any, decision: Any, **_: Any) -> None:
        heard.append((sender, request.path, decision.rule, decision.verdict.value))

    request_denied.connect(listen)
    try:
        WAYS["page"]("alice", RIGHT)
        WAYS["page"]("alice", WRONG)
        WAYS["page"]("alice", WRONG)
        offences.flush()
    finally:
        request_denied.disconnect(listen)
    assert [(RateLimitBackend, "/accounts/login/", "failed", "limited")] == heard
    found = valkey.hgetall("rl:1:{ip:127.0.0.1}!offences")
    assert [b"failed"] == [name.partition(b"|")[2] for name in found]


def test_a_login_when_listed_is_blocked_whoever_asks(rules: Any, valkey: Any) -> None:
    """A blacklisted account name is turned away at each login, in whatever spelling, without any rule: 403."""
    rules(marked_kinds=frozenset({"field:username"}))
    valkey.set(conf.keys.mark(canonical("field:username:alice")), b"0")
    found = {way: send("ALICE ", RIGHT).status_code for way, send in WAYS.items()}
    assert {403} == set(found.values())
    assert [] == logins.tried


def test_a_login_when_its_address_is_allowed_passes(rules: Any) -> None:
    """The allowlist beats the rules of tries too."""
    office = NetworkTable()
    office.set("127.0.0.1", NEVER)
    rules(ACCOUNT, FAILED, allowed_networks=office)
    assert {200} == {WAYS["page"]("alice", WRONG).status_code for _ in range(5)}


@pytest.mark.parametrize("way", ["page", "admin", "token", "basic", "json", "async"])
def test_a_login_when_redis_is_away_and_its_rule_is_closed_is_unavailable(
    way: str, rules: Any, settings: Any
) -> None:
    """C122: an outage does not switch the protection of passwords off, at any login; without a rule it stays open."""
    rules({**ACCOUNT, "on_failure": "closed"})
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    answer = WAYS[way]("alice", RIGHT)
    assert 503 == answer.status_code
    assert [] == logins.tried
    rules(ACCOUNT)
    assert 503 != WAYS[way]("alice", RIGHT).status_code


def test_the_middleware_when_absent_leaves_the_limit_in_force(rules: Any, settings: Any) -> None:
    """The page then says that the password is wrong; a decorator answers 429 by itself, unless it only watches."""
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "ratelimit_app" not in name]
    rules(ACCOUNT)
    for _ in range(4):
        assert 200 == WAYS["page"]("alice", WRONG).status_code
    assert 3 == len(logins.tried)
    assert 429 == WAYS["decorated"]("alice", RIGHT).status_code
    answer = sent_json("/watching/")("alice", RIGHT)
    assert (401, {"limited": True}) == (answer.status_code, answer.json())


def test_the_backend_when_asked_itself_raises_what_becomes_a_denial(rules: Any) -> None:
    """Ratelimited, which is a PermissionDenied, with the decision; allowed, it knows nobody."""
    rules({**ACCOUNT, "rate": "1/m"})
    assert RateLimitBackend().authenticate(None, username="alice") is None
    with pytest.raises(Ratelimited) as raised:
        RateLimitBackend().authenticate(None, username="alice")
    assert raised.value.decision is not None
    assert "account" == raised.value.decision.rule


def test_a_project_when_it_logs_users_in_itself_is_not_in_our_way(rules: Any) -> None:
    """The test client passes us over, permissions are the other backends', limits that are off let all pass."""
    rules({**ACCOUNT, "rate": "0/m"})
    alice = User.objects.get(username="alice")
    client = Client()
    client.force_login(alice)
    assert MODEL == client.session["_auth_user_backend"]
    assert not alice.has_perm("auth.add_user")
    with override_settings(RATELIMIT_APP={"ENABLED": False}):
        assert authenticate(None, username="alice", password=RIGHT) == alice


def test_a_failure_when_a_project_tells_of_it_itself_is_counted(rules: Any) -> None:
    """A second factor that fails sends Django's signal: it counts for its own credentials, not for an earlier try's."""
    rules(FAILED)
    for _ in range(3):
        assert authenticate(None, username="alice", password=RIGHT)
        user_login_failed.send(sender=__name__, credentials={"username": "carol", "otp": "1"}, request=None)
    for told in ({}, {"credentials": None}, {"credentials": "carol", "request": {"type": "http"}}):
        user_login_failed.send(sender=__name__, **told)
    assert authenticate(None, username="alice", password=RIGHT)
    assert authenticate(None, username="carol", password=RIGHT) is None
    assert [RIGHT] * 4 == logins.tried


def test_a_failure_when_its_credential_is_masked_counts_by_the_real_one(rules: Any, valkey: Any) -> None:
    """Django masks keys and tokens in the signal: two of them are two identities all the same."""
    rules({**FAILED, "key": "field:api_key", "rate": "1/m"})
    assert [authenticate(None, api_key=key) for key in ("k-1", "k-2", "k-1", "k-2")] == [None] * 4
    assert 2 == len(logins.tried)
    assert 2 == len(valkey.keys("rl:1:{field:api_key:*}:*"))


def test_headers_when_a_try_was_counted_tell_of_it(rules: Any) -> None:
    """A login that passes says how many tries are left, over all doors."""
    rules(ACCOUNT, {"name": "site", "rate": "100/m", "key": "ip"})
    answer = WAYS["page"]("alice", WRONG)
    assert ("3", "2") == (answer["X-RateLimit-Limit"], answer["X-RateLimit-Remaining"])


@pytest.mark.parametrize("name", ["\x00", "\ud800", "{x}", "x" * 10_000, "é" * 2_000, "\r\nx: y", "😀", "  "])
def test_a_login_name_of_any_bytes_is_counted_and_no_error(name: str, rules: Any) -> None:
    """C25: whatever is typed as a name is one identity, with a short key; blanks alone are none."""
    rules(ACCOUNT)
    found = [RateLimitBackend().authenticate(None, username=name, password=WRONG) for _ in range(3)]
    assert [None] * 3 == found
    with pytest.raises(Ratelimited):
        RateLimitBackend().authenticate(None, username=name, password=WRONG)
