"""The demo from outside: what it prints, how it exits, and what it leaves behind."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from typing import IO

import pytest

KEYS = {
    "groups",
    "limit",
    "max_in_window",
    "promoted",
    "genuine_denied",
    "server_errors",
    "duration_s",
    "redis",
}


def _wait_for(stream: IO[str] | None, text: str) -> str:
    assert stream is not None
    for line in stream:
        if text in line:
            return line
    return pytest.fail(f"the demo ended before it said {text!r}")


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the demo under test
        return str(answer.read(), "utf-8")


def test_demo_when_run_then_reports_a_good_sale_and_leaves_nothing(demo):
    """A short sale over real HTTP: no rule broken, no genuine user refused, offenders banned, all processes gone."""
    finished = demo.run("manage.py", "demo", "--json", "--seconds", "8", timeout=120)
    report = json.loads(finished.stdout)

    assert (finished.returncode, report["findings"]) == (0, []), finished.stderr
    assert report.keys() >= KEYS
    assert 0 < report["max_in_window"] <= report["limit"]
    assert (report["genuine_denied"], report["server_errors"], report["unanswered"]) == (0, 0, 0)
    assert report["groups"]["genuine users"]["got"] > 100
    assert report["groups"]["flood"]["limited"] > 0
    assert (report["groups"]["browsing"]["limited"] > 0, report["groups"]["paying"]["limited"]) == (True, 0)
    assert 0 < report["shared"]["max_in_window"] <= report["shared"]["limit"]
    assert "ip:203.0.113.66" in {banned["identity"] for banned in report["promoted"]}
    assert all(banned["got_403"] == banned["asked_after"] for banned in report["promoted"])
    assert report["redis"]["where"] == "embedded"
    assert "demo only" in finished.stderr
    assert (demo.left_running(), demo.left_behind()) == ([], [])


def test_demo_when_interrupted_during_the_sale_then_leaves_nothing(demo):
    """Ctrl-C in the middle of the load ends servers, worker and Redis, and removes the directory."""
    with demo.start("manage.py", "demo", "--json", "--seconds", "60") as process:
        _wait_for(process.stderr, "asked so far")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=40)

    assert (process.returncode, out) == (130, "")
    assert (demo.left_running(), demo.left_behind()) == ([], [])


def test_demo_when_serving_then_page_feed_and_admin_answer_until_it_is_ended(demo):
    """`make run`: the address is printed, everything on it works, and SIGTERM ends it."""
    with demo.start("manage.py", "demo", "--serve", "--port", "0") as process:
        line = _wait_for(process.stdout, "The sale is open at")
        url = re.findall(r"http://[\d.:]+/", line)[0]
        page, feed, login = _read(url), json.loads(_read(url + "sale.json")), _read(url + "admin/login/")
        assets = [_read(url.rstrip("/") + path) for path in re.findall(r"/static/shop/[\w.]+", page)]
        process.terminate()
        process.communicate(timeout=40)

    assert (len(feed["seconds"]), feed["coupons"][0]["slug"], len(assets)) == (60, "midnight", 2)
    assert "csrfmiddlewaretoken" in login
    assert (process.returncode, demo.left_running()) == (0, [])


def test_demo_when_its_port_is_taken_then_says_so(demo):
    """A clear message and status 1, not a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        finished = demo.run("manage.py", "demo", "--port", port)

    assert finished.returncode == 1
    assert f"Port {port} of 127.0.0.1 is not to be had" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_demo_when_the_given_redis_is_away_then_says_so(demo):
    """REDIS_URL is taken at its word: no silent change to the embedded server."""
    finished = demo.run("manage.py", "demo", REDIS_URL="redis://127.0.0.1:1/0")

    assert finished.returncode == 1
    assert "No Redis answers at REDIS_URL" in finished.stderr
    assert demo.left_behind() == []
