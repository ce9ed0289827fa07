"""What this process remembers of denials: one deny cache and one penalty box, sized by the settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ratelimit_app.conf import conf
from ratelimit_app.core.deny_cache import DenyCache
from ratelimit_app.core.penalty_box import PenaltyBox, Terms

if TYPE_CHECKING:
    from collections.abc import Collection


class LocalCache:
    """Make both at the first need, and anew when the settings have changed."""

    denials: DenyCache
    penalties: PenaltyBox | None

    def __getattr__(self, name: str) -> Any:
        make = {"denials": _make_denials, "penalties": _make_penalties}.get(name)
        if make is None:
            raise AttributeError(name)
        return self.__dict__.setdefault(name, make())

    def made(self) -> list[DenyCache | PenaltyBox]:
        """Give those that are there."""
        return [table for table in list(self.__dict__.values()) if table is not None]

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


def denials() -> DenyCache:
    """Give the process's deny cache. Hold it for one decision only: a change of the settings makes another."""
    return _cache.denials


def penalties() -> PenaltyBox | None:
    """Give the process's penalty box, None: it is off."""
    return _cache.penalties


def forget(identities: Collection[str]) -> None:
    """Forget what is known of these identities: whole, as parts joined by `+`, or as marks of a decision."""
    for table in _cache.made():
        table.forget(identities)


def clear() -> None:
    """Forget everything."""
    for table in _cache.made():
        table.clear()


def _after_fork() -> None:
    for table in _cache.made():
        table.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def on_setting_changed(*, setting: str, **_: Any) -> None:
    """Start anew when size, terms, or the Redis that denied have changed."""
    if setting in ("CACHES", "RATELIMIT_APP"):
        _cache.start_anew()
