"""A replay's report reads well, as text and as data."""

from __future__ import annotations

import pytest

from ratelimit_app.core.identity import parse_sources
from ratelimit_app.core.rates import Rate
from ratelimit_app.core.replay import Identifier, Judgement, Offender, Recording, Window, judge
from ratelimit_app.core.replay_report import as_data, as_text, printable
from ratelimit_app.core.rules import rule_from_dict

RULE = rule_from_dict({"name": "sale", "rate": "1/m", "key": "user+ip", "route": "shop:grab"})


def recording(*lines: bytes) -> Recording:
    """Record lines by user and address."""
    made = Recording(Identifier(parse_sources("user+ip"), b""), lambda entry: True)
    for line in lines:
        made.add(line)
    return made


def test_as_text_aligns_numbers_to_the_right_and_text_to_the_left():
    """A person finds the columns under their heads."""
    line = b'192.0.2.1 - al [17/May/2015:10:05:00 +0000] "GET / HTTP/1.1" 200 1'
    made = recording(line, line)
    text = as_text(RULE, made, judge(made, RULE.rates), logs=["a\x1b.log"])
    assert text.splitlines()[:2] == [
        "a\\x1b.log: 2015-05-17 10:05:00 to 2015-05-17 10:05:00 (times in UTC)",
        "rule 'sale': 1/m by user+ip, sliding_window, route 'shop:grab'",
    ]
    assert "\n".join(text.splitlines()[-6:]) == (
        "  identity              requests  denied  first denied         last denied\n"
        "  user:al+ip:192.0.2.1         2       1  2015-05-17 10:05:00  2015-05-17 10:05:00\n"
        "\n"
        "Busiest windows for 1/m, one for each identity, all requests counted\n"
        "  identity              requests  after                to\n"
        "  user:al+ip:192.0.2.1         2  2015-05-17 10:04:00  2015-05-17 10:05:00"
    )


def test_as_text_of_nothing_says_so():
    """An empty log has a report too."""
    text = as_text(RULE, recording(), Judgement([], []), logs=["-"])
    assert text.startswith("-: nothing to judge (times in UTC)")
    assert text.endswith("Nobody would have been denied.")


def test_as_data_when_times_are_beyond_the_calendar_clamps_them():
    """A line of the year 9999 and a period before the year 1 end no report."""
    far = 10**18
    offender = Offender(identity="ip:a", requests=1, denied=1, first_denied_us=far, last_denied_us=far)
    window = Window(identity="ip:a", rate=Rate(1, 60_000_000), start_us=-far, end_us=0, requests=1)
    data = as_data(RULE, recording(), Judgement([offender], [window]))
    assert data["offenders"][0]["first_denied"].startswith("9999-12-31T23:59:59")
    assert ("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z") == (
        data["busiest"][0]["window_start"],
        data["busiest"][0]["window_end"],
    )


@pytest.mark.parametrize(("top", "offenders", "windows"), [(None, 12, 10), (3, 3, 3)])
def test_as_data_gives_all_offenders_unless_told_otherwise(top, offenders, windows):
    """Programs get every offender and ten windows, or as many as they ask for."""
    lines = [
        b'192.0.2.%d - - [17/May/2015:10:05:00 +0000] "GET / HTTP/1.1" 200 1' % (n // 2) for n in range(24)
    ]
    made = recording(*lines)
    data = as_data(RULE, made, judge(made, RULE.rates), top=top)
    assert (offenders, windows) == (len(data["offenders"]), len(data["busiest"]))
    assert data["denied"] == 12


def test_printable_escapes_what_a_terminal_would_obey():
    """Control, C1, line and direction characters are escaped; letters of any script are not."""
    assert printable("a\x1b[31m\x9b\n\u202e\u2028é漢") == "a\\x1b[31m\\x9b\\n\\u202e\\u2028é漢"
