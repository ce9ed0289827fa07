"""
A process of the site, for tests: it serves requests again and again, and prints what they get when that changes.

Its arguments are the name of the tests' database, and the addresses of further clients.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django
from django.conf import settings

settings.DATABASES["default"]["NAME"] = sys.argv[1]
django.setup()

CLIENT, NEIGHBOUR = "203.0.113.9", "198.51.100.7"
OTHERS = sys.argv[2:]


def look() -> dict[str, object]:
    """What a client, another one of a network, and the others get at this moment."""
    from django.test import Client

    def get(address: str) -> Any:
        return Client(REMOTE_ADDR=address).get("/plain/")

    client, neighbour = get(CLIENT), get(NEIGHBOUR)
    limit = neighbour.headers.get("X-RateLimit-Limit")
    seen = {"limit": limit, "client": client.status_code, "neighbour": neighbour.status_code}
    return seen | {address: get(address).status_code for address in OTHERS}


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
