"""Which rules a request meets, by what the router resolves; found once for each place and method, then looked up."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ratelimit_app.core.groups import deciding
from ratelimit_app.core.rules import METHODS, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_PATH = 512
MAX_ROUTES = 2_048
MAX_REMEMBERED = 10_000
UNKNOWN_METHOD = "?"
# Letters that a case-insensitive pattern takes for an i, though they are none when case is folded.
_ALIKE = str.maketrans("\u0130\u0131", "ii")


@dataclass(frozen=True, slots=True)
class Route:
    """
    What the router says of a path.

    `view_name`: blank when the path leads nowhere. `path`: canonical. `is_drf`: its view has DRF's throttles.
    `admin_root`: canonical path of the admin site when the view is one of its own, else blank.
    `literal`: the path with its dot segments, which Django does not resolve; blank without any.
    `names`: other paths of the same place: without its format suffix, with the script's name.
    `mount`: canonical path of the script, blank at the root of the host.
    """

    view_name: str
    path: str
    is_drf: bool = False
    admin_root: str = ""
    literal: str = ""
    names: tuple[str, ...] = ()
    mount: str = ""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Routes are remembered and looked up at every request: hashing all fields each time would cost more.
        object.__setattr__(self, "_hash", hash((self.view_name, self.path, self.admin_root)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """
    All routes that meet the same rules: there is one of them in a matcher, told from others by what it is.

    `prefixes`: that hold it. `doubtful`: that hold it only when dot segments are folded.
    `admin_roots`: where the admin site begins, if it is in it.
    """

    view_name: str
    prefixes: frozenset[str]
    doubtful: frozenset[str]
    admin_roots: tuple[str, ...]


def canonical_path(path: str, *, dots: bool = True) -> str:
    """Fold what spells the same place: letter case, doubled slashes, and dot segments unless `dots` is False."""
    parts: list[str] = []
    for part in (path if path.isascii() else path.translate(_ALIKE)).casefold().split("/"):
        if dots and part == "..":
            parts = parts[:-1]
        elif part and not (dots and part == "."):
            parts.append(part)
    return "/" + "/".join(parts) + ("/" if parts and path.endswith("/") else "")


def known_method(method: str | None) -> str:
    """Give the method, one name for all that are none: a client must not fill a memory with names of its own."""
    return method if method in METHODS else UNKNOWN_METHOD


class Matcher:
    """
    The rules of one snapshot, found by route: a look-up, however many they are.

    All threads share it. What it remembers is bounded, and only changes by whole entries.
    """

    __slots__ = ("_by_route", "_found", "_holders", "_places", "_prefixes", "_routes", "_rules")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._by_route: dict[tuple[str, str], list[int]] = {}
        for number, rule in enumerate(rules):
            self._by_route.setdefault((rule.scope, _written(rule)), []).append(number)
        self._prefixes = sorted({_written(rule) for rule in rules if rule.route.startswith("/")})
        self._holders = _holders(self._prefixes)
        self._routes: dict[Route, Place] = {}
        self._places: dict[tuple[Any, ...], Place] = {}
        self._found: dict[tuple[Place, str, str, bool], list[Rule]] = {}

    def place(self, route: Route) -> Place:
        """Give the place of a route."""
        place = self._routes.get(route)
        if place is None:
            place = self._resolve(route)
            # What only an attacker would write is not remembered: it would fill the memory.
            if len(route.path) <= MAX_PATH:
                _make_room(self._routes, MAX_ROUTES)
                self._routes[route] = place
        return place

    def select(self, place: Place, method: str, *, scope: str, scopeless: bool) -> list[Rule]:
        """
        Give the rules of a scope, and those without one when `scopeless`, that a request to this place meets.

        Of rules that share a limit only one decides at any time (`groups.deciding`): a request is charged once.
        """
        key = (place, known_method(method), scope, scopeless)
        rules = self._found.get(key)
        if rules is None:
            _make_room(self._found, MAX_REMEMBERED)
            self._found[key] = rules = deciding(self._find(*key))
        return rules

    def _resolve(self, route: Route) -> Place:
        literal = route.literal or route.path
        found = {self._longest(path) for path in (literal, *route.names)}
        doubtful = self._longest(route.path) if route.literal else -1
        roots = (route.admin_root, route.mount + route.admin_root) if route.admin_root else ()
        key = (route.view_name, frozenset(found), doubtful, roots)
        place = self._places.get(key)
        if place is None:
            _make_room(self._places, MAX_REMEMBERED)
            prefixes = frozenset(prefix for number in found for prefix in self._chain(number))
            made = Place(route.view_name, prefixes, frozenset(self._chain(doubtful)) - prefixes, roots)
            place = self._places.setdefault(key, made)
        return place

    def _longest(self, path: str) -> int:
        """
        Number the longest prefix that holds a path, below 0: none does.

        A prefix that ends with a slash also stands for the same path without it. All that hold a path, and nothing
        after them, sort between the longest of them and the path.
        """
        text = path if path.endswith("/") else path + "/"
        number = bisect_right(self._prefixes, text) - 1
        while number >= 0 and not text.startswith(self._prefixes[number]):
            number = self._holders[number]
        return number

    def _chain(self, number: int) -> Iterable[str]:
        while number >= 0:
            yield self._prefixes[number]
            number = self._holders[number]

    def _find(self, place: Place, method: str, scope: str, scopeless: bool) -> list[Rule]:
        scopes = {scope} - {""} | ({""} if scopeless else set())
        certain = self._numbers(scopes, {"", place.view_name, *place.prefixes})
        doubtful = self._numbers(scopes, place.doubtful) - certain
        shared = {self._rules[number].group for number in certain if self._rules[number].shared}
        # A path that may be read in two ways is no way into another rule's reserve.
        kept = {number for number in doubtful if self._rules[number].group not in shared}
        rules = (self._rules[number] for number in sorted(certain | kept))
        return [rule for rule in rules if rule.covers_method(method) and _covers_admin(rule, place)]

    def _numbers(self, scopes: Iterable[str], routes: Iterable[str]) -> set[int]:
        pairs = [(scope, route) for scope in scopes for route in routes]
        return {number for pair in pairs for number in self._by_route.get(pair, ())}


def _written(rule: Rule) -> str:
    """Write a route as it is looked up; a prefix may have been copied from an address bar, percent signs and all."""
    if not rule.route.startswith("/"):
        return rule.route
    try:
        return canonical_path(unquote(rule.route, errors="strict"))
    except UnicodeDecodeError:
        return canonical_path(rule.route)  # Such bytes stay percent signs in Django's paths too.


def _holders(prefixes: Sequence[str]) -> list[int]:
    """Number for each of some sorted prefixes the longest other that holds it, below 0: none."""
    holders: list[int] = []
    for number, prefix in enumerate(prefixes):
        holder = number - 1
        while holder >= 0 and not prefix.startswith(prefixes[holder]):
            holder = holders[holder]
        holders.append(holder)
    return holders


def _make_room(table: dict[Any, Any], size: int) -> None:
    if len(table) >= size:
        table.clear()


def _covers_admin(rule: Rule, place: Place) -> bool:
    """The admin site meets only the rules that name it."""
    if not place.admin_roots:
        return True
    if not rule.route.startswith("/"):
        return bool(rule.route)
    prefix = _written(rule)
    return any(prefix.startswith(root.rstrip("/")) for root in place.admin_roots)
