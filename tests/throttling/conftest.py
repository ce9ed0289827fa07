"""Ways to install the app, and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def bare(settings: Any) -> None:
    """The app without its middleware."""
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "ratelimit_app" not in name]


@pytest.fixture(params=["with the middleware", "without"])
def both(request: pytest.FixtureRequest, settings: Any) -> None:
    """Both ways to install the app."""
    if request.param == "without":
        request.getfixturevalue("bare")


@pytest.fixture
def rates(settings: Any) -> Callable[..., None]:
    """Set DEFAULT_THROTTLE_RATES."""

    def use(**given: str | None) -> None:
        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": given}

    return use
