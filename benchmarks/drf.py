"""
How many requests a second a DRF view serves behind each throttle, with two worker processes.

Needs wrk, and granian or gunicorn; what is not there is skipped with a line saying so.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from benchmarks.servers import server

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
APPLICATION = "benchmarks.drf_site:application"
VARIANTS = {
    "none": "no throttle",
    "floor": "one raw EVALSHA and nothing else",
    "drf": "DRF AnonRateThrottle on django-redis",
    "ours": "RuleThrottle, one rule",
    "three": "RuleThrottle, three rules and marks",
}
# What we hold ourselves to: ratios to the requests a second of another variant, at least.
ASKED = {"ours": {"floor": 0.95, "drf": 1.3}, "three": {"drf": 1.15}}
START_TIMEOUT = 60.0


def commands(port: int) -> dict[str, list[str]]:
    """Give the servers by name, each with two worker processes of four threads."""
    return {
        "granian": [
            "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port), "--workers", "2",
            "--blocking-threads", "4", "--log-level", "error", APPLICATION,
        ],
        "gunicorn": [
            "gunicorn", "--bind", f"127.0.0.1:{port}", "--workers", "2", "--worker-class", "gthread",
            "--threads", "4", "--keep-alive", "30", "--log-level", "error", APPLICATION,
        ],
    }  # fmt: skip


def measured(rounds: int, seconds: int) -> dict[str, Any]:
    """Measure every server that is there, and say why the others are not."""
    found: dict[str, Any] = {"rounds": rounds, "seconds": seconds, "servers": {}, "skipped": {}}
    if not shutil.which("wrk"):
        found["skipped"] = {"DRF view": "wrk is not installed (Debian's package wrk)"}
        return found
    for name in commands(0):
        if find_spec(name) is None:
            found["skipped"][name] = "not installed"
            continue
        with server() as url, running(name, url) as address:
            _require_exact(address)
            found["servers"][name] = _rows(url, address, rounds, seconds)
    return found


@contextmanager
def running(name: str, url: str) -> Iterator[str]:
    """Run a server until the end of the block, and give its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", *commands(port)[name]],
        cwd=HERE.parent,
        env=os.environ | {"BENCH_REDIS_URL": url, "PYTHONPATH": str(HERE.parent)},
        start_new_session=True,
    )
    try:
        _wait_for(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"The server did not start within {START_TIMEOUT:.0f} s: what it says stands above.")


def _require_exact(address: str) -> None:
    """Exit unless every throttle lets five requests of a client pass and refuses the sixth, all in a second."""
    for name, label in VARIANTS.items():
        wanted = [200] * 5 + [200 if name == "none" else 429]
        # On a busy machine six requests may take longer than the second that the limit is for.
        tries = [_answers(address, name, f"192.0.2.{number}") for number in range(10)]
        if wanted not in tries:
            sys.exit(f"{label}: clients of 5/s were answered {tries}, expected {wanted}.")


def _answers(address: str, name: str, client: str) -> list[int]:
    headers = {"X-Forwarded-For": client, "X-Device-Id": client, "X-Session": client}
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    statuses = []
    for _ in range(6):
        connection.request("GET", f"/{name}", headers=headers)
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    return statuses


def _rows(url: str, address: str, rounds: int, seconds: int) -> dict[str, dict[str, Any]]:
    """Load every variant in each round, in an order that rotates; a round before the first warms up."""
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    refused = dict.fromkeys(VARIANTS, 0)
    names = list(VARIANTS)
    for number in range(-1, rounds):
        turn = max(number, 0) % len(names)
        for name in names[turn:] + names[:turn]:
            rate, not_ok = _load(f"{address}/{name}", seconds)
            refused[name] += not_ok
            if number >= 0:
                rates[name].append(rate)
        redis.Redis.from_url(url).flushdb()
    return {
        name: {
            "label": label,
            "requests_per_s": round(statistics.median(rates[name])),
            "ratio": {to: _ratio(rates[name], rates[to]) for to in ("none", "floor", "drf")},
            "refused": refused[name],
            "asked": ASKED.get(name, {}),
        }
        for name, label in VARIANTS.items()
    }


def _ratio(rates: list[float], others: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(rates, others, strict=True)), 3)


def _load(address: str, seconds: int) -> tuple[float, int]:
    """Give the answers a second, and how many requests were refused or lost."""
    command = ["wrk", "--threads", "1", "--connections", "16", "--duration", f"{seconds}s"]
    done = subprocess.run(
        [*command, "--script", str(HERE / "clients.lua"), address],
        capture_output=True,
        text=True,
        check=False,
    )
    words = done.stdout.rpartition("RESULT ")[2].split()
    if len(words) != 4:
        sys.exit(f"wrk failed on {address}: {done.stdout}{done.stderr}")
    requests, micros, refused, lost = map(int, words)
    if not requests:
        sys.exit(f"No request to {address} was answered, {lost} were lost.")
    return requests / micros * 1e6, refused + lost
