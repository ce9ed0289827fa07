"""A program for the tests: decides in greenlets, run by `python -m gevent.monkey --module`; ends with 0 when all is well."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import Any

import django
import gevent
from django.conf import settings

CROWD = 40


def crowd() -> bool:
    """Ask in many greenlets at once; whether each got its own replies, by no more connections than allowed."""
    from ratelimit_app.store.gateway import gateway
    from tests.store.forking import strangers_in_threads

    greenlets = [gevent.spawn(strangers_in_threads, number) for number in range(CROWD)]
    gevent.joinall(greenlets, raise_error=True)
    return not any(each.value for each in greenlets) and gateway()._connections._open <= CROWD


def hung() -> bool:
    """Ask a server that never answers; whether other greenlets went on meanwhile, and the call ended."""
    from ratelimit_app.core.calls import StoreUnavailable
    from tests.store.asking import decide

    with socket.create_server(("127.0.0.1", 0)) as silent:
        alias = settings.CACHES["default"] | {"LOCATION": f"redis://127.0.0.1:{silent.getsockname()[1]}/0"}
        settings.CACHES = {**settings.CACHES, "silent": alias}
        given = {**settings.RATELIMIT_APP, "CACHE": "silent", "STORE_TIMEOUT": 0.2}
        use(given)
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                gevent.sleep(0.01)

        ticking = gevent.spawn(tick)
        with suppress(StoreUnavailable):
            decide(1)
            return False
        ticking.kill()
    return ticks > 3


def use(given: dict[str, Any]) -> None:
    """Decide by other settings."""
    from ratelimit_app.conf import conf

    settings.RATELIMIT_APP = given
    conf.forget()


if __name__ == "__main__":
    django.setup()
    sys.exit(not (crowd() and hung()))
