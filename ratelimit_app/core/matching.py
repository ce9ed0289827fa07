"""Which rules a request meets, by what the router resolves; looked up once for each route, method and scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratelimit_app.core.groups import deciding
from ratelimit_app.core.rules import METHODS, Rule

if TYPE_CHECKING:
    from ratelimit_app.core.snapshot import Snapshot

MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Route:
    """
    What the router says of a path.

    `view_name`: blank when the path leads nowhere. `path`: canonical. `is_drf`: its view has DRF's throttles.
    `admin_root`: canonical path of the admin site when the view is one of its own, else blank.
    `literal`: the path with its dot segments, which Django does not resolve; blank without any.
    """

    view_name: str
    path: str
    is_drf: bool = False
    admin_root: str = ""
    literal: str = ""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Routes are remembered and looked up at every request: hashing five fields each time would cost more.
        object.__setattr__(self, "_hash", hash((self.view_name, self.path, self.admin_root)))

    def __hash__(self) -> int:
        return self._hash


def canonical_path(path: str, *, dots: bool = True) -> str:
    """Fold what spells the same place: letter case, doubled slashes, and dot segments unless `dots` is False."""
    parts: list[str] = []
    for part in path.casefold().split("/"):
        if dots and part == "..":
            parts = parts[:-1]
        elif part and not (dots and part == "."):
            parts.append(part)
    return "/" + "/".join(parts) + ("/" if parts and path.endswith("/") else "")


def select(snapshot: Snapshot, route: Route, method: str, *, scope: str, scopeless: bool) -> list[Rule]:
    """
    Give the rules of a scope, and those without one when `scopeless`, that a request of this route meets.

    Of rules that share a limit only one decides at any time (`groups.deciding`): a request is charged once.
    """
    table = snapshot.routes
    prefixes = table.get("prefixes")
    if prefixes is None:
        written = {rule.route for rule in snapshot.rules if rule.route.startswith("/")}
        table["prefixes"] = prefixes = {prefix: canonical_path(prefix) for prefix in written}
    hits = frozenset(text for text, prefix in prefixes.items() if _starts(route, prefix))
    method = method if method in METHODS else "?"
    key = (route.view_name, hits, method, scope, scopeless, route.admin_root)
    rules = table.get(key)
    if rules is None:
        if len(table) > MAX_REMEMBERED:
            table.clear()
            table["prefixes"] = prefixes
        scopes = {scope} - {""} | ({""} if scopeless else set())
        table[key] = rules = deciding(
            [
                rule
                for rule in snapshot.rules
                if rule.scope in scopes and rule.covers_method(method) and _covers_route(rule, route, hits)
            ]
        )
    return rules


def _starts(route: Route, prefix: str) -> bool:
    """
    A prefix that ends with a slash also stands for the same path without it.

    Django hands dot segments to the view as they are, so that both readings of them count.
    """
    paths = (route.path, route.literal or route.path)
    return any(path.startswith(prefix) or path + "/" == prefix for path in paths)


def _covers_route(rule: Rule, route: Route, hits: frozenset[str]) -> bool:
    """The admin site meets only the rules that name it."""
    if route.admin_root and not _names_admin(rule.route, route.admin_root):
        return False
    return not rule.route or rule.route == route.view_name or rule.route in hits


def _names_admin(route: str, admin_root: str) -> bool:
    return bool(route) and (
        not route.startswith("/") or canonical_path(route).startswith(admin_root.rstrip("/"))
    )
