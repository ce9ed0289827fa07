"""What a rule may ask of a Django request: who sent it and where it goes. Everything is looked up when asked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ratelimit_app.bodies import field_text, is_too_large, max_body, parsed_body
from ratelimit_app.clients import client_from, meta_name, warn_once
from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Memory, question
from ratelimit_app.core.identity import NAMED_KINDS, Source, join, observed, parse_sources
from ratelimit_app.core.plans import LEARNED
from ratelimit_app.exceptions import BodyTooLarge
from ratelimit_app.normalizing import normalized
from ratelimit_app.routing import Routed
from ratelimit_app.visitors import asession_of, auser_of, session_of, user_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.http import HttpRequest

    from ratelimit_app.core.addresses import Address, Client
    from ratelimit_app.core.asking import Door, Question
    from ratelimit_app.core.decision import Decision
    from ratelimit_app.core.plans import Plan
    from ratelimit_app.core.rules import Rule
    from ratelimit_app.core.snapshot import Snapshot

logger = logging.getLogger("ratelimit_app")

_UNKNOWN: Any = object()
_IP, _USER, _SESSION = Source("ip"), Source("user"), Source("session")


class RequestFacts(Routed):
    """
    The facts of one request. `learn` and `alearn` make known what may cost a query: the user, the session.

    `refused`: the answer to a try to authenticate that was turned away, whatever the view makes of it.
    `has_middleware`: ours will add the headers at the end. `throttling`: what DRF's throttles decide together.
    """

    raised: Decision | None = None
    refused: Decision | None = None
    has_middleware = False
    throttling: Any = None
    _client: Any = _UNKNOWN
    _body: Any = _UNKNOWN

    def __init__(self, request: HttpRequest) -> None:
        self.request: Any = request
        self.user_source: Any = request
        self.memory = Memory()
        self._learned: dict[str, str | None] = {}
        self._parts: dict[Source, str | None] = {}

    @property
    def client(self) -> Client | None:
        """Who sends the request, None when nobody trustworthy names an address."""
        client = self._client
        if client is _UNKNOWN:
            client = self._client = client_from(self.request.META)
        return client  # type: ignore[no-any-return]

    @property
    def address(self) -> Address | None:
        """The client's address, None when nobody trustworthy names one."""
        client = self.client
        return None if client is None else client.address

    @property
    def is_spared(self) -> bool:
        """Whether an outage spares the request: the admin site stays reachable, so that rules can be changed."""
        return bool(self.route.admin_root)

    def unknown(self, facts: Sequence[str]) -> Sequence[str]:
        """Give those of some facts that have not been learned; of the values, those that the project normalises."""
        if not facts:
            return facts
        learned, own = self._learned, conf.normalizers
        return [fact for fact in facts if fact not in learned and (fact in LEARNED or fact in own)]

    def forget_user(self, source: Any) -> None:
        """Ask somebody else who the user is: a DRF request knows what Django's does not."""
        self.user_source = source
        self._learned.pop("user", None)
        self._parts.pop(_USER, None)

    def learn(self, fact: str) -> None:
        """Learn a fact, with whatever query it costs the project."""
        self._learned[fact] = None
        try:
            self._learned[fact] = self._find(fact)
        except Exception:  # noqa: BLE001 - the project's own session or user backend may fail in any way
            _tell_unlearnable(fact)

    async def alearn(self, fact: str) -> None:
        """Like learn, without blocking the loop."""
        self._learned[fact] = None
        try:
            self._learned[fact] = await self._afind(fact)
        except Exception:  # noqa: BLE001 - as in learn
            _tell_unlearnable(fact)

    def _find(self, fact: str) -> str | None:
        if fact == "user":
            return user_of(self.user_source)
        return session_of(self.request) if fact == "session" else self._part_named(fact)

    async def _afind(self, fact: str) -> str | None:
        if fact == "user":
            return await auser_of(self.request)
        if fact == "session":
            return await asession_of(self.request)
        return await sync_to_async(self._part_named)(fact)

    def _part_named(self, fact: str) -> str | None:
        """What the project normalises counts as a fact: its normaliser may ask the database."""
        return self.part(parse_sources(fact)[0])

    def user_identity(self) -> str | None:
        """`user:<pk>` of a signed-in user who has been learned."""
        return self.part(_USER)

    def part(self, source: Source) -> str | None:
        """Give one part of an identity, None when the request has none of this kind."""
        parts = self._parts
        if source not in parts:
            if source.kind == "ip":
                parts[source] = self._ip()
            elif source.kind == "global":
                parts[source] = "global"
            else:
                value = self._value(source)
                if value and source.kind in NAMED_KINDS:
                    value = normalized(source, value)
                is_blank = not value or value.isspace()
                parts[source] = None if is_blank else observed(source, value or "", conf.key_secret)
        return parts[source]

    def _ip(self) -> str:
        client = self.client
        if client is None:
            warn_once(
                "no_address",
                "ratelimit.address_unknown a request has no client address: such requests share 'ip:unknown'. Behind"
                " a unix socket, put 'unix' into RATELIMIT_APP['TRUSTED_PROXIES'] and have the proxy send the header.",
            )
            return "ip:unknown"
        return client.network

    def _value(self, source: Source) -> str | None:
        read = _READERS.get(source.kind)
        return read(self, source.name) if read else self._learned.get(source.kind)

    def field(self, name: str) -> str | None:
        if self._body is _UNKNOWN:
            as_drf = self.user_source is not self.request or self.route.is_drf
            self._body = parsed_body(self.request, self.user_source, as_drf=as_drf)
        value = self._body.get(name)
        return value if value is None or isinstance(value, str) else field_text(value)

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
                self._refuse_unreadable(rule, source)
                return self._ip()
            parts.append(part)
        return join(parts)

    def _refuse_unreadable(self, rule: Rule, source: Source) -> None:
        """Who hides a field behind a body too large to read does not choose to be counted otherwise."""
        if source.kind == "field" and not rule.shadow and is_too_large(self.request):
            msg = f"The rule {rule.name!r} counts by {source}: the body is over {max_body()} bytes."
            raise BodyTooLarge(msg)

    def question(self, plan: Plan, snapshot: Snapshot, door: Door) -> Question:
        """Give the marks, the keys and the demands of these rules."""
        marks = self.mark_identities(snapshot, door.with_user)
        return question(plan, door.units, marks, self.rule_identity)

    def mark_identities(self, snapshot: Snapshot, with_user: bool) -> Sequence[str]:
        """Give the identities of this request that may have a blacklist mark."""
        found: list[str] = []
        for source in snapshot.mark_sources:
            if source.kind == "ip":
                client = self.client
                if client is not None:
                    found.append(client.network)
                    if client.whole != client.network:
                        found.append(client.whole)
            elif (with_user or source.kind != "user") and (part := self.part(source)) is not None:
                found.append(part)
        return found


_READERS: dict[str, Callable[[RequestFacts, str], str | None]] = {
    "header": lambda facts, name: _header(facts.request, name),
    "device": lambda facts, _: _header(facts.request, conf.device_header),
    "cookie": lambda facts, name: facts.request.COOKIES.get(name),
    "param": lambda facts, name: facts.request.GET.get(name),
    "field": lambda facts, name: facts.field(name),
    "view": lambda facts, _: facts.route.view_name,
}


def _header(request: HttpRequest, name: str) -> str | None:
    value: str | None = request.META.get(meta_name(name))
    return value


def facts_of(request: Any) -> RequestFacts:
    """Give the facts of a Django or DRF request: the same for all doors that it passes."""
    plain = getattr(request, "_request", request)
    facts = getattr(plain, "ratelimit_facts", None)
    if facts is None:
        facts = plain.ratelimit_facts = RequestFacts(plain)
    if request is not plain and facts.user_source is not request:
        facts.forget_user(request)
    return facts


def _tell_unlearnable(fact: str) -> None:
    """A project whose user or session cannot be read: the client counts by its address; the view will tell."""
    logger.warning("ratelimit.fact_unknown the %s of a request cannot be read", fact, exc_info=True)  # noqa: LOG014 - called while it is handled
