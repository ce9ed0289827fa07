"""Which rows of a list become entries: those that name somebody, still hold, and break nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratelimit_app import lists
from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import parse_address, parse_network
from ratelimit_app.core.entries import canonical, canonical_kind, width_danger
from ratelimit_app.core.feeds import PassedOver
from ratelimit_app.core.identity import DIGESTED_KINDS, IdentityError
from ratelimit_app.importing.rows import Row
from ratelimit_app.models import BlacklistEntry
from ratelimit_app.normalizing import normalized

if TYPE_CHECKING:
    from datetime import datetime

    from ratelimit_app.core.feeds import Listed
    from ratelimit_app.models import Entry

MAX_REASON = 500
ENDED = "has ended"
NO_ADDRESS = "is not an address or a network"
NO_KIND = "is of a kind that cannot be on this list"
NO_VALUE = "is not a value of its kind"


@dataclass(frozen=True, slots=True)
class Terms:
    """
    How the rows of a list become entries.

    `model`: of the list that they go to. `reason`, `expires_at`: of rows that do not say their own; None: never.
    `force`: take what would break the site too. `replace`: imported entries that are not in the list go.
    """

    model: type[Entry]
    now: datetime
    reason: str = ""
    expires_at: datetime | None = None
    force: bool = False
    replace: bool = False


class Judge:
    """Turns rows of a list into rows of the database."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._secret, self._trusted = conf.key_secret, conf.trusted_proxies
        self._blocks = issubclass(terms.model, BlacklistEntry)

    def row(self, listed: Listed) -> Row | PassedOver:
        """Give the row of the database, or why there is none."""
        terms = self._terms
        try:
            kind, value = canonical(
                listed.kind, listed.value, self._secret, kinds=terms.model.listable, normalize=normalized
            )
        except IdentityError:
            return self._fault(listed, self._why(listed))
        expires_at = listed.expires_at or terms.expires_at
        if expires_at is not None and expires_at <= terms.now:
            return PassedOver(listed.line, f"{kind}:{value}", ENDED, is_fault=False)
        danger = None if terms.force or kind != "ip" else self._danger(kind, value)
        if danger is not None:
            return self._fault(listed, danger)
        return Row(kind, value, _plain(listed.reason or terms.reason), expires_at)

    def _danger(self, kind: str, value: str) -> str | None:
        """Say what an address would break; on the allowlist it is only the width that counts."""
        if not self._blocks:
            return width_danger(parse_network(value)) if "/" in value else None
        if "/" not in value:
            # Most of a million are single addresses that are far from any proxy of ours.
            address = parse_address(value)
            if address is not None and not address.is_loopback and address not in self._trusted:
                return None
        return lists.danger(kind, value)

    def _why(self, listed: Listed) -> str:
        try:
            kind = canonical_kind(listed.kind, self._terms.model.listable)
        except IdentityError:
            return NO_KIND
        return NO_ADDRESS if kind == "ip" else NO_VALUE

    @staticmethod
    def _fault(listed: Listed, why: str) -> PassedOver:
        is_secret = listed.kind.partition(":")[0].strip().lower() in DIGESTED_KINDS
        value = "(not shown)" if is_secret else listed.value
        text = value if listed.kind == "ip" else f"{listed.kind}:{value}"
        return PassedOver(listed.line, _plain(text)[:200], why)


def _plain(text: str) -> str:
    """Give a text in one line, as every database takes it."""
    if not text.isprintable():
        text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text[:MAX_REASON]
