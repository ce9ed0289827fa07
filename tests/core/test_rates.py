"""Rates: what is read, what is refused, and that what is written is read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.rates import (
    GRAMMAR,
    MAX_LIMIT,
    MAX_PERIOD_US,
    Rate,
    RateError,
    parse_rate,
    parse_rates,
)
from tests.cases import BAD_RATES, MINUTE, RATES, SECOND


@pytest.mark.parametrize(("text", "expected"), RATES.items(), ids=repr)
def test_a_rate_when_written_well_is_read(text: str, expected: tuple[int, int]) -> None:
    """Every unit, its long forms and counts of them are understood (C134)."""
    rate = parse_rate(text)
    assert expected == (rate.limit, rate.period_us)


@pytest.mark.parametrize(("text", "reason"), BAD_RATES.items(), ids=repr)
def test_a_rate_when_ambiguous_or_nonsense_is_refused(text: str, reason: str) -> None:
    """The whole text must fit: no first letters, signs, fractions or empty periods (C134, C135)."""
    with pytest.raises(RateError, match=reason) as caught:
        parse_rates(text)
    assert repr(text) in str(caught.value)
    assert GRAMMAR in str(caught.value)


@pytest.mark.parametrize("value", [5, None, 1.5, True, b"5/s", ("5", "s")])
def test_a_rate_when_no_text_is_refused(value: object) -> None:
    """Another type is a RateError with the grammar, not a TypeError from within (C135)."""
    with pytest.raises(RateError, match="a rate is text"):
        parse_rates(value)


def test_rates_when_joined_come_longest_period_first() -> None:
    """Several rates in one text are all read, whatever their order."""
    expected = (Rate(1000, 3600 * SECOND), Rate(100, MINUTE), Rate(5, SECOND))
    assert expected == parse_rates("5/s; 1000/h ;100/m")


def test_one_rate_when_several_are_given_is_refused() -> None:
    """Where one rate is expected a second is no surprise that is dropped."""
    with pytest.raises(RateError, match="one rate is expected"):
        parse_rate("5/s;10/m")


def test_a_period_when_asked_for_is_in_seconds() -> None:
    """`Rate.period` is seconds, of any resolution."""
    assert (0.5, 300.0) == (parse_rate("20/500ms").period, parse_rate("100/5min").period)


def test_a_rate_when_finer_than_a_millisecond_still_has_a_text() -> None:
    """A period that code computed can be named in messages, though no text is read so."""
    assert "5/1.5ms" == str(Rate(5, 1_500))


@given(st.integers(0, MAX_LIMIT), st.integers(1, MAX_PERIOD_US // 1_000))
def test_a_rate_when_written_and_read_is_the_same(limit: int, period_ms: int) -> None:
    """Text and value go both ways for every rate of whole milliseconds."""
    rate = Rate(limit, period_ms * 1_000)
    assert rate == parse_rate(str(rate))


@given(st.text(max_size=40))
def test_any_text_when_parsed_is_a_rate_or_a_rate_error(text: str) -> None:
    """No text makes the parser fail in any other way, and what passes is within the bounds (C135)."""
    try:
        rates = parse_rates(text)
    except RateError:
        return
    assert all(0 <= rate.limit <= MAX_LIMIT and 0 < rate.period_us <= MAX_PERIOD_US for rate in rates)


@given(st.from_regex(r"\A[0-9]{1,4}/[0-9]{0,3}[a-z]{1,8}\Z"))
def test_a_unit_when_unknown_is_never_guessed(text: str) -> None:
    """A rate that is accepted uses a unit that is documented, in full (C134)."""
    try:
        parse_rates(text)
    except RateError:
        return
    unit = text.partition("/")[2].lstrip("0123456789")
    known = "ms s m h d w msec msecs millisecond milliseconds sec secs second seconds min mins minute minutes"
    assert unit in f"{known} hr hrs hour hours day days week weeks".split()
