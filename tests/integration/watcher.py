"""
A process of the site, for tests: it serves requests again and again, and prints what they get when that changes.

Its one argument is the name of the tests' database.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django
from django.conf import settings

settings.DATABASES["default"]["NAME"] = sys.argv[1]
django.setup()

CLIENT, NEIGHBOUR = "203.0.113.9", "198.51.100.7"


def look() -> dict[str, object]:
    """What a client, and another one of a network, get at this moment."""
    from django.test import Client

    client, neighbour = (Client(REMOTE_ADDR=address).get("/plain/") for address in (CLIENT, NEIGHBOUR))
    limit = neighbour.headers.get("X-RateLimit-Limit")
    return {"limit": limit, "client": client.status_code, "neighbour": neighbour.status_code}


def main() -> None:
    """Look until the parent closes our input or ends us."""
    last = None
    while os.getppid() != 1:
        now = look()
        if now != last:
            sys.stdout.write(f"{json.dumps(now)}\n")
            sys.stdout.flush()
            last = now
        time.sleep(0.02)


if __name__ == "__main__":
    main()
