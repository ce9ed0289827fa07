"""Fields of bodies: read whoever has read before, without harm to whoever reads after."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import MemoryFileUploadHandler, TemporaryFileUploadHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client, RequestFactory
from django.test.client import MULTIPART_CONTENT
from django.urls import path
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_app.bodies import MAX_BODY
from ratelimit_app.decorators import ratelimit
from ratelimit_app.throttling import RuleThrottle

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = "ratelimit_app.middleware.RateLimitMiddleware"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
PICTURE = b"\x89PNG\r\n\x00\xff" * 500


def limited(view: Any) -> Any:
    """Limit a view by account, and loosely by address, so that nobody escapes by changing the account."""
    return ratelimit(key="field:email", rate="2/m")(ratelimit(key="ip", rate="1000/m")(view))


def _files(request: HttpRequest) -> Any:
    return request.FILES.items()


def _told(request: HttpRequest) -> HttpResponse:
    files = {name: len(found.read()) for name, found in _files(request)}
    return JsonResponse({"email": request.POST.get("email"), "files": files, "body": len(request.body)})


def telling(request: HttpRequest) -> HttpResponse:
    """Read the form and the files, never the body."""
    return JsonResponse({"email": request.POST.get("email"), "files": [*request.FILES]})


def reading(request: HttpRequest) -> HttpResponse:
    """Read the form, the files and the body."""
    return _told(request)


def handling(request: HttpRequest) -> HttpResponse:
    """Set upload handlers of its own, then read the form."""
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    request.upload_handlers.insert(0, MemoryFileUploadHandler(request))
    return csrf_protect(_told)(request)


def streaming(request: HttpRequest) -> HttpResponse:
    """Read the body piece by piece."""
    read = request.read(7) + request.readline() + b"".join(iter(lambda: request.read(100), b""))
    return JsonResponse({"read": len(read), "more": len(request.read())})


def parsing(request: HttpRequest) -> HttpResponse:
    """Parse JSON."""
    return JsonResponse({"email": json.loads(request.body)["email"]})


async def areading(request: HttpRequest) -> HttpResponse:
    """Read the form, the files and the body, async."""
    return _told(request)


class ReadsTheBody(BaseAuthentication):
    """An authentication that finds its token in the body, before any throttle is asked."""

    def authenticate(self, request: Any) -> None:
        """Read the data."""
        request.data.get("token")


class Api(APIView):
    """An API whose authentication reads the body."""

    authentication_classes: Any = [ReadsTheBody]
    throttle_classes = [RuleThrottle]
    throttle_scope = "api"

    def post(self, request: Any) -> Response:
        """Tell what came."""
        files = {name: len(found.read()) for name, found in request.FILES.items()}
        return Response({"email": request.data.get("email"), "files": files})

    put = patch = post


class Plain(Api):
    """An API whose authentication reads nothing."""

    authentication_classes = []


def reads_before(how: str) -> Callable[[Any], Any]:
    """Make a middleware that reads the body before ours does."""

    def middleware(get_response: Any) -> Any:
        def handle(request: HttpRequest) -> Any:
            getattr(request, how)
            return get_response(request)

        return handle

    return middleware


reads_post, reads_body = reads_before("POST"), reads_before("body")
urlpatterns = [
    path("ruled/telling/", telling),
    path("ruled/reading/", reading),
    path("ruled/handling/", csrf_exempt(handling)),
    path("ruled/streaming/", streaming),
    path("ruled/parsing/", parsing),
    path("ruled/areading/", areading),
    path("ruled/api/", Plain.as_view()),
    path("decorated/telling/", limited(telling)),
    path("decorated/reading/", limited(reading)),
    path("decorated/handling/", csrf_exempt(limited(handling))),
    path("decorated/streaming/", limited(streaming)),
    path("decorated/parsing/", limited(parsing)),
    path("decorated/areading/", limited(areading)),
    path("throttled/api/", Api.as_view()),
    path("throttled/plain/", Plain.as_view()),
]


@pytest.fixture(autouse=True)
def _project(settings: Any, rules: Any) -> None:
    """Rules for the pages below /ruled/, and for the API that is throttled."""
    settings.ROOT_URLCONF = "tests.test_bodies"
    rules(
        {"name": "page", "rate": "2/m", "key": "field:email", "route": "/ruled/"},
        {"name": "api", "rate": "2/m", "key": "field:email", "scope": "api", "route": "/throttled/"},
    )


def upload(email: str) -> dict[str, Any]:
    """Give a form with a picture."""
    return {"email": email, "picture": SimpleUploadedFile("p.png", PICTURE)}


def posts(url: str, send: Callable[[str], dict[str, Any]], client: Any = None) -> list[Any]:
    """Post for one account three times, from three addresses, then for another; give the answers."""
    made = client or Client()
    return [
        made.post(url, **send(email), REMOTE_ADDR=f"203.0.113.{n}")
        for n, email in enumerate(("a@x", "A@x ", "a@x", "b@x"))
    ]


def codes(answers: list[Any]) -> list[int]:
    """Give the statuses."""
    return [answer.status_code for answer in answers]


URLENCODED: dict[str, Any] = {"content_type": "application/x-www-form-urlencoded"}
KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "multipart": lambda email: {"data": {"email": email}},
    "upload": lambda email: {"data": upload(email)},
    "urlencoded": lambda email: {"data": f"email={email.replace('@', '%40')}", **URLENCODED},
}
ACCOUNTS = [200, 200, 429, 200]


@pytest.mark.parametrize("door", ["ruled", "decorated"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "place", ["no CSRF", "CSRF before", "CSRF after", "read before: POST", "read before: body"]
)
def test_a_field_when_somebody_reads_first_is_read_all_the_same(
    door: str, kind: str, place: str, settings: Any
) -> None:
    """Three addresses try one account: the third is 429, wherever CSRF or another middleware reads; the view gets all."""
    at = settings.MIDDLEWARE.index(OURS)
    first = {"CSRF before": [CSRF], "read before: POST": ["tests.test_bodies.reads_post"]}
    first["read before: body"] = ["tests.test_bodies.reads_body"]
    last = {"CSRF after": [CSRF]}
    settings.MIDDLEWARE = [*settings.MIDDLEWARE[:at], *first.get(place, []), OURS, *last.get(place, [])]
    client = Client(enforce_csrf_checks="CSRF" in place and "no" not in place)
    headers = {}
    if client.handler.enforce_csrf_checks:
        client.cookies["csrftoken"] = "a" * 32
        headers = {"headers": {"X-CSRFToken": "a" * 32}}
    answers = posts(f"/{door}/telling/", lambda email: KINDS[kind](email) | headers, client)
    assert ACCOUNTS == codes(answers)
    assert ["picture"] * (kind == "upload") == answers[3].json()["files"]


@pytest.mark.parametrize("door", ["ruled", "decorated"])
@pytest.mark.parametrize("view", ["reading", "handling"])
def test_an_upload_when_a_field_rule_looks_reaches_the_view_whole(door: str, view: str) -> None:
    """Form, file and body are there; handlers that the view sets are taken, before anything was uploaded."""
    answers = posts(f"/{door}/{view}/", lambda email: {"data": upload(email)})
    assert ACCOUNTS == codes(answers)
    assert [({"picture": len(PICTURE)}, "b@x")] == [(answers[3].json()["files"], answers[3].json()["email"])]
    assert answers[3].json()["body"] > len(PICTURE)


@pytest.mark.parametrize("door", ["ruled", "decorated"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_view_when_it_streams_the_body_gets_every_byte(door: str, kind: str) -> None:
    """`read`, `readline` and the end of the stream, after our copy."""
    sizes = []
    for email in ("a@x", "b@x"):
        answer = Client().post(f"/{door}/streaming/", **KINDS[kind](email))
        sizes.append((answer.json()["read"], answer.json()["more"]))
    assert all(read > len("email=a@x") - 1 and more == 0 for read, more in sizes)
    sent = Client().post(f"/{door}/streaming/", b"email=c%40x&n=" + b"1\n" * 500, **URLENCODED)
    assert {"read": len(b"email=c%40x&n=") + 1_000, "more": 0} == sent.json()


@pytest.mark.parametrize("door", ["ruled", "decorated"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_field_when_the_project_is_async_is_read(door: str, kind: str) -> None:
    """The same under ASGI, whose bodies come whole."""

    class Colour:
        @staticmethod
        def post(url: str, REMOTE_ADDR: str, **sent: Any) -> Any:  # noqa: N803 - as Django's client has it
            return async_to_sync(AsyncClient().post)(url, **sent)

    answers = posts(f"/{door}/areading/", KINDS[kind], Colour)
    assert ACCOUNTS == codes(answers)
    assert "b@x" == answers[3].json()["email"]


class Exactly:
    """A client that sends bytes as they are: Django's would write them in the charset that is named."""

    @staticmethod
    def post(url: str, data: Any, content_type: str = "", **sent: Any) -> Any:
        """Post."""
        if isinstance(data, dict):
            return Client().post(url, data, content_type=content_type or MULTIPART_CONTENT, **sent)
        data = data if isinstance(data, bytes) else data.encode()
        return Client(raise_request_exception=False).generic(
            "POST", url, data, content_type=content_type, **sent
        )


DRF_KINDS = KINDS | {
    "json": lambda email: {"data": {"email": email}, "content_type": "application/json"},
    "json, any type": lambda email: {"data": json.dumps({"email": email}), "content_type": "*/*"},
    "json, wild": lambda email: {"data": json.dumps({"email": email}), "content_type": "application/*"},
    "json, utf-7": lambda email: {
        "data": json.dumps({"email": email}).replace("A", "+AEE-"), "content_type": "application/json; charset=utf-7",
    },
    "json, latin-1": lambda email: {
        "data": json.dumps({"email": email, "x": "é"}, ensure_ascii=False).encode("latin-1"),
        "content_type": "application/json; charset=iso-8859-1",
    },
}  # fmt: skip


@pytest.mark.parametrize("url", ["/ruled/api/", "/throttled/api/", "/throttled/plain/"])
@pytest.mark.parametrize("kind", DRF_KINDS)
@pytest.mark.parametrize("is_bare", [False, True])
def test_a_field_when_drf_reads_it_is_what_drf_reads(
    url: str, kind: str, is_bare: bool, settings: Any
) -> None:
    """Whatever type and charset a client names: the rule counts the value that the API gets, also once DRF has read it."""
    if is_bare:
        settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != OURS]
        url = url.replace("/ruled/api/", "/throttled/api/")
    answers = posts(url, DRF_KINDS[kind], Exactly)
    assert ACCOUNTS == codes(answers)
    assert "b@x" == answers[3].json()["email"]


@pytest.mark.parametrize("method", ["put", "patch"])
def test_a_field_when_the_method_is_not_post_is_read(method: str) -> None:
    """Django parses forms of POST alone; DRF takes them from any method."""
    found = [
        getattr(Client(), method)(
            "/throttled/plain/", "email=a%40x", REMOTE_ADDR=f"203.0.113.{n}", **URLENCODED
        )
        for n in range(3)
    ]
    assert [200, 200, 429] == codes(found)
    assert "a@x" == found[0].json()["email"]


# Two bodies that mean the same, for the rule and for the view.
SAME: list[tuple[str, str]] = [
    ('{"email": "a"}', '{"email": "x", "email": "A"}'),
    ('{"email": "a"}', '{"em\\u0061il": "\\u0061"}'),
    ('{"email": 7}', '{"email": "7"}'),
    ('{"email": {"b": 1, "a": [2]}}', '{"email": {"a": [2], "b": 1}}'),
    ('{"email": true}', '{"email":    true , "y": []}'),
    ('{"email": ["a", "b"]}', '{"email": ["a","b"]}'),
]
OTHER = [
    ('{"email": "a"}', '{"email": ["a"]}'),
    ('{"email": [1, 2]}', '{"email": [2, 1]}'),
    ('{"email": 7}', '{"email": 8}'),
]


@pytest.mark.parametrize(
    ("one", "two", "code"), [(*pair, 429) for pair in SAME] + [(*pair, 200) for pair in OTHER]
)
def test_json_when_written_otherwise_is_the_same_value(one: str, two: str, code: int) -> None:
    """Duplicates, escapes, blanks and the order of keys make no new account; other values do."""
    sent = [one, one, two]
    found = [
        Client().post("/ruled/parsing/", body, content_type="application/json", REMOTE_ADDR=f"203.0.113.{n}")
        for n, body in enumerate(sent)
    ]
    assert [200, 200, code] == codes(found)


BROKEN: list[tuple[bytes, str]] = [
    (b"{", "application/json"),
    (b"\xff", "application/json"),
    (b"\xff{", "*/*"),
    (b"nonsense", "multipart/form-data; boundary=x"),
    (b"nonsense", "multipart/form-data"),
    (b"nonsense", "multipart/*"),
    (b'--x\r\nContent-Disposition: form-data; name="email"\r\n\r\na', "multipart/form-data; boundary=x"),
    (b'--x\r\nContent-Disposition: form-data; name="email"; filename="email"\r\n\r\na\r\n--x--', "multipart/form-data; boundary=x"),
    (b"email=a", "application/x-www-form-urlencoded; charset=nonsense"),
    (b"email=%ff%fe", "application/x-www-form-urlencoded; charset=utf-16"),
    (b"&".join(b"f%d=1" % n for n in range(2_000)), "application/x-www-form-urlencoded"),
    (json.dumps({"email": "["}).replace('"["', "[" * 900 + "]" * 900).encode(), "application/json"),
    (b'{"email": "a"}', "application/json; charset=nonsense"),
]  # fmt: skip


@pytest.mark.parametrize("url", ["/ruled/streaming/", "/decorated/streaming/", "/throttled/plain/"])
@pytest.mark.parametrize(("body", "kind"), BROKEN, ids=range(len(BROKEN)))
def test_a_body_when_broken_is_limited_and_no_error_of_ours(url: str, body: bytes, kind: str) -> None:
    """What cannot be read is somebody's all the same: two a minute, the view or DRF says what is wrong (C27)."""
    found = codes([Exactly.post(url, body, kind) for _ in range(3)])
    assert 429 == found[2]
    assert set(found[:2]) <= {200, 400, 415}


@pytest.mark.parametrize(
    "kind", ["application/json", "*/*", "multipart/mixed; boundary=x", "multipart/form-data"]
)
@pytest.mark.parametrize("url", ["/ruled/reading/", "/decorated/reading/", "/throttled/plain/"])
def test_a_body_when_over_the_bound_is_413_whatever_it_is_called(url: str, kind: str, valkey: Any) -> None:
    """Padding hides no field, and is not charged."""
    body = b'{"email": "a"}' + b" " * MAX_BODY
    answer = Client().post(url, body, content_type=kind)
    assert (413, []) == (answer.status_code, valkey.keys("rl:1:{*}:*"))


def test_a_chunked_body_under_wsgi_is_what_django_sees_of_it() -> None:
    """Without a length Django reads nothing, and so do we: the address counts, the view has no fields either."""
    made = {
        "wsgi.input": io.BytesIO(b"email=a"),
        "CONTENT_TYPE": URLENCODED["content_type"],
        "CONTENT_LENGTH": "",
    }
    client = Client()
    found = []
    for _ in range(3):
        environ = RequestFactory().post("/ruled/reading/").environ | made
        found.append(
            client.generic("POST", "/ruled/reading/", b"", **{k: v for k, v in environ.items() if k in made})
        )
    assert [200, 200, 429] == codes(found)
    assert found[0].json()["email"] is None
