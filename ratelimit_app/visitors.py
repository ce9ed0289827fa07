"""The user and the session of a request, as far as they exist; finding them may cost the project a query."""

from __future__ import annotations

from typing import Any

from django.db.models import Model


def user_of(holder: Any) -> str | None:
    """Give the primary key of the signed-in user of a Django or DRF request, None without one."""
    return _user_pk(getattr(holder, "user", None))


def known_user_of(request: Any) -> str | None:
    """Give the primary key of a Django request's user where somebody has asked for it already; it costs no query."""
    held = request.__dict__
    # Django keeps whom its lazy user has found; DRF and others put the user there, which is lazy no more.
    for user in (held.get("_cached_user"), held.get("_acached_user"), held.get("user")):
        # By its type: a lazy one would be found by being asked what it is.
        if issubclass(type(user), Model) and hasattr(user, "is_authenticated"):
            return _user_pk(user)
    return None


async def auser_of(request: Any) -> str | None:
    """Like user_of, for a Django request in async code."""
    auser = getattr(request, "auser", None)
    return _user_pk(await auser() if auser else getattr(request, "user", None))


def session_of(request: Any) -> str | None:
    """Give the key of a session that exists, None for a cookie that somebody made up."""
    session = getattr(request, "session", None)
    if session is None or not session.session_key:
        return None
    session.keys()
    return _existing_key(session)


async def asession_of(request: Any) -> str | None:
    """Like session_of, for async code."""
    session = getattr(request, "session", None)
    if session is None or not session.session_key:
        return None
    await session.akeys()
    return _existing_key(session)


def _existing_key(session: Any) -> str | None:
    """Give the key of a loaded session; a forged signed cookie loads as a new, empty one that keeps its key."""
    return None if session.modified and not session.keys() else session.session_key


def _user_pk(user: Any) -> str | None:
    return str(user.pk) if user is not None and user.is_authenticated and user.pk is not None else None
