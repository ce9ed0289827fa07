"""Where a request goes, by what the router resolves; remembered for each path."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import (
    NoReverseMatch,
    Resolver404,
    ResolverMatch,
    get_resolver,
    get_script_prefix,
    resolve,
    reverse,
)
from django.urls.resolvers import LocalePrefixPattern
from django.utils.translation import get_language

from ratelimit_app.core.matching import MAX_PATH, MAX_ROUTES, Route, canonical_path

if TYPE_CHECKING:
    from django.http import HttpRequest


class Routed:
    """A request's route: found when it is asked for, and anew once the request has been sent elsewhere."""

    request: Any
    _route: Route | None = None
    _went: Any = None

    @property
    def route(self) -> Route:
        """Where the request goes, by what the router resolves."""
        if self._route is None:
            self._route = route_of(self.request)
            self._went = (self.request.method, self.request.path_info)
        return self._route

    def reroute(self) -> bool:
        """
        Whether the request goes elsewhere than its route said when it was asked for; that is the new one then.

        To be asked when Django has resolved the request: its word is the last, whatever is remembered of the path.
        """
        route, request = self._route, self.request
        if route is None:
            return False
        went, match = (request.method, request.path_info), request.resolver_match
        if self._went == went and match.view_name == route.view_name:
            return False
        self._route, self._went = _made(match, *_asked(request)), went
        return True


def route_of(request: HttpRequest) -> Route:
    """Give the route of a request, before or after Django has resolved it."""
    urlconf, path, script = _asked(request)
    language = get_language() if _speaks(urlconf) else None
    # What only an attacker would write is not remembered: it would fill the memory.
    look_up = _route if len(path) + len(script) <= MAX_PATH else _route.__wrapped__
    return look_up(urlconf, path, script, language)


def _asked(request: HttpRequest) -> tuple[Any, str, str]:
    """Give the URLs that resolve a request, its path, and the script's name before it."""
    path, whole = request.path_info, request.path
    script = whole[: -len(path)] if path and whole.endswith(path) else ""
    return getattr(request, "urlconf", None) or settings.ROOT_URLCONF, path, script


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


@lru_cache(maxsize=MAX_ROUTES)
def _route(urlconf: Any, path: str, script: str, _language: str | None) -> Route:
    """Resolve a path once; the language counts, since `i18n_patterns` resolve by it."""
    try:
        match = resolve(path, urlconf)
    except Resolver404:
        match = None
    return _made(match, urlconf, path, script)


def _made(match: ResolverMatch | None, urlconf: Any, path: str, script: str) -> Route:
    canonical = canonical_path(path)
    literal = canonical_path(path, dots=False) if "/." in path else ""
    mount = canonical_path(script).rstrip("/")
    paths = [literal or canonical]
    if match is None:
        return Route("", canonical, literal=literal, names=_names(paths, mount), mount=mount)
    is_drf = hasattr(getattr(match.func, "cls", None), "get_throttles")
    if is_drf:
        paths += _without_format(paths[0], match)
    root = _admin_root(match, urlconf)
    return Route(match.view_name, canonical, is_drf, root, literal, _names(paths, mount), mount)


def _names(paths: list[str], mount: str) -> tuple[str, ...]:
    """Give the other names of a place whose first path is known: the rest, and each of them below the script."""
    return (*paths[1:], *(mount + path for path in paths if mount))


def _without_format(path: str, match: ResolverMatch) -> list[str]:
    """Give the path without the suffix by which a client asks DRF for a format: `/items.json` is `/items`."""
    keyword = (getattr(settings, "REST_FRAMEWORK", None) or {}).get("FORMAT_SUFFIX_KWARG", "format")
    suffix = f".{match.kwargs.get(keyword)}".casefold()
    bare = path.rstrip("/")
    return [bare.removesuffix(suffix)] if bare.endswith(suffix) else []


def _admin_root(match: ResolverMatch, urlconf: Any) -> str:
    if "admin" not in match.app_names:
        return ""
    namespace = ":".join(match.namespaces[: match.app_names.index("admin") + 1])
    try:
        root = reverse(f"{namespace}:index", urlconf)
    except (NoReverseMatch, ValueError):  # the second: of a pattern somewhere that cannot be reversed
        return canonical_path(match.route)
    return canonical_path(root.removeprefix(get_script_prefix().rstrip("/")))
