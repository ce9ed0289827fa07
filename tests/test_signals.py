"""Signals: there are those of the contract, with the arguments that it names."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.dispatch import Signal
from django.test import Client, override_settings

from ratelimit_app import Verdict, acquire, signals
from ratelimit_app.middleware import RateLimitMiddleware
from ratelimit_app.signals import request_denied, store_degraded, store_recovered
from tests.test_snapshot_cache import OFFLINE

PUBLIC = {
    "request_denied",
    "identity_blocked",
    "identity_unblocked",
    "snapshot_published",
    "store_degraded",
    "store_recovered",
    "alert_raised",
}


def test_signals_when_listed_are_those_of_the_contract() -> None:
    """Nothing is missing; what else there is says that it is internal."""
    found = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert PUBLIC | {"rows_changed"} == found


@pytest.fixture
def denials() -> Any:
    """Collect what `request_denied` tells."""
    heard: list[dict[str, Any]] = []

    def hear(**told: Any) -> None:
        heard.append(told)

    request_denied.connect(hear)
    yield heard
    request_denied.disconnect(hear)


def test_a_denial_when_it_happens_is_told_once(rules: Any, denials: Any) -> None:
    """The door, the request and the decision; an allowed request tells nothing."""
    rules({"name": "one", "rate": "1/m"})
    client = Client()
    assert [200, 429] == [client.get("/plain/").status_code for _ in range(2)]
    (told,) = denials
    assert (RateLimitMiddleware, "/plain/") == (told["sender"], told["request"].path)
    assert (Verdict.LIMITED, "one") == (told["decision"].verdict, told["decision"].rule)


def test_a_receiver_when_it_fails_does_not_fail_the_request(
    rules: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A project's broken receiver is logged by Django, and the client gets its 429."""

    def fail(**_: Any) -> None:
        msg = "a receiver's own fault"
        raise RuntimeError(msg)

    rules({"name": "none", "rate": "0/m"})
    request_denied.connect(fail)
    try:
        with caplog.at_level(logging.ERROR, "django.dispatch"):
            assert Client().get("/plain/").status_code == 429
    finally:
        request_denied.disconnect(fail)
    assert "a receiver's own fault" in caplog.text


def test_an_outage_when_it_begins_and_ends_is_told_once_each(caplog: pytest.LogCaptureFixture) -> None:
    """One signal and one log line for each transition, not one for each request (C120)."""
    heard: list[tuple[str, str]] = []

    def degraded(alias: str, error: str, **_: Any) -> None:
        heard.append(("degraded", alias))
        assert error

    def recovered(alias: str, **_: Any) -> None:
        heard.append(("recovered", alias))

    store_degraded.connect(degraded)
    store_recovered.connect(recovered)
    try:
        with caplog.at_level(logging.WARNING, "ratelimit_app"):
            with override_settings(CACHES=OFFLINE):
                assert [True] * 3 == [acquire("user:1", "9/m", group="g").degraded for _ in range(3)]
            assert [False] * 3 == [acquire("user:1", "9/m", group="g").degraded for _ in range(3)]
    finally:
        store_degraded.disconnect(degraded)
        store_recovered.disconnect(recovered)
    assert [("degraded", "default"), ("recovered", "default")] == heard
    assert (1, 1) == (caplog.text.count("store_degraded"), caplog.text.count("store_recovered"))
