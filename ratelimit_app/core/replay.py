"""
Replay an access log through a rule: who would have been denied, had the rule been there.

First a `Recording` takes the lines, in any order, and keeps one time for each request; then `judge` puts each
identity's requests in order and asks the reference algorithm about each at the line's own time. Time and memory
grow with the lines (8 bytes each, and some hundred for an identity), whatever the order of the log.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from ratelimit_app.core.access_log import Entry, Unreadable, parse_line
from ratelimit_app.core.addresses import network_text, parse_address
from ratelimit_app.core.algorithms import ALGORITHMS, MAX_LIMITS, State
from ratelimit_app.core.identity import Source, join, observed
from ratelimit_app.core.rates import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

AGENT = Source("header", "user-agent")
RECORDED_SOURCES = (Source("ip"), Source("user"), Source("user_or_ip"), Source("global"), AGENT)

# A sliding window gives every unit a tick of its own, a log all requests of a second the same time. Ticks of a
# nanosecond, and a period shorter by as many as a window ever holds, let those of one second leave together.
_TICKS = 1_000
_SPREAD = MAX_LIMITS["sliding_window"]


class ReplayError(ValueError):
    """A key that no access log can answer; the message says what could be asked instead."""

    def __init__(self, source: Source) -> None:
        known = ", ".join(map(str, RECORDED_SOURCES))
        super().__init__(
            f"{str(source)!r} is not in an access log: expected {known}, or several joined by '+'. "
            "Give --rate and a --key that a log holds."
        )


@dataclass(frozen=True, slots=True)
class Identifier:
    """
    Write the identity of a line as the doors write it for a request.

    `ipv4_prefix`, `ipv6_prefix`: a client is its network of this size. `secret`: the key of digests.
    A line without any of what is asked is counted by its client alone; a client that is no address is its own text.
    """

    sources: tuple[Source, ...]
    secret: bytes
    ipv4_prefix: int = 32
    ipv6_prefix: int = 64

    def __post_init__(self) -> None:
        for source in self.sources:
            if source not in RECORDED_SOURCES:
                raise ReplayError(source)

    def __call__(self, entry: Entry) -> str:
        """Give the identity of one line."""
        parts = [part for source in self.sources if (part := self._part(source, entry)) is not None]
        return join(parts) if len(parts) == len(self.sources) else self._client(entry.client)

    def _part(self, source: Source, entry: Entry) -> str | None:
        if source.kind == "global":
            return "global"
        if source.kind == "ip":
            return self._client(entry.client)
        if source == AGENT:
            return observed(AGENT, entry.user_agent, self.secret) if entry.user_agent else None
        return observed(Source("user"), entry.user, self.secret) if entry.user else None

    def _client(self, client: str) -> str:
        address = parse_address(client)
        if address is None:
            return observed(Source("ip"), client, self.secret)
        return f"ip:{network_text(address, self.ipv4_prefix, self.ipv6_prefix)}"


@dataclass(slots=True)
class Recording:
    """
    The requests of a log that a rule covers, as times for each identity.

    `lines` counts all but empty ones: `broken` could not be read, `unmatched` the rule does not cover, the rest
    are in `times` (microseconds since the epoch). `first_us`, `last_us`: the span of all lines that could be read.
    """

    identify: Callable[[Entry], str]
    covers: Callable[[Entry], bool]
    lines: int = 0
    broken: int = 0
    unmatched: int = 0
    first_us: int | None = None
    last_us: int | None = None
    times: dict[str, array[int]] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        """How many requests are judged."""
        return self.lines - self.broken - self.unmatched

    def add(self, line: bytes | Unreadable) -> None:
        """Take one line of a log: any bytes."""
        if isinstance(line, bytes) and not line.strip():
            return
        self.lines += 1
        entry = parse_line(line) if isinstance(line, bytes) else None
        if entry is None:
            self.broken += 1
        else:
            self._keep(entry)

    def _keep(self, entry: Entry) -> None:
        at = entry.at_us
        self.first_us = at if self.first_us is None else min(self.first_us, at)
        self.last_us = at if self.last_us is None else max(self.last_us, at)
        if self.covers(entry):
            self.times.setdefault(self.identify(entry), array("q")).append(at)
        else:
            self.unmatched += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offender:
    """An identity that would have been denied. Times are microseconds since the epoch."""

    identity: str
    requests: int
    denied: int
    first_denied_us: int
    last_denied_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    The busiest window of one identity, `(start_us, end_us]`, for one rate: all that was asked, denied or not.

    Times are microseconds since the epoch; the window ends with a request.
    """

    identity: str
    rate: Rate
    start_us: int
    end_us: int
    requests: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule would have done: `offenders` with the most denials first, the `busiest` windows first."""

    offenders: list[Offender]
    busiest: list[Window]

    @property
    def denied(self) -> int:
        """How many requests would have been denied."""
        return sum(offender.denied for offender in self.offenders)


def judge(
    recording: Recording,
    rates: Sequence[Rate],
    *,
    algorithm: str = "sliding_window",
    cost: int = 1,
    burst: int | None = None,
) -> Judgement:
    """Judge all requests of a recording; of several rates, a request that one denies is charged to none."""
    offenders, windows = [], []
    for identity, times in recording.times.items():
        ordered = sorted(times)
        denied = list(_denied(ordered, rates, algorithm=algorithm, cost=cost, burst=burst))
        if denied:
            offenders.append(_offender(identity, len(ordered), denied))
        windows += [_busiest(identity, ordered, rate) for rate in rates]
    offenders.sort(key=lambda offender: (-offender.denied, offender.first_denied_us, offender.identity))
    windows.sort(key=lambda window: (-window.requests, window.start_us, window.identity))
    windows.sort(key=attrgetter("rate.period_us"), reverse=True)
    return Judgement(offenders, windows)


def _denied(
    ordered: list[int], rates: Sequence[Rate], *, algorithm: str, cost: int, burst: int | None
) -> Iterator[int]:
    """Give the times of the requests that are denied."""
    ticks, ask = 1, ALGORITHMS[algorithm]
    if algorithm == "sliding_window":
        ticks, rates = _TICKS, [Rate(rate.limit, rate.period_us * _TICKS - _SPREAD) for rate in rates]
    states: list[State | None] = [None] * len(rates)
    for at in ordered:
        pairs = list(zip(states, rates, strict=True))
        judged = [ask(state, rate, at * ticks, cost, burst=burst) for state, rate in pairs]
        if all(outcome.allowed for _, outcome in judged):
            states = [after for after, _ in judged]
        else:
            yield at
            states = [ask(state, rate, at * ticks, 0, burst=burst)[0] for state, rate in pairs]


def _offender(identity: str, requests: int, denied: list[int]) -> Offender:
    return Offender(
        identity=identity,
        requests=requests,
        denied=len(denied),
        first_denied_us=denied[0],
        last_denied_us=denied[-1],
    )


def _busiest(identity: str, ordered: list[int], rate: Rate) -> Window:
    """Find the fullest window that ends with a request; of several, the first."""
    most, end, left = 0, ordered[0], 0
    for right, at in enumerate(ordered):
        while ordered[left] <= at - rate.period_us:
            left += 1
        if right - left + 1 > most:
            most, end = right - left + 1, at
    return Window(identity=identity, rate=rate, start_us=end - rate.period_us, end_us=end, requests=most)
