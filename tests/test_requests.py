"""Facts of a request: who and where, from any bytes, without harm to what the view reads."""

from __future__ import annotations

import json
import logging
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.backends.signed_cookies import SessionStore as CookieSession
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.files.uploadedfile import SimpleUploadedFile, UploadedFile
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory, override_settings
from rest_framework.request import Request as DrfRequest

from ratelimit_app import clients
from ratelimit_app.bodies import MAX_BODY
from ratelimit_app.conf import conf
from ratelimit_app.core.access_lists import NEVER
from ratelimit_app.core.identity import observed, parse_sources
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.rules import Rule, rule_from_dict
from ratelimit_app.core.snapshot import Snapshot
from ratelimit_app.exceptions import BodyTooLarge
from ratelimit_app.requests import RequestFacts, facts_of
from tests.cases import HOSTILE_TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT = "203.0.113.9"
SYNC, ASYNC = RequestFactory(), AsyncRequestFactory()


def ask(
    path: str = "/coupons/1/", colour: str = "sync", method: str = "GET", body: Any = b"", **extra: Any
) -> HttpRequest:
    """Make a request of one colour; `headers` and `cookies` as in Django's client."""
    cookies, peer = extra.pop("cookies", {}), extra.pop("REMOTE_ADDR", CLIENT)
    factory: Any = SYNC if colour == "sync" else ASYNC
    made = factory.generic(method, path, body, **extra)
    made.META["REMOTE_ADDR"] = peer
    made.COOKIES.update(cookies)
    made.user = AnonymousUser()
    return made  # type: ignore[no-any-return]


def rule(key: str, **fields: Any) -> Rule:
    """Make a rule by its key source."""
    return rule_from_dict({"name": "r", "rate": "5/s", "key": key} | fields)


def asked(rules: list[Rule], snapshot: Snapshot, with_user: bool) -> tuple[str, ...]:
    """Name the facts that rules and lists ask for."""
    return Plan(rules, conf.keys).asked(snapshot, with_user)


def identity(request: HttpRequest, key: str) -> str:
    """Give the identity that a rule of this key counts a request by."""
    facts = facts_of(request)
    for fact in asked([rule(key)], Snapshot(marked_kinds=frozenset()), with_user=True):
        facts.learn(fact)
    return facts.rule_identity(rule(key))


def digested(key: str, value: str) -> str:
    """Give the identity that a value of this source has."""
    (source,) = parse_sources(key)
    return observed(source, value, conf.key_secret)


colours = pytest.mark.parametrize("colour", ["sync", "async"])


@pytest.fixture(autouse=True)
def _warned() -> None:
    clients._warned.clear()


@colours
@pytest.mark.parametrize(
    ("key", "extra", "expected"),
    [
        ("ip", {}, f"ip:{CLIENT}"),
        ("global", {}, "global"),
        ("view", {}, "view:coupons:one"),
        ("user_or_ip", {}, f"ip:{CLIENT}"),
        ("device", {"headers": {"X-Device-Id": "ab12"}}, "device:ab12"),
        ("view+ip", {}, f"view:coupons:one+ip:{CLIENT}"),
    ],
)
def test_an_identity_when_plain_is_written_as_the_contract_says(
    colour: str, key: str, extra: dict[str, Any], expected: str
) -> None:
    """The text of admin, logs and commands, of both kinds of request."""
    assert expected == identity(ask(colour=colour, **extra), key)


@colours
@pytest.mark.parametrize(
    ("key", "value", "extra"),
    [
        ("header:x-api-key", "s3cret", {"headers": {"X-API-KEY": "s3cret"}}),
        ("header:X_Api_Key", "s3cret", {"headers": {"x-api-key": "s3cret"}}),
        ("header:authorization", "Bearer s3cret", {"headers": {"Authorization": "Bearer s3cret"}}),
        ("cookie:cart", "c1", {"cookies": {"cart": "c1"}}),
        ("param:page", "2", {"path": "/coupons/1/?page=1&page=2"}),
        ("get:page", "2", {"path": "/coupons/1/?page=2"}),
    ],
)
def test_an_identity_when_secret_is_a_digest(
    colour: str, key: str, value: str, extra: dict[str, Any]
) -> None:
    """The secret is nowhere in the identity, header names in any case are one, the last duplicate wins (C26, C137)."""
    found = identity(ask(colour=colour, **extra), key)
    assert digested(key, value) == found
    assert "s3cret" not in found


@colours
@pytest.mark.parametrize(
    "key",
    [
        "device", "session", "user", "header:x-device", "cookie:cart", "param:page", "field:email", "user+ip", "ip+field:email",
        "ip+cookie:cart",
    ],
)  # fmt: skip
def test_an_identity_when_it_is_missing_is_the_address(colour: str, key: str) -> None:
    """Never a constant that all share, never no limit (C27)."""
    assert f"ip:{CLIENT}" == identity(ask(colour=colour), key)
    assert "ip:198.51.100.7" == identity(ask(colour=colour, REMOTE_ADDR="198.51.100.7"), key)


@pytest.mark.parametrize("key", ["device", "header:x-device", "cookie:cart", "param:page"])
def test_an_identity_when_it_is_blank_is_the_address(key: str) -> None:
    """A blank value is a missing one: clients do not share a bucket by sending nothing (C27)."""
    made = ask("/?page=", headers={"X-Device-Id": "", "X-Device": ""}, cookies={"cart": ""})
    assert f"ip:{CLIENT}" == identity(made, key)


def test_an_identity_when_of_an_unknown_view_is_the_address() -> None:
    """A 404 has no view; its clients are told apart by their addresses."""
    assert f"ip:{CLIENT}" == identity(ask("/nothing/"), "view")


@pytest.mark.parametrize("key", ["device", "header:x-raw", "cookie:raw"])
@pytest.mark.parametrize("value", HOSTILE_TEXTS)
def test_an_identity_when_of_any_bytes_is_one_short_line(key: str, value: str) -> None:
    """No bytes in a header or a cookie make an error, a second line or a brace (C25)."""
    made = ask(cookies={"raw": value})
    made.META["HTTP_X_DEVICE_ID"] = made.META["HTTP_X_RAW"] = value
    found = identity(made, key)
    assert found.isprintable()
    assert not set("{}+") & set(found)
    assert len(found) <= 100


@pytest.mark.parametrize(
    ("key", "body", "kind", "value"),
    [
        ("field:email", b'{"email": "a@example.org"}', "application/json", "a@example.org"),
        (
            "field:email",
            b'{"email": "x", "email": "a@example.org"}',
            "application/json; charset=utf-8",
            "a@example.org",
        ),
        ("field:email", b'{"email": "a@example.org"}', "application/vnd.shop+json", "a@example.org"),
        ("field:n", b'{"n": 7}', "application/json", "7"),
        ("field:n", b'{"n": {"b": 1, "a": 2}}', "application/json", '{"a": 2, "b": 1}'),
        (
            "field:email",
            b"email=x&email=a%40example.org",
            "application/x-www-form-urlencoded",
            "a@example.org",
        ),
        ("post:email", b"email=a%40example.org", "APPLICATION/X-WWW-FORM-URLENCODED", "a@example.org"),
        ("field:user[email]", b"user[email]=a", "application/x-www-form-urlencoded", "a"),
    ],
)
@colours
def test_a_field_when_in_a_body_is_read_and_the_body_stays(
    colour: str, key: str, body: bytes, kind: str, value: str
) -> None:
    """JSON and forms, the last duplicate wins, and the view still reads every byte."""
    made = ask(colour=colour, method="POST", body=body, content_type=kind)
    assert digested(key, value) == identity(made, key)
    assert body == made.body


def multipart() -> tuple[bytes, str]:
    """Give a form with a field and a file."""
    made = SYNC.post(
        "/", {"email": "a@example.org", "photo": SimpleUploadedFile("p.png", b"\x89PNG" * 1_000)}
    )
    return made.body, made.META["CONTENT_TYPE"]


def photo(made: HttpRequest) -> UploadedFile[Any]:
    """Give the file that the view gets."""
    found = made.FILES["photo"]
    assert isinstance(found, UploadedFile)
    return found


@colours
def test_an_upload_when_a_field_rule_looks_is_unharmed(colour: str) -> None:
    """The field is read without keeping the file; the view gets both, whole."""
    body, kind = multipart()
    made = ask(colour=colour, method="POST", body=body, content_type=kind)
    assert digested("field:email", "a@example.org") == identity(made, "field:email")
    assert made.POST["email"] == "a@example.org"
    assert b"".join(photo(made).chunks()) == b"\x89PNG" * 1_000


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
def test_a_drf_request_when_its_body_was_looked_at_still_parses_it(kind: str) -> None:
    """DRF's own parsers read the same body afterwards."""
    from rest_framework.parsers import FormParser, JSONParser

    body = b'{"email": "a"}' if kind.endswith("json") else b"email=a"
    made = ask(method="POST", body=body, content_type=kind)
    identity(made, "field:email")
    parsed: Any = DrfRequest(made, parsers=[JSONParser(), FormParser()]).data
    assert "a" == parsed["email"]


BROKEN: list[tuple[bytes, str]] = [
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"[1, 2]", "application/json"),
    (b"null", "application/json"),
    (b'{"email": null}', "application/json"),
    (b'{"email": ""}', "application/json"),
    (b"\xff\xfe\x00", "application/json"),
    (b"[" * 100_000, "application/json"),
    (b'{"email": ' + b"9" * 5_000 + b"}", "application/json"),
    (b"email=a", "text/plain"),
    (b"email=a", ""),
    (b"&".join(b"f%d=1" % n for n in range(2_000)), "application/x-www-form-urlencoded"),
    (b"nonsense", "multipart/form-data; boundary=x"),
    (b"nonsense", "multipart/form-data"),
    (b"email=a", "application/x-www-form-urlencoded" * 50),
]


@colours
@pytest.mark.parametrize(("body", "kind"), BROKEN, ids=range(len(BROKEN)))
def test_a_body_when_broken_counts_by_the_address(colour: str, body: bytes, kind: str) -> None:
    """Whatever is sent, there is an identity and no error; the view still gets the bytes (C27)."""
    made = ask(colour=colour, method="POST", body=body, content_type=kind)
    assert f"ip:{CLIENT}" == identity(made, "field:email")
    assert body == made.body


@pytest.mark.parametrize(("bound", "expected"), [(100, None), (1_000, "field"), (None, "field")])
def test_a_body_when_django_would_not_read_it_is_over_the_bound(
    settings: Any, bound: int | None, expected: str | None
) -> None:
    """A project that lowers DATA_UPLOAD_MAX_MEMORY_SIZE opens no way around a field rule."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = bound
    made = ask(method="POST", body=b'{"email": "a"}' + b" " * 500, content_type="application/json")
    if expected is None:
        with pytest.raises(BodyTooLarge, match="over 100 bytes"):
            identity(made, "field:email")
    else:
        assert expected == identity(made, "field:email").partition(":")[0]


def test_a_body_when_over_the_bound_is_not_read() -> None:
    """Nobody makes the limiter hold a large body: the stream is untouched, and an enforcing rule refuses it."""
    made = ask(method="POST", body=b'{"email": "a"}' + b" " * MAX_BODY, content_type="application/json")
    with pytest.raises(BodyTooLarge, match="field:email"):
        identity(made, "field:email")
    assert not vars(made)["_read_started"]


def test_an_upload_when_over_the_projects_own_bound_still_reaches_the_view_under_a_shadow_rule() -> None:
    """Django takes an upload that it would not read into memory; what only watches leaves it alone."""
    body, kind = multipart()
    made = ask(method="POST", body=body, content_type=kind)
    watching = rule_from_dict({"name": "r", "rate": "5/m", "key": "field:email", "mode": "shadow"})
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=100):
        assert f"ip:{CLIENT}" == RequestFacts(made).rule_identity(watching)
        assert photo(made).size == 4_000


def test_a_body_when_the_view_has_read_the_stream_is_no_error() -> None:
    """A rule in code, asked after the body was streamed, counts by the address."""
    made = ask(method="POST", body=b"email=a", content_type="application/x-www-form-urlencoded")
    made.read(3)
    assert f"ip:{CLIENT}" == identity(made, "field:email")


@pytest.mark.parametrize("length", ["", "x", "-5", "1e3"])
def test_a_length_when_it_is_no_number_counts_by_the_address(length: str) -> None:
    """A header that lies about the length is no error."""
    made = ask(
        method="POST",
        body=b"email=a",
        content_type="application/x-www-form-urlencoded",
        CONTENT_LENGTH=length,
    )
    assert f"ip:{CLIENT}" == identity(made, "field:email")


@pytest.mark.parametrize(("padding", "expected"), [(0, "field"), (MAX_BODY, None)])
def test_a_chunked_body_when_under_asgi_is_read_all_the_same(padding: int, expected: str | None) -> None:
    """Leaving the length out does not escape a field rule; the bound holds for it too."""
    body = b'{"email": "a"}' + b" " * padding
    headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "client": (CLIENT, 1)}
    made = ASGIRequest(scope, BytesIO(body))
    if expected is None:
        with pytest.raises(BodyTooLarge):
            identity(made, "field:email")
    else:
        assert expected == identity(made, "field:email").partition(":")[0]
    assert made.body == body


@pytest.mark.django_db
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_user_when_signed_in_is_the_identity(colour: str) -> None:
    """`user` and `user_or_ip` are `user:<pk>` once the user is learned, of both colours (C19)."""
    user = User.objects.create(username="u")
    made = ask()
    made.user = user
    facts = facts_of(made)
    assert facts.user_identity() is None
    facts = facts_of(ask())
    facts.request.user = user
    if colour == "sync":
        facts.learn("user")
    else:
        async_to_sync(facts.alearn)("user")
    assert f"user:{user.pk}" == facts.user_identity()
    assert f"user:{user.pk}+ip:{CLIENT}" == facts.rule_identity(rule("user+ip"))
    assert f"user:{user.pk}" == facts.rule_identity(rule("user_or_ip"))


@pytest.mark.parametrize("user", [None, AnonymousUser(), User(username="unsaved"), "absent"])
def test_a_user_when_there_is_none_is_the_address(user: Any) -> None:
    """Nobody, anonymous, unsaved, or a request without a user at all: the address (C152)."""
    made = ask(headers={"Authorization": "Bearer made-up"})
    if user == "absent":
        del made.user
    else:
        made.user = user
    assert f"ip:{CLIENT}" == identity(made, "user_or_ip")


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("fact", ["user", "session"])
def test_a_fact_when_the_project_cannot_read_it_is_missing_and_told(
    colour: str, fact: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A session store that is down makes no 500 of ours: the client counts by its address, the view will tell."""

    class Broken:
        META = {"REMOTE_ADDR": CLIENT}

        @property
        def user(self) -> Any:
            """Fail as a database does."""
            raise OSError

        session = user

    broken: Any = Broken()
    facts = RequestFacts(broken)
    with caplog.at_level(logging.WARNING, "ratelimit_app"):
        if colour == "sync":
            facts.learn(fact)
        else:
            async_to_sync(facts.alearn)(fact)
    assert f"ip:{CLIENT}" == facts.rule_identity(rule(fact))
    assert f"ratelimit.fact_unknown the {fact} of a request cannot be read" in caplog.text


def with_session(made: HttpRequest, key: str | None) -> HttpRequest:
    """Give the request what Django's middleware makes of a session cookie."""
    if key is not None:
        made.COOKIES["sessionid"] = key
    SessionMiddleware(lambda _: HttpResponse()).process_request(made)
    return made


@pytest.mark.django_db
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_session_when_it_exists_is_the_identity_and_made_up_is_none(colour: str) -> None:
    """A cookie that the server never gave is no session: whoever makes them up counts by the address (C152)."""
    session = SessionStore()
    session.create()
    found = []
    for key in (session.session_key, "a" * 32, "", None):
        facts = facts_of(with_session(ask(), key))
        if colour == "sync":
            facts.learn("session")
        else:
            async_to_sync(facts.alearn)("session")
        found.append(facts.rule_identity(rule("session")))
    assert [digested("session", session.session_key or ""), *[f"ip:{CLIENT}"] * 3] == found


def test_a_session_when_the_project_has_none_is_the_address() -> None:
    """No session middleware, no session."""
    assert f"ip:{CLIENT}" == identity(ask(), "session")


@override_settings(SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies")
def test_a_session_when_its_signature_is_forged_is_the_address() -> None:
    """Signed cookies: a value that was not signed here is no session."""
    assert f"ip:{CLIENT}" == identity(with_session(ask(), "forged:value:signature"), "session")
    stored = CookieSession()
    stored["x"] = 1
    stored.save()
    assert identity(with_session(ask(), stored.session_key), "session").startswith("session:~")


def test_a_callable_when_it_is_the_key_says_who(rf: RequestFactory) -> None:
    """`(group, request)`: its text under a kind of its own, so that it meets no user or address (C19)."""
    seen: list[Any] = []

    def key(group: str, request: Any) -> Any:
        seen.append((group, request))
        return request.GET.get("who")

    made = Rule(name="g", slot="@g", rates=rule("ip").rates, key_function=key)
    request = ask("/?who=user:42")
    assert "key:user:42" == facts_of(request).rule_identity(made)
    assert [("g", request)] == seen
    assert f"ip:{CLIENT}" == facts_of(ask("/")).rule_identity(made)
    assert f"ip:{CLIENT}" == facts_of(ask("/?who=")).rule_identity(made)
    zero = Rule(name="g", slot="@g", rates=rule("ip").rates, key_function=lambda *_: 0)
    assert "key:0" == facts_of(ask("/")).rule_identity(zero)


PROXIED: dict[str, Any] = {"headers": {"X-Forwarded-For": "198.51.100.66, 203.0.113.80"}}


@colours
def test_an_address_when_a_trusted_proxy_vouches_is_the_forwarded_one(colour: str) -> None:
    """The one header, and only from a trusted peer (C01, C02)."""
    assert "ip:203.0.113.80" == identity(ask(colour=colour, REMOTE_ADDR="10.0.0.5", **PROXIED), "ip")
    assert f"ip:{CLIENT}" == identity(ask(colour=colour, **PROXIED), "ip")


@pytest.mark.parametrize(
    "name", ["X-Real-IP", "Forwarded", "CF-Connecting-IP", "X-Client-IP", "True-Client-IP"]
)
def test_an_address_when_written_in_another_header_is_not_believed(name: str) -> None:
    """Only `CLIENT_IP_HEADER` is read, also behind a trusted proxy (C02)."""
    made = ask(REMOTE_ADDR="10.0.0.5", headers={name: "203.0.113.80"})
    assert "ip:10.0.0.5" == identity(made, "ip")


def test_an_address_when_the_project_names_its_header_is_read_from_it() -> None:
    """`CLIENT_IP_HEADER` replaces the usual one."""
    with override_settings(
        RATELIMIT_APP={"CLIENT_IP_HEADER": "X-Real-IP", "TRUSTED_PROXIES": ["10.0.0.0/8"]}
    ):
        made = ask(REMOTE_ADDR="10.0.0.5", headers={"X-Real-IP": "203.0.113.80", **PROXIED["headers"]})
        assert "ip:203.0.113.80" == identity(made, "ip")


@colours
@pytest.mark.parametrize(
    ("named", "sent", "value"),
    [
        ("Forwarded", "Forwarded", 'for=198.51.100.66, for="203.0.113.80:4711";proto=https'),
        ("CF-Connecting-IP", "CF-Connecting-IP", "203.0.113.80"),
        ("HTTP_X_REAL_IP", "X-Real-IP", "203.0.113.80"),
    ],
)
def test_an_address_when_the_named_header_has_rules_of_its_own_is_read_by_them(
    colour: str, named: str, sent: str, value: str
) -> None:
    """RFC 7239, the header of an edge, and a name as WSGI writes it; an untrusted peer is not believed (C02)."""
    with override_settings(RATELIMIT_APP={"CLIENT_IP_HEADER": named, "TRUSTED_PROXIES": ["10.0.0.0/8"]}):
        made = ask(colour=colour, REMOTE_ADDR="10.0.0.5", headers={sent: value})
        assert "ip:203.0.113.80" == identity(made, "ip")
        assert f"ip:{CLIENT}" == identity(ask(colour=colour, headers={sent: value}), "ip")


@colours
@pytest.mark.parametrize(
    ("settings", "peer", "expected"),
    [
        ({}, "2001:db8:1:2:3::4", "ip:2001:db8:1:2::/64"),
        ({"IPV6_PREFIX": 128}, "2001:DB8::0:4", "ip:2001:db8::4"),
        ({"IPV4_PREFIX": 24}, "203.0.113.9", "ip:203.0.113.0/24"),
        ({}, "::ffff:203.0.113.9", "ip:203.0.113.9"),
    ],
)
def test_an_address_when_prefixes_are_set_is_its_network(
    colour: str, settings: dict[str, Any], peer: str, expected: str
) -> None:
    """A client is its network of the configured size; IPv4 in IPv6 is IPv4 (C12, C13, C15)."""
    with override_settings(RATELIMIT_APP=settings):
        assert expected == identity(ask(colour=colour, REMOTE_ADDR=peer), "ip")


@pytest.mark.parametrize("unix", [True, False])
@pytest.mark.parametrize("forwarded", [True, False])
def test_a_peer_when_it_is_a_socket_is_never_an_error(
    unix: bool, forwarded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Trusted, its header counts; else such requests share `ip:unknown`, and one line says what to do (C07)."""
    proxies = ["unix"] if unix else []
    with (
        override_settings(RATELIMIT_APP={"TRUSTED_PROXIES": proxies}),
        caplog.at_level(logging.WARNING, "ratelimit_app"),
    ):
        found = {identity(ask(REMOTE_ADDR="", **(PROXIED if forwarded else {})), "ip") for _ in range(3)}
    assert {"ip:203.0.113.80" if unix and forwarded else "ip:unknown"} == found
    assert (0 if unix and forwarded else 1) == caplog.text.count("ratelimit.address_unknown")


@pytest.mark.parametrize(
    ("peer", "proxies", "headers", "warnings"),
    [
        ("10.0.0.5", [], PROXIED["headers"], 1),
        ("10.0.0.5", ["10.0.0.0/8"], PROXIED["headers"], 0),
        ("10.0.0.5", ["10.0.0.0/8"], {"X-Forwarded-For": "junk"}, 0),
        ("::ffff:10.0.0.5", [], PROXIED["headers"], 1),
        ("10.0.0.5", [], {}, 0),
        ("8.8.8.8", [], PROXIED["headers"], 0),
    ],
)
def test_a_forwarding_header_when_its_peer_is_unlisted_and_private_is_told_once(
    peer: str, proxies: list[str], headers: dict[str, str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The likely mistake of a new installation is one line, not one for each request (C06)."""
    with (
        override_settings(RATELIMIT_APP={"TRUSTED_PROXIES": proxies}),
        caplog.at_level(logging.WARNING, "ratelimit_app"),
    ):
        for _ in range(3):
            identity(ask(REMOTE_ADDR=peer, headers=headers), "ip")
    assert warnings == caplog.text.count("ratelimit.proxy_unlisted")


@pytest.mark.parametrize(
    ("kinds", "with_user", "expected"),
    [
        (["ip"], True, [f"ip:{CLIENT}"]),
        (["user"], True, ["user:7"]),
        (["user"], False, []),
        (["device"], True, ["device:ab12"]),
        (["header:x-api-key"], True, ["header"]),
        (["param:absent", "session"], True, []),
        (["header", "nonsense:x"], True, []),
        ([], True, []),
    ],
)
def test_marks_when_asked_for_are_those_of_the_marked_kinds(
    kinds: list[str], with_user: bool, expected: list[str]
) -> None:
    """Only kinds that have a blacklist entry are looked at; a kind that nobody knows is no error."""
    made = ask(headers={"X-Device-Id": "ab12", "X-Api-Key": "s3cret"})
    facts = facts_of(made)
    facts._learned["user"] = "7"
    expected = [digested("header:x-api-key", "s3cret") if text == "header" else text for text in expected]
    assert expected == list(facts.mark_identities(Snapshot(marked_kinds=frozenset(kinds)), with_user))


def test_marks_when_the_client_is_a_network_are_of_the_network_and_the_address() -> None:
    """An IPv6 client is looked for under its /64 and under its full address."""
    facts = facts_of(ask(REMOTE_ADDR="2001:db8:1:2::9"))
    found = list(facts.mark_identities(Snapshot(marked_kinds=frozenset({"ip"})), with_user=True))
    assert ["ip:2001:db8:1:2::/64", "ip:2001:db8:1:2::9"] == found


@pytest.mark.parametrize(
    ("key", "fields", "with_user", "expected"),
    [
        ("ip", {"marked_kinds": frozenset({"ip"})}, True, []),
        ("user", {"marked_kinds": frozenset()}, True, ["user"]),
        ("user_or_ip", {"marked_kinds": frozenset()}, False, []),
        ("session+ip", {"marked_kinds": frozenset()}, False, ["session"]),
        ("ip", {"marked_kinds": frozenset({"user", "session"})}, True, ["user", "session"]),
        ("ip", {"marked_kinds": frozenset(), "allowed_users": {"user:1": NEVER}}, True, ["user"]),
    ],
)
def test_facts_when_nobody_needs_them_cost_nothing(
    key: str, fields: dict[str, Any], with_user: bool, expected: list[str]
) -> None:
    """User and session are learned only for a rule, a mark or an allowlist that asks for them, and once."""
    facts, snapshot = facts_of(ask()), Snapshot(**fields)
    needed = asked([rule(key)], snapshot, with_user)
    assert expected == list(facts.unknown(needed))
    for fact in expected:
        facts.learn(fact)
    assert [] == list(facts.unknown(needed))


def test_a_rule_with_a_callable_when_it_runs_needs_no_fact() -> None:
    """The callable reads the request itself."""
    made = Rule(
        name="g",
        slot="@g",
        rates=rule("ip").rates,
        sources=parse_sources("user"),
        key_function=lambda *_: "x",
    )
    assert () == asked([made], Snapshot(marked_kinds=frozenset()), with_user=True)


@pytest.mark.django_db
def test_the_facts_when_several_doors_ask_are_the_same_and_drf_knows_the_user() -> None:
    """All doors share one memory; the user is whom the last that knows says it is."""
    made, user = ask(), User.objects.create(username="u")
    facts = facts_of(made)
    facts.learn("user")
    assert facts.user_identity() is None
    drf = DrfRequest(made)
    drf.user = user
    made.user = AnonymousUser()
    assert facts is facts_of(drf) is facts_of(drf)
    facts.learn("user")
    assert f"user:{user.pk}" == facts.user_identity()
    assert facts is facts_of(made)
    assert f"user:{user.pk}" == facts.user_identity()


@pytest.mark.parametrize(
    "make", [lambda: {"headers": {"X-Api-Key": "s3cret\r\n\x1b[31m"}}, lambda: {"cookies": {"c": "s3cret\n"}}]
)
def test_a_log_when_a_denied_client_is_hostile_holds_no_secret_and_no_control(
    make: Callable[[], dict[str, Any]], rules: Any, caplog: pytest.LogCaptureFixture, valkey: Any
) -> None:
    """After a denial neither the log lines nor the names of the keys have the secret or raw controls (C26)."""
    key = "header:x-api-key" if "headers" in make() else "cookie:c"
    rules({"name": "secret", "rate": "0/m", "key": key}, {"name": "device", "rate": "0/m", "key": "device"})
    client = Client(headers={"X-Device-Id": "evil\x1b[31m"} | make().get("headers", {}))
    for name, value in make().get("cookies", {}).items():
        client.cookies[name] = value
    with caplog.at_level(logging.DEBUG):
        assert 429 == client.get("/plain/").status_code
    from ratelimit_app import offences

    offences.flush()
    names = b"\n".join(valkey.keys("*"))
    assert b"s3cret" not in names
    assert b"\x1b" not in names
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("ratelimit_app")]
    assert all("s3cret" not in line and line.isprintable() for line in ours)
    assert json.dumps(names.decode()).count("~") >= 1
