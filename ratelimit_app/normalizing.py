"""The form in which a header, cookie, param or field value is counted: ours, or the project's own normaliser's."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from ratelimit_app.conf import conf
from ratelimit_app.core.identity import folded

if TYPE_CHECKING:
    from ratelimit_app.core.identity import Source

logger = logging.getLogger("ratelimit_app")

_told: set[str] = set()


def normalized(source: Source, value: str) -> str:
    """
    Give the text that stands for a value, for whoever sends or types it; blank text is a missing value.

    A project's normaliser that fails, or gives None, leaves the value to ours.
    """
    own = conf.normalizers
    if not own or (name := str(source)) not in own:
        return folded(source, value)
    given = own[name]
    if given is None:
        return value
    try:
        text = load(given)(value)
    except Exception as error:  # noqa: BLE001 - the project's code may fail in any way
        _tell(name, f"raised {type(error).__name__}")  # Its message may well quote the value.
        return folded(source, value)
    if text is not None and not isinstance(text, str):
        _tell(name, f"gave {type(text).__name__}")
        text = None
    return folded(source, value) if text is None else text


def load(given: Any) -> Any:
    """Give a normaliser: a callable, or what its dotted path names. Raises ImportError."""
    return _imported(given) if isinstance(given, str) else given


@lru_cache(maxsize=64)
def _imported(path: str) -> Any:
    return import_string(path)


def _tell(name: str, what: str) -> None:
    if name not in _told:
        _told.add(name)
        logger.error(
            "ratelimit.normalizer_failed RATELIMIT_APP['NORMALIZERS'][%r] %s instead of giving text or None; "
            "values are folded as by default. Told once.",
            name,
            what,
        )
