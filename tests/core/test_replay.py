"""A recorded log is judged as the rule would have judged it."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.access_log import Entry, read_lines
from ratelimit_app.core.identity import parse_sources
from ratelimit_app.core.rates import Rate, parse_rates
from ratelimit_app.core.replay import Identifier, Judgement, Recording, ReplayError, judge

FIXTURE = Path(__file__).parent.parent / "fixtures" / "access-2015.log.gz"
START = datetime(2015, 5, 17, 10, 5, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
SECOND_US = 1_000_000
seconds = st.lists(st.integers(0, 30), max_size=60)


def line(second: float, client: str = "203.0.113.9", request: str = "GET / HTTP/1.1") -> bytes:
    """Write one line, so many seconds after the start."""
    at = START + timedelta(seconds=second)
    return f'{client} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "{request}" 200 12'.encode()


def entry(client: str = "203.0.113.9", user: str | None = None, user_agent: str | None = None) -> Entry:
    """Make one entry."""
    return Entry(START_US, client, user, "GET", "/", user_agent)


def record(lines, key: str = "ip", covers=lambda entry: True) -> Recording:
    """Record lines by a key."""
    recording = Recording(Identifier(parse_sources(key), b"secret"), covers)
    for raw in lines:
        recording.add(raw)
    return recording


def replay(lines, rate: str) -> Judgement:
    """Judge lines by client address."""
    return judge(record(lines), parse_rates(rate))


def naive_denials(times: list[int], rates: list[tuple[int, int]]) -> list[int]:
    """Give the seconds of the denied, from a plain list of who was let in; rates are (limit, seconds)."""
    let_in: list[int] = []
    denied = []
    for now in sorted(times):
        full = [sum(1 for then in let_in if now - period < then <= now) >= limit for limit, period in rates]
        if any(full):
            denied.append(now)
        else:
            let_in.append(now)
    return denied


@pytest.fixture(scope="module")
def fixture_times() -> dict[str, list[int]]:
    """Read the fixture with nothing of ours but gzip: seconds of each client, in the log's order."""
    found: dict[str, list[int]] = {}
    for text in gzip.decompress(FIXTURE.read_bytes()).decode("latin-1").splitlines():
        client, _, rest = text.partition(" ")
        if '" 200 ' in rest or any(f'" {status} ' in rest for status in (206, 301, 304, 403, 404, 416, 500)):
            at = datetime.strptime(rest[rest.index("[") + 1 : rest.index("]")], "%d/%b/%Y:%H:%M:%S %z")
            found.setdefault(client, []).append(int(at.timestamp()))
    return found


@pytest.fixture(scope="module")
def recorded() -> Recording:
    """Record the fixture by client address."""
    with FIXTURE.open("rb") as stream:
        return record(read_lines(stream))


@pytest.mark.parametrize(
    ("rate", "rates"),
    [
        ("30/m", [(30, 60)]),
        ("5/s", [(5, 1)]),
        ("100/h", [(100, 3_600)]),
        ("10/10s; 100/h", [(10, 10), (100, 3_600)]),
        ("20/m; 50/d", [(20, 60), (50, 86_400)]),
    ],
)
def test_judge_of_the_fixture_agrees_with_a_naive_count(recorded, fixture_times, rate, rates):
    """On a real log every identity has the denials that a list of the admitted gives, first and last included."""
    expected = {}
    for client, times in fixture_times.items():
        denied = naive_denials(times, rates)
        if denied:
            expected[f"ip:{client}"] = (
                len(times),
                len(denied),
                denied[0] * SECOND_US,
                denied[-1] * SECOND_US,
            )
    found = judge(recorded, parse_rates(rate)).offenders
    assert expected
    assert expected == {
        o.identity: (o.requests, o.denied, o.first_denied_us, o.last_denied_us) for o in found
    }


def test_recording_of_the_fixture_counts_all_its_lines(recorded, fixture_times):
    """Ten thousand lines, one of them broken; all others are judged."""
    times = fixture_times
    assert (10_000, 1, 0) == (recorded.lines, recorded.broken, recorded.unmatched)
    assert sum(map(len, times.values())) == recorded.requests == 9_999
    assert len(times) == len(recorded.times)
    assert min(map(min, times.values())) * SECOND_US == recorded.first_us
    assert max(map(max, times.values())) * SECOND_US == recorded.last_us


@given(seconds, st.integers(0, 6), st.integers(1, 10), st.integers(0, 12), st.integers(11, 20))
def test_judge_of_any_timeline_agrees_with_a_naive_count(times, limit, period, longer_limit, longer):
    """With one rate or two, in any order of lines, the denied are those of a list of the admitted."""
    recording = record(line(second) for second in times)
    for rates in ([(limit, period)], [(longer_limit, longer), (limit, period)]):
        found = judge(recording, [Rate(most, length * SECOND_US) for most, length in rates])
        expected = naive_denials(times, rates)
        assert len(expected) == found.denied
        if expected:
            first, last = (START_US + second * SECOND_US for second in (expected[0], expected[-1]))
            assert (first, last) == (found.offenders[0].first_denied_us, found.offenders[0].last_denied_us)


@given(seconds, st.integers(1, 10), st.randoms())
def test_busiest_of_any_timeline_agrees_with_a_naive_count(times, period, shuffle):
    """The busiest window is the fullest `(end - period, end]` that ends with a request, the first of several."""
    shuffled = shuffle.sample(times, len(times))
    found = judge(record(line(second) for second in shuffled), [Rate(1, period * SECOND_US)]).busiest
    counts = {end: sum(end - period < second <= end for second in times) for end in sorted(times)}
    if counts:
        end = max(counts, key=counts.__getitem__)
        assert (counts[end], START_US + end * SECOND_US) == (found[0].requests, found[0].end_us)
        assert found[0].end_us - period * SECOND_US == found[0].start_us


def test_judge_when_lines_of_one_second_end_their_period_lets_all_of_them_leave():
    """A request exactly one period later finds the window empty: it is open at its start."""
    assert 0 == replay([line(0)] * 5 + [line(10)] * 5, "5/10s").denied
    assert 5 == replay([line(0)] * 5 + [line(9)] * 5, "5/10s").denied


@pytest.mark.parametrize(
    ("rates", "times", "denied"),
    [
        ("2/10s; 1/2s", [0, 1, 3], 1),
        ("1/10s; 1/4s", [0, 9, 10], 9),
    ],
)
def test_judge_when_one_of_two_rates_denies_charges_neither(rates, times, denied):
    """What one rate denies takes nothing of the other, whichever of them it is."""
    found = replay(map(line, times), rates)
    assert [(1, START_US + denied * SECOND_US)] == [(o.denied, o.first_denied_us) for o in found.offenders]


def test_judge_with_a_zero_rate_denies_everything():
    """`0/s` always denies."""
    assert 3 == replay([line(0), line(5), line(9)], "0/s").denied


def test_judge_with_a_cost_charges_it_for_each_request():
    """A rule's cost counts for every line."""
    recording = record([line(0), line(1), line(2)])
    assert 1 == judge(recording, parse_rates("5/m"), cost=2).denied


def test_judge_puts_the_worst_offender_first():
    """Offenders come with the most denials first, then by who was denied first."""
    lines = [line(0, "192.0.2.1")] * 3 + [line(0, "192.0.2.2")] * 5 + [line(5, "192.0.2.3")] * 5 + [line(9)]
    found = replay(lines, "1/m").offenders
    assert [("ip:192.0.2.2", 4), ("ip:192.0.2.3", 4), ("ip:192.0.2.1", 2)] == [
        (o.identity, o.denied) for o in found
    ]


def test_judge_of_several_rates_gives_the_busiest_windows_of_each():
    """Each rate has its own windows, the longest period first."""
    found = replay([line(0), line(0), line(30)], "1/s;9/m").busiest
    assert [("9/m", 3), ("1/s", 2)] == [(str(window.rate), window.requests) for window in found]


def test_judge_of_nothing_finds_nothing():
    """An empty log is no error."""
    assert Judgement([], []) == replay([], "1/s")


def test_judge_of_many_lines_at_one_instant_grows_with_the_lines():
    """A flood of one second costs the same for each line: twenty thousand are a moment's work."""
    start = datetime.now(tz=UTC)
    assert 19_900 == replay([line(0)] * 20_000, "100/m").denied
    assert (datetime.now(tz=UTC) - start).total_seconds() < 5


def test_recording_when_the_lines_are_shuffled_gives_the_same_judgement():
    """The order of a log does not matter, however far a line is from its place."""
    lines = [line(second, f"192.0.2.{second % 3}") for second in range(60)]
    shuffled = random.Random(7).sample(lines, len(lines))
    assert replay(lines, "5/20s") == replay(shuffled, "5/20s")


def test_recording_counts_broken_empty_and_unmatched_lines():
    """Empty lines are no lines; broken ones and those that the rule does not cover are counted."""
    lines = [b"\r\n", b"", b"garbage", line(0), line(1, request="GET /other HTTP/1.1"), b"\xff\xfe"]
    recording = record(lines, covers=lambda entry: entry.path == "/")
    assert (4, 2, 1, 1) == (recording.lines, recording.broken, recording.unmatched, recording.requests)
    assert (START_US, START_US + SECOND_US) == (recording.first_us, recording.last_us)


@given(st.lists(st.binary(max_size=80) | st.just(line(0)), max_size=10))
def test_recording_of_any_bytes_accounts_for_every_line(lines):
    """No bytes raise, and each line is broken, unmatched or judged."""
    recording = record(lines)
    judged = sum(len(times) for times in recording.times.values())
    assert recording.lines == recording.broken + recording.unmatched + judged
    assert judged == recording.requests


@pytest.mark.parametrize(
    ("key", "asked", "expected"),
    [
        ("ip", entry("2001:db8:1:2:3::9"), "ip:2001:db8:1:2::/64"),
        ("ip", entry("::ffff:203.0.113.9"), "ip:203.0.113.9"),
        ("ip", entry("host.example.com"), "ip:host.example.com"),
        ("ip", entry("\x1b[31mred"), "ip:%1B[31mred"),
        ("user", entry(user="alice"), "user:alice"),
        ("user", entry(), "ip:203.0.113.9"),
        ("user_or_ip", entry(user="alice"), "user:alice"),
        ("user_or_ip", entry(), "ip:203.0.113.9"),
        ("user+ip", entry(user="alice"), "user:alice+ip:203.0.113.9"),
        ("user+ip", entry(), "ip:203.0.113.9"),
        ("header:User-Agent", entry(), "ip:203.0.113.9"),
        ("global", entry(), "global"),
        ("global+ip", entry(), "global+ip:203.0.113.9"),
        ("global+user", entry(), "ip:203.0.113.9"),
    ],
)
def test_identifier_of_a_line_writes_what_the_doors_write(key, asked, expected):
    """Networks, users and agents are written as for requests; what a line lacks falls back to its client (C13)."""
    assert expected == Identifier(parse_sources(key), b"secret")(asked)


def test_identifier_of_a_user_agent_writes_a_digest():
    """Header values are never written as they are, and differ by value."""
    identify = Identifier(parse_sources("header:user-agent"), b"secret")
    first, second = (identify(entry(user_agent=agent)) for agent in ("Browser/1", "Browser/2"))
    assert first.startswith("header:user-agent:~")
    assert "Browser" not in first
    assert first != second


def test_identifier_of_prefixes_groups_their_networks():
    """Clients of one network are one identity."""
    identify = Identifier(parse_sources("ip"), b"", ipv4_prefix=24, ipv6_prefix=48)
    counts = Counter(
        identify(entry(client)) for client in ("192.0.2.1", "192.0.2.9", "2001:db8:1:2::1", "2001:db8:1:3::1")
    )
    assert Counter({"ip:192.0.2.0/24": 2, "ip:2001:db8:1::/48": 2}) == counts


@pytest.mark.parametrize(
    "key", ["session", "device", "cookie:a", "param:a", "ip+field:email", "header:x-forwarded-for", "view"]
)
def test_identifier_of_a_key_that_no_log_holds_is_refused(key):
    """What a log line cannot tell is refused with what it can."""
    with pytest.raises(ReplayError, match=r"not in an access log: expected ip, user, .*--key"):
        Identifier(parse_sources(key), b"")
