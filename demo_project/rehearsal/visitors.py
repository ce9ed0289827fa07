"""Visitors of the site, and what became of their requests: a small HTTP/1.1 client, faster than the server it loads."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

ANSWER_TIMEOUT = 20.0  # seconds
RECEIPTS = (HTTPStatus.CREATED, HTTPStatus.CONFLICT)
NO_ANSWER = 0  # the status of a request that the server left unanswered


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said: `status` is 0 when it said nothing."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """Read the body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Counted:
    """A rule at work on one identity: what was charged under it stands or falls together."""

    rule: str
    identity: str
    limit: int
    period: int  # microseconds


@dataclass(slots=True)
class Group:
    """One kind of visitor: what they do, how they were answered, and what the limiter charged them."""

    name: str
    about: str
    genuine: bool = False
    statuses: Counter[int] = field(default_factory=Counter)
    undecided: int = 0  # orders that no rule was charged for: Redis did not answer in time
    sent_at: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # account: microseconds
    charged_at: dict[Counted, list[int]] = field(default_factory=lambda: defaultdict(list))
    visitors: dict[str, Visitor] = field(default_factory=dict)  # identity: who it was last

    @property
    def asked(self) -> int:
        """How many requests the group has sent."""
        return self.statuses.total()

    def note(self, visitor: Visitor, answer: Answer) -> None:
        """Keep what an answer tells: the status, and when the server charged which rule for whom."""
        self.statuses[answer.status] += 1
        receipt = answer.json() if answer.status in RECEIPTS else {"decided_at": {}}
        charges = json.loads(answer.headers.get("x-charges", "[]"))
        self.undecided += answer.status in RECEIPTS and not charges
        for rule, identity, limit, period, at in charges:
            # An order for several is charged that often, under the rules that its receipt names.
            units = receipt["quantity"] if rule in receipt["decided_at"] else 1
            self.charged_at[Counted(rule, identity, limit, period)] += [at] * units
            self.visitors[identity] = visitor


@dataclass(slots=True)
class Visitor:
    """One client: an address as the balancer reports it, and perhaps an account and a device."""

    site: tuple[str, int]
    group: Group
    address: str
    token: str = ""
    device: str = ""
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def grab(self, coupon: str, quantity: int = 1) -> Answer:
        """Try to grab coupons."""
        self.group.sent_at[self.token].append(time.time_ns() // 1_000)
        return await self._ask("POST", f"/api/coupons/{coupon}/grab/", json.dumps({"quantity": quantity}))

    async def pay(self, coupon: str) -> Answer:
        """Pay for a coupon."""
        return await self._ask("POST", f"/api/coupons/{coupon}/pay/", "{}")

    async def look(self, path: str) -> Answer:
        """Read a page."""
        return await self._ask("GET", path)

    async def leave(self) -> None:
        """Close the connection."""
        if self._streams:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, method: str, path: str, body: str = "") -> Answer:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                answer = await self._exchange(self._request(method, path, body))
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            answer = Answer(NO_ANSWER)
        if answer.status == NO_ANSWER or answer.headers.get("connection") == "close":
            await self.leave()
        self.group.note(self, answer)
        return answer

    def _request(self, method: str, path: str, body: str) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self.site[0]}:{self.site[1]}",
            "Accept: application/json",
            f"X-Forwarded-For: {self.address}",
        ]
        if self.token:
            lines.append(f"Authorization: Token {self.token}")
        if self.device:
            lines.append(f"X-Device-Id: {self.device}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()

    async def _exchange(self, request: bytes) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self.site)
        reader, writer = self._streams
        writer.write(request)
        status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(status_line.split()[1]), headers, body)
