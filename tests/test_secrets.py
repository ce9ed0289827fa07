"""Secret and personal values are written nowhere but as digests: not in Redis, rows, logs, signals, pages or answers."""

from __future__ import annotations

import json
import logging
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import CommandError, call_command
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path

from ratelimit_app import (
    acquire,
    block,
    check,
    offences,
    peek,
    promotion,
    publishing,
    signals,
    snapshot_cache,
    unblock,
)
from ratelimit_app.decorators import ratelimit
from ratelimit_app.models import BlacklistEntry, PromotionPolicy, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "s3cr3t-VALUE"
KINDS = ["header:x-api-key", "header:authorization", "cookie:cart", "param:token", "field:email", "session"]
WRITTEN = [(f"{SECRET}-{n}-{kind.partition(':')[0]}") for n, kind in enumerate(KINDS)]
# Django keeps sessions under their keys, and users' own tables are theirs.
FOREIGN = {"django_session"}

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def page(request: HttpRequest) -> HttpResponse:
    """A page whose view asks again."""
    decision = check(request, cost=2)
    return HttpResponse(f"{decision.reason}")


decorated = ratelimit(key="ip+header:authorization+field:email", rate="2/m")(page)
called = ratelimit(key=lambda group, request: request.headers["X-Tenant"], rate="2/m")(page)
urlpatterns = [
    path("page/", page),
    path("decorated/", decorated),
    path("called/", called),
    path("", include("tests.urls")),
]


def session_cookie() -> str:
    """Make a session whose key is one of the secrets."""
    made = SessionStore()
    made["x"] = 1
    made.save()
    assert made.session_key
    return made.session_key


def everything_in(valkey: Any) -> bytes:
    """Give the name and the value of every key, whatever its type."""
    read: dict[str, Any] = {
        "string": valkey.get,
        "hash": valkey.hgetall,
        "zset": lambda key: valkey.zrange(key, 0, -1, withscores=True),
        "set": valkey.smembers,
        "list": lambda key: valkey.lrange(key, 0, -1),
        "stream": valkey.xrange,
    }
    kinds = {key: valkey.type(key).decode() for key in valkey.scan_iter()}
    return b"\n".join(key + b" " + repr(read[kind](key)).encode() for key, kind in kinds.items())


def everything_stored() -> str:
    """Give all rows of all tables, but for those that are Django's own."""
    said = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            if table not in FOREIGN:
                cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")  # noqa: S608 - of our own database
                said.append(f"{table} {cursor.fetchall()!r}")
    return "\n".join(said)


def command(name: str, *args: str) -> str:
    """Run a command; give what it printed, its complaint included."""
    out, err = StringIO(), StringIO()
    try:
        call_command(name, *args, stdout=out, stderr=err)
    except (CommandError, SystemExit) as error:
        return f"{out.getvalue()}{err.getvalue()}{error}"
    return out.getvalue() + err.getvalue()


def answers(session: str) -> list[str]:
    """Send the secrets by every door until they are denied; give all answers, headers and bodies."""
    client = Client(headers={"X-Api-Key": WRITTEN[0], "Authorization": f"Bearer {WRITTEN[1]}"})
    client.cookies["cart"], client.cookies["sessionid"] = WRITTEN[2], session
    found = []
    for accept in ("application/json", "text/html"):
        for url in ("/page/", "/decorated/", "/api/scoped/"):
            for _ in range(4):
                answer = client.post(
                    f"{url}?token={WRITTEN[3]}",
                    {"email": f"{WRITTEN[4]}@example.org"},
                    headers={"accept": accept},
                )
                found.append(f"{answer.status_code} {answer.headers} {answer.content.decode()}")
    assert {"200", "429"} <= {text[:3] for text in found}
    return found


def blocking(session: str) -> list[str]:
    """List, look for and lift every secret by functions, commands and the admin; give all that they say."""
    values = [
        WRITTEN[0],
        f"Bearer {WRITTEN[1]}",
        WRITTEN[2],
        WRITTEN[3],
        f"{WRITTEN[4]}@example.org",
        session,
    ]
    admin = Client()
    admin.force_login(get_user_model().objects.create_superuser("boss", password="x"))
    said = []
    for kind, value in zip(KINDS, values, strict=True):
        form = {"kind": kind, "value": value, "reason": "by form", "expires_at_0": "", "expires_at_1": ""}
        said.append(
            admin.post("/admin/ratelimit_app/blacklistentry/add/", form, follow=True).content.decode()
        )
        entry = BlacklistEntry.objects.get(kind=kind)
        said += [repr(entry), str(entry), repr(block(f"{kind}:{value}", reason="by function"))]
        said.append(command("ratelimit_block", f"{kind}:{value}", "--json"))
        said.append(command("ratelimit_block", f"{kind}:{value}", "--dry-run"))
        for url in ("", f"{entry.pk}/change/", f"{entry.pk}/history/", f"{entry.pk}/delete/"):
            said.append(admin.get(f"/admin/ratelimit_app/blacklistentry/{url}").content.decode())
        said.append(command("ratelimit_unblock", f"{kind}:{value}", "--json"))
        block(f"{kind}:{value}", reason="again")
        unblock(f"{kind}:{value}")
        if kind != "session":
            said += [repr(acquire(f"{kind}:{value}", "1/m", group="g")) for _ in range(2)]
            said.append(repr(peek(f"{kind}:{value}", "1/m", group="g")))
        block(f"{kind}:{value}", reason="for good")
    said += [command("ratelimit_sync", "--json"), command("ratelimit_doctor", "--json")]
    return said


def without(value: str, said: list[str]) -> list[str]:
    """Give what holds a value, cut short for the message."""
    return [text[:300] for text in said if value in text]


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """All that our signals say, but for the request, which is the client's own."""
    said: list[str] = []

    def listen(**told: Any) -> None:
        said.append(repr({name: value for name, value in told.items() if name not in {"signal", "request"}}))

    names = ("request_denied", "identity_blocked", "identity_unblocked", "snapshot_published")
    for name in names:
        getattr(signals, name).connect(listen, weak=False)
    yield said
    for name in names:
        getattr(signals, name).disconnect(listen)


def publish_rules() -> None:
    """Limit by each kind of secret, by all together, and ban who is denied."""
    for number, kind in enumerate([*KINDS, "+".join(["ip", *KINDS])]):
        Rule.objects.create(name=f"r{number}", key=kind, rate="3/m")
        Rule.objects.create(name=f"s{number}", key=kind, rate="3/m", scope="scoped")
    PromotionPolicy.objects.create(
        name="p", kinds=",".join(KINDS), threshold=1, find_period=60, block_period=60, enabled=True
    )
    publishing.sync()
    snapshot_cache.refresh()


def promoting() -> list[str]:
    """Ban who was denied; give the report and the rows."""
    offences.flush()
    said = [json.dumps(promotion.promote_repeat_offenders().as_dict(), default=str)]
    said += [repr(row) for row in BlacklistEntry.objects.values()]
    assert len(said) > 1
    BlacklistEntry.objects.all().delete()
    return said


def test_a_secret_when_it_was_sent_listed_and_denied_is_written_nowhere(
    settings: Any, valkey: Any, caplog: pytest.LogCaptureFixture, heard: list[str]
) -> None:
    """C26: keys and values in Redis, rows, log lines, signals, admin pages, commands, headers and bodies: only digests."""
    settings.ROOT_URLCONF = "tests.test_secrets"
    session = session_cookie()
    publish_rules()
    with caplog.at_level(logging.DEBUG):
        said = answers(session) + promoting() + blocking(session)
    logged = [f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records]
    kept = [everything_in(valkey).decode(errors="replace"), everything_stored()]
    assert len(heard) > 10
    assert {kind for kind in KINDS if f"{kind}:~" in kept[0]} == set(KINDS)
    for secret in (SECRET, SECRET.lower(), session):
        assert [] == without(secret, [*said, *heard, *logged, *kept])


def test_a_value_of_a_callable_when_written_is_escaped_and_short(
    settings: Any, valkey: Any, caplog: Any
) -> None:
    """What a project's callable gives is readable, as the project made it: without controls, 64 characters at most."""
    settings.ROOT_URLCONF = "tests.test_secrets"
    with caplog.at_level(logging.DEBUG):
        found = [
            Client().get("/called/", headers={"X-Tenant": "a\x1b{}" + "b" * 500}).status_code
            for _ in range(3)
        ]
    assert [200, 200, 429] == found
    (key,) = valkey.keys("rl:1:{key:*}:*")
    identity = key.decode()[len("rl:1:{") :].partition("}")[0]
    assert identity.startswith("key:a%1B%7B%7Dbbb")
    assert len(identity) == len("key:") + 64
    assert b"\x1b" not in everything_in(valkey)
