"""
A process of the site, for tests: it tells what it is told to forget, and decides at the times that it is given.

Its one argument is the name of the tests' database. A line of its input: a time, in microseconds by the Redis
clock, and the address of a client; `-` for both asks for the version of its rules.
"""

from __future__ import annotations

import json
import os
import sys
import threading

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django
from django.conf import settings

settings.DATABASES["default"]["NAME"] = sys.argv[1]
django.setup()

_speaking = threading.Lock()


def say(**what: object) -> None:
    """Print one line, whichever thread speaks."""
    with _speaking:
        sys.stdout.write(f"{json.dumps(what)}\n")
        sys.stdout.flush()


def told(identities: set[str] | None) -> None:
    """Tell what is to be forgotten."""
    say(forgotten=None if identities is None else sorted(identities))


def status_at(at: int, address: str) -> int:
    """Serve a request at a time, to the microsecond."""
    from django.test import Client

    from ratelimit_app import doors

    doors._World.now_us = staticmethod(lambda: at)
    doors._World.frozen_now = staticmethod(lambda: at)
    doors._World.clock = staticmethod(lambda: at / 1_000_000)
    return Client(REMOTE_ADDR=address).get("/plain/").status_code


def main() -> None:
    """Answer until the parent closes our input."""
    from ratelimit_app import snapshot_cache

    snapshot_cache.when_forgotten(told)
    for line in sys.stdin:
        at, address = line.split()
        if at == "-":
            say(version=snapshot_cache.current(wait_s=20.0).version)
        else:
            say(status=status_at(int(at), address))


if __name__ == "__main__":
    main()
