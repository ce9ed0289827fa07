"""Who acts in the admin: by what address and identities they would lock themselves out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimit_app import lists
from ratelimit_app.core.identity import parse_sources
from ratelimit_app.requests import RequestFacts

if TYPE_CHECKING:
    from django.http import HttpRequest

# What the browser of whoever acts sends with each request; a form's field is no part of them.
OWN_KINDS = frozenset({"user", "session", "device", "header", "cookie"})


def block_danger(request: HttpRequest, kind: str, value: str) -> str | None:
    """Say what blocking an identity would break, oneself included; the value is canonical. None: nothing."""
    facts = RequestFacts(request)
    try:
        return lists.danger(kind, value, facts.address, _own(facts, kind))
    except ValueError:
        return None  # Raw SQL can write what is no identity; it bans nobody.


def _own(facts: RequestFacts, kind: str) -> str | None:
    (source,) = parse_sources(kind)
    if source.kind not in OWN_KINDS:
        return None
    for fact in ("user", "session"):
        facts.learn(fact)
    return facts.part(source)
