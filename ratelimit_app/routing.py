"""Where a request goes, by what the router resolves; remembered for each path."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import NoReverseMatch, Resolver404, ResolverMatch, get_resolver, resolve, reverse
from django.urls.resolvers import LocalePrefixPattern
from django.utils.translation import get_language

from ratelimit_app.core.matching import Route, canonical_path

if TYPE_CHECKING:
    from django.http import HttpRequest

MAX_PATH = 512


def route_of(request: HttpRequest) -> Route:
    """Give the route of a request, before or after Django has resolved it."""
    urlconf = getattr(request, "urlconf", None) or settings.ROOT_URLCONF
    language = get_language() if _speaks(urlconf) else None
    path = request.path_info
    # What only an attacker would write is not remembered: it would fill the memory.
    look_up = _route if len(path) <= MAX_PATH else _route.__wrapped__
    return look_up(urlconf, path, language)


@lru_cache(maxsize=128)
def _speaks(urlconf: Any) -> bool:
    """Whether paths depend on the language: `i18n_patterns`, or routes that are translated."""
    return any(map(_is_spoken, get_resolver(urlconf).url_patterns))


def _is_spoken(node: Any) -> bool:
    pattern = node.pattern
    text = getattr(pattern, "_route", None) or getattr(pattern, "_regex", None) or ""
    if isinstance(pattern, LocalePrefixPattern) or not isinstance(text, str):
        return True
    return any(map(_is_spoken, getattr(node, "url_patterns", ())))


@lru_cache(maxsize=2_048)
def _route(urlconf: Any, path: str, _language: str | None) -> Route:
    """Resolve a path once; the language counts, since `i18n_patterns` resolve by it."""
    canonical = canonical_path(path)
    literal = canonical_path(path, dots=False) if "/." in path else ""
    try:
        match = resolve(path, urlconf)
    except Resolver404:
        return Route("", canonical, literal=literal)
    view_class = getattr(match.func, "cls", None)
    is_drf = hasattr(view_class, "get_throttles")
    return Route(match.view_name, canonical, is_drf, _admin_root(match, urlconf), literal)


def _admin_root(match: ResolverMatch, urlconf: Any) -> str:
    if "admin" not in match.app_names:
        return ""
    namespace = ":".join(match.namespaces[: match.app_names.index("admin") + 1])
    try:
        return canonical_path(reverse(f"{namespace}:index", urlconf))
    except NoReverseMatch:
        return canonical_path(match.route)
