"""What this process remembers: a deny cache and a penalty box, sized by the settings, and its leased permits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ratelimit_app.conf import conf
from ratelimit_app.core.deny_cache import DenyCache
from ratelimit_app.core.local_answers import Local
from ratelimit_app.core.outage import OutageLimits
from ratelimit_app.core.penalty_box import PenaltyBox, Terms
from ratelimit_app.core.permits import Permits

if TYPE_CHECKING:
    from collections.abc import Collection


class LocalCache:
    """Make them at the first need, and anew when the settings have changed."""

    local: Local

    def __getattr__(self, name: str) -> Any:
        if name != "local":
            raise AttributeError(name)
        made = Local(_make_denials(), _make_penalties(), Permits(), OutageLimits(conf.local_cache_size))
        return self.__dict__.setdefault(name, made)

    def made(self) -> list[DenyCache | PenaltyBox | Permits | OutageLimits]:
        """Give those that are there."""
        return [table for local in list(self.__dict__.values()) for table in local if table is not None]

    def start_anew(self) -> None:
        """Make them anew at the next need; what is put into the old ones is lost."""
        self.__dict__.clear()


def _make_denials() -> DenyCache:
    return DenyCache(conf.local_cache_size)


def _make_penalties() -> PenaltyBox | None:
    after, size = conf.local_block_after, conf.local_cache_size
    if after is None or not size:
        return None
    return PenaltyBox(size, Terms(after, conf.local_block_window, conf.local_block_period))


_cache = LocalCache()


def local() -> Local:
    """Give what the process remembers. Hold it for one decision only: a change of the settings makes another."""
    return _cache.local


def forget(identities: Collection[str] | None) -> None:
    """Forget what is known of these identities: whole, as parts joined by `+`, or as marks; None: everything."""
    for table in _cache.made():
        if identities is None:
            table.clear()
        else:
            table.forget(identities)


def _after_fork() -> None:
    for table in _cache.made():
        table.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def on_setting_changed(*, setting: str, **_: Any) -> None:
    """Start anew when size, terms, or the Redis that denied have changed."""
    if setting in ("CACHES", "RATELIMIT_APP"):
        _cache.start_anew()
