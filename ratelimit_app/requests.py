"""What a rule may ask of a Django request: who sent it and where it goes. Everything is looked up when asked."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler, SkipFile
from django.http import HttpRequest, QueryDict
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import RawPostDataException

from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import Address, client_address, network_text
from ratelimit_app.core.decision import Decision
from ratelimit_app.core.evaluation import Memory
from ratelimit_app.core.identity import NAMED_KINDS, Source, join, observed
from ratelimit_app.core.matching import Route
from ratelimit_app.core.rules import Rule
from ratelimit_app.core.snapshot import Snapshot
from ratelimit_app.routing import route_of

logger = logging.getLogger("ratelimit_app")

MAX_BODY = 1024 * 1024
_UNKNOWN: Any = object()
_IP, _USER, _SESSION = Source("ip"), Source("user"), Source("session")
_warned: set[str] = set()


class RequestFacts:
    """The facts of one request. `learn` and `alearn` make known what may cost a query: the user, the session."""

    __slots__ = (
        "_address",
        "_body",
        "_learned",
        "_parts",
        "_route",
        "memory",
        "raised",
        "request",
        "user_source",
    )

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.user_source: Any = request
        self.memory = Memory()
        self.raised: Decision | None = None
        self._address: Any = _UNKNOWN
        self._body: Any = _UNKNOWN
        self._learned: dict[str, str | None] = {}
        self._route: Route | None = None
        self._parts: dict[Source, str | None] = {}

    @property
    def address(self) -> Address | None:
        """The client's address, None when nobody trustworthy names one."""
        if self._address is _UNKNOWN:
            self._address = _client_address(self.request.META)
        return self._address  # type: ignore[no-any-return]

    @property
    def route(self) -> Route:
        """Where the request goes, by what the router resolves."""
        if self._route is None:
            self._route = route_of(self.request)
        return self._route

    def needs(self, rules: Iterable[Rule], snapshot: Snapshot, with_user: bool) -> Iterable[str]:
        """Give the facts that must be learned before these rules and the lists can be read."""
        sources = {source.kind for rule in rules if rule.key_function is None for source in rule.sources}
        kinds = snapshot.marked_kinds
        if with_user and "user" not in self._learned:
            if snapshot.allowed_users or "user" in kinds or {"user", "user_or_ip"} & sources:
                yield "user"
        if "session" not in self._learned and ("session" in sources or "session" in kinds):
            yield "session"

    def forget_user(self, source: Any) -> None:
        """Ask somebody else who the user is: a DRF request knows what Django's does not."""
        self.user_source = source
        self._learned.pop("user", None)
        self._parts.pop(_USER, None)

    def learn(self, fact: str) -> None:
        """Learn a fact, with whatever query it costs the project."""
        try:
            value = (
                _user_pk(getattr(self.user_source, "user", None)) if fact == "user" else self._session_key()
            )
        except Exception:
            value = self._unlearnable(fact)
        self._learned[fact] = value

    async def alearn(self, fact: str) -> None:
        """Like learn, without blocking the loop."""
        try:
            value = await self._auser() if fact == "user" else await self._asession_key()
        except Exception:
            value = self._unlearnable(fact)
        self._learned[fact] = value

    def _unlearnable(self, fact: str) -> None:
        """A project whose user or session cannot be read: the client counts by its address; the view will tell."""
        logger.warning("ratelimit.fact_unknown the %s of a request cannot be read", fact, exc_info=True)

    async def _auser(self) -> str | None:
        auser = getattr(self.request, "auser", None)
        return _user_pk(await auser() if auser else getattr(self.request, "user", None))

    def _session_key(self) -> str | None:
        session = getattr(self.request, "session", None)
        if session is None or not session.session_key:
            return None
        session.keys()
        return session.session_key  # type: ignore[no-any-return]

    async def _asession_key(self) -> str | None:
        session = getattr(self.request, "session", None)
        if session is None or not session.session_key:
            return None
        await session.akeys()
        return session.session_key  # type: ignore[no-any-return]

    def user_identity(self) -> str | None:
        """`user:<pk>` of a signed-in user who has been learned."""
        return self.part(_USER)

    def part(self, source: Source) -> str | None:
        """Give one part of an identity, None when the request has none of this kind."""
        if source not in self._parts:
            if source.kind == "ip":
                self._parts[source] = self._ip()
            elif source.kind == "global":
                self._parts[source] = "global"
            else:
                value = self._value(source)
                self._parts[source] = observed(source, value, conf.key_secret) if value else None
        return self._parts[source]

    def _ip(self) -> str:
        address = self.address
        if address is None:
            _warn_once(
                "no_address",
                "ratelimit.address_unknown a request has no client address: such requests share 'ip:unknown'. Behind"
                " a unix socket, put 'unix' into RATELIMIT_APP['TRUSTED_PROXIES'] and have the proxy send the header.",
            )
            return "ip:unknown"
        return "ip:" + network_text(address, conf.ipv4_prefix, conf.ipv6_prefix)

    def _value(self, source: Source) -> str | None:
        kind, name, request = source.kind, source.name, self.request
        if kind == "header":
            return request.headers.get(name)
        if kind == "device":
            return request.headers.get(conf.device_header)
        if kind == "cookie":
            return request.COOKIES.get(name)
        if kind == "param":
            return request.GET.get(name)
        if kind == "field":
            return self._field(name)
        if kind == "view":
            return self.route.view_name
        return self._learned.get(kind)

    def _field(self, name: str) -> str | None:
        if self._body is _UNKNOWN:
            self._body = _parsed_body(self.request)
        value = self._body.get(name)
        return value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True)

    def rule_identity(self, rule: Rule) -> str:
        """Give the identity that a rule counts by; without the asked one it is the client's network."""
        if rule.key_function is not None:
            value = rule.key_function(rule.name, self.request)
            text = "" if value is None else str(value)
            return observed(Source("key"), text, conf.key_secret) if text else self._ip()
        parts = []
        for source in rule.sources:
            part = self.part(_USER if source.kind == "user_or_ip" else source)
            if part is None:
                return self.part(_IP) or self._ip()
            parts.append(part)
        return join(parts)

    def mark_identities(self, snapshot: Snapshot, with_user: bool) -> Iterable[str]:
        """Give the identities of this request that may have a blacklist mark."""
        for kind in sorted(snapshot.marked_kinds):
            name = kind.partition(":")[2]
            if kind == "ip" and self.address is not None:
                yield self._ip()
                yield f"ip:{self.address}"
            elif kind == "user":
                if with_user and (user := self.part(_USER)):
                    yield user
            elif kind != "ip" and (name or kind not in NAMED_KINDS):
                if part := self.part(Source(kind.partition(":")[0], name)):
                    yield part


def facts_of(request: Any) -> RequestFacts:
    """Give the facts of a Django or DRF request: the same for all doors that it passes."""
    plain = getattr(request, "_request", request)
    facts = getattr(plain, "_ratelimit_app", None)
    if facts is None:
        facts = plain._ratelimit_app = RequestFacts(plain)
    if request is not plain and facts.user_source is not request:
        facts.forget_user(request)
    return facts  # type: ignore[no-any-return]


def _user_pk(user: Any) -> str | None:
    return str(user.pk) if user is not None and user.is_authenticated and user.pk is not None else None


def _client_address(meta: Mapping[str, Any]) -> Address | None:
    name = "HTTP_" + conf.client_ip_header.upper().replace("-", "_")
    header, peer = meta.get(name), meta.get("REMOTE_ADDR") or ""
    address = client_address(peer, [header] if header else [], conf.trusted_proxies, conf.trusts_unix)
    if header and address is not None and address.is_private and str(address) == peer:
        _warn_once(
            "unlisted_proxy",
            f"ratelimit.proxy_unlisted {conf.client_ip_header} arrives from the private address {peer}, which is not in"
            " RATELIMIT_APP['TRUSTED_PROXIES']: if it is your proxy, list it, or all its clients share one limit.",
        )
    return address


def _warn_once(what: str, message: str) -> None:
    if what not in _warned:
        _warned.add(what)
        logger.warning(message)


class _NoFiles(FileUploadHandler):
    """Parses a form without keeping its files."""

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        raise SkipFile

    def file_complete(self, file_size: int) -> None:
        return None


def _parsed_body(request: HttpRequest) -> Mapping[str, Any]:
    """Parse a copy of a body of up to 1 MiB; the view still reads its own. Anything unreadable has no fields."""
    kind = (request.content_type or "").lower()
    try:
        length = int(request.META.get("CONTENT_LENGTH") or 0)
        if not 0 < length <= MAX_BODY:
            return {}
        if kind == "application/json" or kind.endswith("+json"):
            value = json.loads(request.body)
            return value if isinstance(value, dict) else {}
        if kind == "application/x-www-form-urlencoded":
            return QueryDict(request.body, encoding=request.encoding or settings.DEFAULT_CHARSET)
        if kind == "multipart/form-data":
            handlers: list[FileUploadHandler] = [_NoFiles()]
            return MultiPartParser(request.META, BytesIO(request.body), handlers, request.encoding).parse()[0]
    except (ValueError, RecursionError, RawPostDataException, RequestDataTooBig, OSError):
        return {}
    except (MultiPartParserError, SuspiciousOperation, LookupError):
        return {}
    return {}
