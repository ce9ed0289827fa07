"""`ratelimit_replay` tells who a rule would have denied, and nothing but that."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.urls import path

from ratelimit_app.models import Rule

ROOT = Path(__file__).resolve().parent.parent
FIXTURE = ROOT / "tests" / "fixtures" / "access-2015.log.gz"


def view(request):
    """Answer nothing."""
    return HttpResponse()


urlpatterns = [path("shop/<slug:slug>/grab/", view, name="grab"), path("about/", view, name="about")]


def line(
    second: int = 0, client: str = "203.0.113.9", request: str = "GET / HTTP/1.1", user: str = "-"
) -> str:
    """Write one line of a log."""
    return f'{client} - {user} [17/May/2015:10:05:{second:02} +0000] "{request}" 200 12 "-" "Browser/1"\n'


@pytest.fixture
def log(tmp_path):
    """Give a function that writes a log and returns its path."""

    def write(*lines: str, name: str = "access.log") -> str:
        target = tmp_path / name
        target.write_text("".join(lines), encoding="utf-8")
        return str(target)

    return write


def run(*args: str) -> tuple[int, str, str]:
    """Run the command in this process: exit status, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("ratelimit_replay", *args, stdout=out, stderr=err)
    except SystemExit as stop:
        return int(str(stop.code)), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def report(*args: str) -> dict[str, Any]:
    """Run the command for JSON."""
    found: dict[str, Any] = json.loads(run(*args, "--json")[1])
    return found


def misuse(*args: str) -> str:
    """Run the command in the wrong way; give its message."""
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("ratelimit_replay", *args, stdout=out)
    assert caught.value.returncode == 2
    assert out.getvalue() == ""
    return str(caught.value)


def program(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command as a program of its own."""
    command = [sys.executable, "-m", "django", "ratelimit_replay", *args]
    environ = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, input=stdin, capture_output=True, check=False, env=environ, cwd=ROOT, timeout=60
    )


def test_replay_of_the_fixture_as_json_has_every_promised_key():
    """The fixture's numbers for 30/m by ip, under the keys that users read."""
    found = report(str(FIXTURE), "--rate", "30/m", "--key", "ip")
    assert {
        "lines": 10_000,
        "broken": 1,
        "unmatched": 0,
        "identities": 1_753,
        "requests": 9_999,
        "denied": 456,
    } == {key: found[key] for key in ("lines", "broken", "unmatched", "identities", "requests", "denied")}
    assert ("2015-05-17T10:05:00Z", "2015-05-20T21:05:59Z") == (found["first"], found["last"])
    assert ("ip", "30/m", "sliding_window") == tuple(
        found["rule"][key] for key in ("key", "rate", "algorithm")
    )
    assert 31 == len(found["offenders"])
    assert 456 == sum(offender["denied"] for offender in found["offenders"])
    assert {"identity", "requests", "denied", "first_denied", "last_denied"} == set(found["offenders"][0])
    assert {"identity", "rate", "window_start", "window_end", "requests"} == set(found["busiest"][0])


def test_replay_of_the_fixture_for_people_names_the_worst_first():
    """People read who was denied, how often, when first and last, and the busiest windows."""
    status, out, err = run(str(FIXTURE), "--rate", "30/m", "--top", "2")
    assert (1, "") == (status, err)
    assert "denied               456  of 31 identities (4.6 % of the judged)" in out
    assert "Who would have been denied (the first 2 of 31)" in out
    rows = [row.split() for row in out.splitlines() if row.startswith("  ip:")]
    assert ["ip:158.16.205.107", "ip:52.150.85.255"] == [row[0] for row in rows[:2]]
    assert len(rows) == 4


def test_replay_when_nobody_is_denied_exits_with_0(log):
    """Status 0 is good: nobody would have been denied."""
    status, out, _ = run(log(line(0), line(30)), "--rate", "5/s")
    assert 0 == status
    assert "Nobody would have been denied." in out


def test_replay_as_a_program_exits_with_1_for_a_finding_and_2_for_misuse(log):
    """Scripts read the exit status; misuse writes nothing on stdout and no traceback."""
    busy = log(line(), line())
    assert 1 == program(busy, "--rate", "1/s").returncode
    for args in (
        [busy, "--rate", "1/month"],
        [busy],
        ["no-such.log", "--rate", "1/s"],
        [busy, "--rate", "1/s", "--top", "0"],
    ):
        done = program(*args)
        assert (2, b"") == (done.returncode, done.stdout)
        assert b"Traceback" not in done.stderr


def test_replay_of_the_standard_input_reads_plain_and_gzip():
    """`-` is the standard input, packed or not."""
    raw = (line() * 3).encode()
    for stdin in (raw, gzip.compress(raw)):
        done = program("-", "--rate", "1/s", "--json", stdin=stdin)
        assert (1, 2) == (done.returncode, json.loads(done.stdout)["denied"])


def test_replay_of_several_logs_judges_them_together(log):
    """The logs of several servers, or rotated ones in any order, are one log."""
    first, second = log(line(1), line(3), name="a.log"), log(line(0), line(2), name="b.log")
    assert 3 == report(first, second, "--rate", "1/m")["denied"]


def test_replay_with_several_rates_charges_all_or_none(log):
    """Several rates are one rule; each has its busiest windows."""
    found = report(log(line(0), line(1), line(3)), "--rate", "1/2s; 2/10s")
    assert 1 == found["denied"]
    assert "2/10s; 1/2s" == found["rule"]["rate"]
    assert [("2/10s", 3), ("1/2s", 2)] == [
        (window["rate"], window["requests"]) for window in found["busiest"]
    ]


def test_replay_with_filters_judges_only_what_they_cover(log):
    """A prefix is matched as the doors do: case and percent-encoding folded (C145), the query left out (C147)."""
    requests = [
        "GET /API/a HTTP/1.1",
        "POST /%61pi/b?c HTTP/1.1",
        "HEAD /api HTTP/1.1",
        "GET /?/api/ HTTP/1.1",
        "x",
    ]
    name = log(*(line(request=request) for request in requests))
    assert 3 == report(name, "--rate", "9/s", "--path-prefix", "/api/")["requests"]
    assert 1 == report(name, "--rate", "9/s", "--method", "post")["requests"]
    found = report(name, "--rate", "9/s", "--method", "get", "--path-prefix", "/api")
    assert (5, 0, 3, 2) == tuple(found[key] for key in ("lines", "broken", "unmatched", "requests"))


def test_replay_with_prefixes_counts_networks(log, settings):
    """The settings' prefixes make a client, unless the options say otherwise."""
    name = log(
        *(
            line(client=client)
            for client in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:192.0.2.1")
        )
    )
    assert 3 == report(name, "--rate", "9/s")["identities"]
    assert 2 == report(name, "--rate", "9/s", "--ipv6-prefix", "48")["identities"]
    settings.RATELIMIT_APP = {**getattr(settings, "RATELIMIT_APP", {}), "IPV6_PREFIX": 128}
    assert 4 == report(name, "--rate", "9/s")["identities"]


@pytest.mark.django_db
@pytest.mark.urls(__name__)
@pytest.mark.parametrize(
    ("route", "methods", "requests"),
    [
        ("grab", "", 3),
        ("/shop/", "", 3),
        ("grab", "POST", 2),
        ("/about/", "", 1),
        ("", "", 4),
        ("", "OPTIONS", 1),
    ],
)
def test_replay_of_an_admin_rule_takes_its_route_and_methods(log, route, methods, requests):
    """A view's name is resolved by the project's URLs, a prefix by the path; blank methods are all but OPTIONS."""
    Rule.objects.create(name="sale", rate="1/m", key="user_or_ip", route=route, methods=methods)
    asked = [
        "POST /shop/a/grab/",
        "POST /shop/b/grab/",
        "GET /shop/c/grab/?x=1",
        "GET /about/",
        "OPTIONS /shop/a/grab/",
    ]
    name = log(
        *(line(request=f"{request} HTTP/1.1", user="alice") for request in asked), line(request="garbage")
    )
    found = report(name, "--rule", "sale")
    assert (requests, requests - 1) == (found["requests"], found["denied"])
    assert ("sale", "user_or_ip") == (found["rule"]["name"], found["rule"]["key"])
    if found["denied"]:
        assert "user:alice" == found["offenders"][0]["identity"]


@pytest.mark.django_db
def test_replay_of_a_rule_with_a_scope_says_that_no_log_has_it(log):
    """A scope lives in code: the lines are judged, and a note says so."""
    Rule.objects.create(name="scoped", rate="1/m", key="ip", scope="login")
    status, _, err = run(log(line(), line()), "--rule", "scoped")
    assert 1 == status
    assert "the scope 'login' is set in code" in err


@pytest.mark.django_db
def test_replay_of_an_unknown_rule_names_those_that_are_there(log):
    """A wrong name gets the right ones."""
    Rule.objects.create(name="sale", rate="1/m", key="ip")
    assert "No rule is named 'sail' (rules: 'sale')" in misuse(log(line()), "--rule", "sail")


@pytest.mark.django_db
def test_replay_of_a_rule_by_a_key_that_no_log_holds_is_misuse(log):
    """A session is in no log: refused, with what is."""
    Rule.objects.create(name="by-session", rate="1/m", key="session")
    assert "'session' is not in an access log: expected ip, user" in misuse(
        log(line()), "--rule", "by-session"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--rate", "1/month"], "'1/month' is not a rate"),
        (["--rate", "99999/s"], "sliding_window takes limits up to 10,000"),
        (["--rate", "1/s", "--key", "device"], "'device' is not in an access log"),
        (["--rate", "1/s", "--key", "nonsense"], "is not a key source"),
        (["--rate", "1/s", "--path-prefix", "api"], "expected one that begins with '/'"),
        (["--rate", "1/s", "--method", "GRAB"], "'GRAB' is no HTTP method"),
        (["--rule", "sale", "--key", "ip"], "--key goes with --rate"),
    ],
)
def test_replay_of_a_wrong_question_is_misuse_with_the_remedy(log, args, message):
    """What cannot be asked is refused before a log is read, with what to do."""
    assert message in misuse(log(line()), *args)


@pytest.mark.parametrize("name", ["no-such.log", ".", "\x1b[31m.log", "nul\0.log"])
def test_replay_of_a_log_that_cannot_be_read_is_misuse(name):
    """A missing file, a directory, an impossible name: refused, and nothing of the name reaches the terminal raw."""
    message = misuse(str(FIXTURE), name, "--rate", "1/s")
    assert f"{name!r} cannot be read" in message
    assert message.isprintable()


def test_replay_of_a_hostile_log_prints_no_control_characters(log):
    """Escape sequences in a log never reach the terminal."""
    hostile = ["\x1b]0;title\x07", "\x9b31m", "\u202eevil", "a%0Ab"]
    name = log(*(line(client=client.replace(" ", ""), user=client) for client in hostile for _ in range(2)))
    for key in ("ip", "user", "user+ip"):
        status, out, _ = run(name, "--rate", "1/m", "--key", key)
        assert 1 == status
        assert all(text.isprintable() for text in out.splitlines())
        assert "%1B]0;title%07" in out


def test_replay_to_a_stream_without_the_characters_escapes_them(log):
    """A terminal that knows ASCII alone gets a report all the same."""
    name = log(line(user="zoë"), line(user="zoë"))
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with pytest.raises(SystemExit):
        call_command("ratelimit_replay", name, "--rate", "1/m", "--key", "user", stdout=out)
    out.flush()
    assert b"user:zo\\xeb" in out.buffer.getvalue()


def test_replay_of_something_else_than_a_log_says_what_is_wrong(tmp_path):
    """Random bytes are broken lines, and a note says that nothing was judged."""
    target = tmp_path / "noise"
    target.write_bytes(bytes(range(256)) * 40)
    status, out, err = run(str(target), "--rate", "1/s", "--json")
    found = json.loads(out)
    assert (0, 0) == (status, found["requests"])
    assert found["lines"] == found["broken"] > 0
    assert (None, None, [], []) == tuple(found[key] for key in ("first", "last", "offenders", "busiest"))
    assert "in neither common nor combined format" in err


def test_replay_of_a_gzip_log_that_breaks_off_judges_what_is_there(tmp_path):
    """A damaged log is told of, by name, and judged as far as it goes."""
    target = tmp_path / "cut.log.gz"
    target.write_bytes(gzip.compress(line().encode() * 5)[:-4])
    status, out, err = run(str(target), "--rate", "1/m", "--json")
    assert (1, 4, 1) == (status, json.loads(out)["denied"], json.loads(out)["broken"])
    assert "cut.log.gz': the compressed data is damaged" in err


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_replay_of_a_long_log_shows_progress_on_a_terminal_alone(tmp_path):
    """Long work shows its progress where somebody watches, and nowhere else."""
    target = tmp_path / "long.log"
    target.write_text("".join(line(client=f"host-{number}") for number in range(20_001)))
    watched, unwatched = Terminal(), io.StringIO()
    for err in (watched, unwatched):
        call_command("ratelimit_replay", str(target), "--rate", "1/s", stdout=io.StringIO(), stderr=err)
    assert "20,000 lines read" in watched.getvalue()
    assert watched.getvalue().endswith("\r")
    assert "" == unwatched.getvalue()
