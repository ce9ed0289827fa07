"""Who keeps asking after the limit is turned away for a while: from real denials to a ban, by a real worker."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from ratelimit_app import offences, promotion, snapshot_cache
from ratelimit_app.models import BlacklistEntry
from ratelimit_app.schedule import BEAT_SCHEDULE
from tests.beside import child_environment
from tests.celery_app import make_app
from tests.offending import make_policy, make_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.django_db(transaction=True)

WORKER = [sys.executable, "-m", "celery", "-A", "tests.celery_app", "worker", "-B", "--pool", "solo"]
PATIENCE = 20


@pytest.fixture
def worker(settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker with beat, on the databases and the server of this test."""
    log = settings.DATA / "worker.log"
    with log.open("wb") as out:
        command = [*WORKER, "--loglevel", "INFO"]
        process = subprocess.Popen(command, env=child_environment(), stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    text = log.read_text(errors="replace")
    assert "Traceback" not in text, text


def until(condition: Callable[[], Any]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def status(path: str = "/plain/", address: str = "203.0.113.9") -> int:
    """Ask for a page, and give the status of the answer."""
    return Client(raise_request_exception=False).get(path, REMOTE_ADDR=address).status_code


def test_an_offender_is_promoted_by_a_real_worker_and_comes_back_after_the_ban(worker, settings):
    """C107, C112: denials become one ban with one signal, others pass, and at its end the client is let in."""
    make_rule(rate="3/1s")
    make_policy(threshold=3, block_period=4)
    snapshot_cache.refresh()
    codes = [status() for _ in range(8)]
    assert codes[:3] == [200] * 3
    assert set(codes[3:]) == {429}
    offences.flush()
    until(BlacklistEntry.objects.exists)
    until(lambda: status() == 403)
    assert status(address="203.0.113.10") == 200

    entry = BlacklistEntry.objects.get()
    assert (entry.identity, entry.source, entry.level) == ("ip:203.0.113.9", "promoted", 1)
    deliver_again()
    until(lambda: status() == 200)
    entry.refresh_from_db()
    assert entry.expires_at.timestamp() <= time.time() <= entry.expires_at.timestamp() + 3
    assert (BlacklistEntry.objects.count(), entry.level) == (1, 1)
    assert list(User.objects.values_list("first_name", flat=True)) == ["ip:203.0.113.9"]


def deliver_again() -> None:
    """Send the task's message five times under one id, as a broker does whose acknowledgements were lost."""
    app = make_app()
    for _ in range(5):
        for entry in BEAT_SCHEDULE.values():
            app.send_task(entry["task"], task_id="delivered-five-times")
    app.close()


@pytest.mark.parametrize("path", ["/plain/", "/api/scoped/"])
def test_an_offender_under_atomic_requests_is_promoted_all_the_same(monkeypatch, path):
    """C113: an offence does not ride in the request's transaction, which a denial rolls back."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    make_rule(rate="3/m", scope="scoped" if "scoped" in path else "")
    make_policy(threshold=3)
    snapshot_cache.refresh()
    assert [status(path) for _ in range(6)] == [200] * 3 + [429] * 3
    offences.flush()
    assert [item.identity for item in promotion.promote_repeat_offenders().promoted] == ["ip:203.0.113.9"]
    snapshot_cache.refresh()
    assert status(path) == 403


def test_a_banned_client_that_keeps_asking_does_not_lengthen_its_ban():
    """C111: what a ban turns away is no offence, and touches no ban."""
    make_rule(rate="3/m")
    make_policy(threshold=3)
    snapshot_cache.refresh()
    assert [status() for _ in range(6)][-1] == 429
    offences.flush()
    promotion.promote_repeat_offenders()
    before = BlacklistEntry.objects.get()
    counted = offences.counts("ip:203.0.113.9")
    snapshot_cache.refresh()
    assert {status() for _ in range(10)} == {403}
    offences.flush()
    promotion.promote_repeat_offenders()
    after = BlacklistEntry.objects.get()
    assert (before.expires_at, before.level) == (after.expires_at, after.level)
    assert offences.counts("ip:203.0.113.9") == counted


def test_an_ipv6_offender_is_promoted_as_its_network():
    """Offences and bans of IPv6 are those of the client's /64, whichever of its addresses asks."""
    make_rule(rate="3/m")
    make_policy(threshold=3)
    snapshot_cache.refresh()
    for number in range(6):
        status(address=f"2001:db8:1:2::{number}")
    offences.flush()
    assert [p.identity for p in promotion.promote_repeat_offenders().promoted] == ["ip:2001:db8:1:2::/64"]
    snapshot_cache.refresh()
    assert status(address="2001:db8:1:2::99") == 403
    assert status(address="2001:db8:1:3::1") == 200
