"""Who is never promoted: the allowlist, trusted proxies, loopback, staff."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from ipaddress import ip_network
from typing import TYPE_CHECKING
from urllib.parse import unquote

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import Network, NetworkSet, parse_network
from ratelimit_app.core.entries import canonical
from ratelimit_app.core.identity import IdentityError, kind_of, value_of
from ratelimit_app.models import AllowlistEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime
    from typing import Any

LOOPBACK = NetworkSet([ip_network("127.0.0.0/8"), ip_network("::1/128")])
STAFF_FLAGS = ("is_staff", "is_superuser")
CHUNK = 500


class NeverPromoted:
    """The allowlist as it is at one moment, and who else is spared; staff are one query for all candidates."""

    def __init__(self, databases: list[str], now: datetime) -> None:
        self._databases, self._now = databases, now

    def reasons(self, identities: Iterable[str]) -> dict[str, str]:
        """Give those of the identities that must not be banned, each with the reason."""
        found: dict[str, str] = {}
        users = []
        for identity in identities:
            kind, value = kind_of(identity), value_of(identity)
            if not _is_listable(kind, value):
                found[identity] = "not_listable"
            elif kind == "ip" and (reason := self._reason(parse_network(value))):
                found[identity] = reason
            elif kind == "user":
                users.append(value)
        return found | self._users(users)

    def _reason(self, network: Network) -> str:
        if LOOPBACK.overlaps(network):
            return "loopback"
        if conf.trusted_proxies.overlaps(network):
            return "trusted_proxy"
        return "allowlist" if self._allowed_networks.overlaps(network) else ""

    @cached_property
    def _allowed_networks(self) -> NetworkSet:
        networks: list[Network] = []
        for value in self._allowed("ip"):
            # Raw SQL can write what is no network; the publisher reports it.
            with suppress(ValueError):
                networks.append(parse_network(value))
        return NetworkSet(networks)

    def _users(self, values: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(values), CHUNK):
            chunk = values[start : start + CHUNK]
            found |= {f"user:{value}": "staff" for value in _staff(chunk)}
            found |= {f"user:{value}": "allowlist" for value in self._allowed("user", value__in=chunk)}
        return found

    def _allowed(self, kind: str, **more: Any) -> Iterator[str]:
        live = Q(expires_at=None) | Q(expires_at__gt=self._now)
        for alias in self._databases:
            rows = AllowlistEntry.objects.using(alias).filter(live, kind=kind, **more)
            yield from rows.order_by().values_list("value", flat=True)


def _is_listable(kind: str, value: str) -> bool:
    try:
        return canonical(kind, value, conf.key_secret) == (kind, value)
    except IdentityError:
        return False


def _staff(values: list[str]) -> list[str]:
    """Give those of the primary keys, as identities write them, whose users are staff or superusers."""
    model = get_user_model()
    known = {key: value for value in values if (key := _primary_key(model, value)) is not None}
    # A plain queryset: staff whom a project's own manager hides are staff all the same.
    users: models.QuerySet[Any] = models.QuerySet(model).filter(pk__in=list(known))
    # Asked of the users, not of the database: in many a project `is_staff` is a property.
    return [known[user.pk] for user in users if any(getattr(user, flag, False) for flag in STAFF_FLAGS)]


def _primary_key(model: Any, value: str) -> Any:
    """Read a primary key from an identity; None when this project has no such keys."""
    field = model._meta.pk  # noqa: SLF001 - public, in spite of its name
    try:
        key = field.to_python(unquote(value))
        field.run_validators(key)
    except (ValidationError, OverflowError):
        return None
    return key
