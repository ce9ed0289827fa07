"""The report of a replay: as plain data for JSON, and as aligned text for people. Times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimit_app.core.replay import Judgement, Offender, Recording, Window
    from ratelimit_app.core.rules import Rule

DEFAULT_TOP = 10

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LATEST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def as_data(
    rule: Rule, recording: Recording, judgement: Judgement, *, top: int | None = None
) -> dict[str, Any]:
    """Give the report as plain data: all offenders and ten busiest windows of each rate, or `top` of both."""
    return {
        "lines": recording.lines,
        "broken": recording.broken,
        "unmatched": recording.unmatched,
        "first": _iso(recording.first_us),
        "last": _iso(recording.last_us),
        "rule": {
            "name": rule.name or None,
            "key": "+".join(map(str, rule.sources)),
            "rate": rate_text(rule),
            "algorithm": rule.algorithm,
            "route": rule.route,
            "methods": sorted(rule.methods),
            "cost": rule.cost,
        },
        "identities": len(recording.times),
        "requests": recording.requests,
        "denied": judgement.denied,
        "offenders": [_offender(offender) for offender in judgement.offenders[:top]],
        "busiest": [_window(window) for window in _shown(rule, judgement, top or DEFAULT_TOP)],
    }


def as_text(
    rule: Rule, recording: Recording, judgement: Judgement, *, logs: Sequence[str], top: int | None = None
) -> str:
    """Give the report for people."""
    top = top or DEFAULT_TOP
    span = (
        f"{_plain(recording.first_us)} to {_plain(recording.last_us)}"
        if recording.times
        else "nothing to judge"
    )
    sections = [
        _heading(rule, logs, span),
        _counts(recording, judgement),
        _offenders(judgement.offenders, top),
        *(
            _windows(rule, judgement, period_us=rate.period_us, top=top)
            for rate in rule.rates
            if recording.times
        ),
    ]
    return "\n\n".join(section for section in sections if section)


def rate_text(rule: Rule) -> str:
    """Write a rule's rates as people do."""
    return "; ".join(map(str, rule.rates))


def _heading(rule: Rule, logs: Sequence[str], span: str) -> str:
    named = f"rule {rule.name!r}: " if rule.name else ""
    where = f", route {rule.route!r}" if rule.route else ""
    by = "+".join(map(str, rule.sources))
    names = ", ".join(printable(log) for log in logs)
    return f"{names}: {span} (times in UTC)\n{named}{rate_text(rule)} by {by}, {rule.algorithm}{where}"


def _counts(recording: Recording, judgement: Judgement) -> str:
    rows = [
        ("lines", recording.lines, ""),
        ("broken", recording.broken, ""),
        ("not covered", recording.unmatched, ""),
        ("judged", recording.requests, f"of {len(recording.times):,} identities"),
        ("denied", judgement.denied, f"of {len(judgement.offenders):,} identities"),
    ]
    share = 100 * judgement.denied / max(recording.requests, 1)
    lines = [f"  {name:<12}{count:>12,}  {note}".rstrip() for name, count, note in rows]
    return "\n".join(lines) + (f" ({share:.1f} % of the judged)" if judgement.denied else "")


def _offenders(offenders: list[Offender], top: int) -> str:
    if not offenders:
        return "Nobody would have been denied."
    rows = [
        (o.identity, f"{o.requests:,}", f"{o.denied:,}", _plain(o.first_denied_us), _plain(o.last_denied_us))
        for o in offenders[:top]
    ]
    title = f"Who would have been denied ({_of(len(rows), len(offenders))})"
    return _table(title, ("identity", "requests", "denied", "first denied", "last denied"), rows)


def _windows(rule: Rule, judgement: Judgement, *, period_us: int, top: int) -> str:
    shown = [window for window in _shown(rule, judgement, top) if window.rate.period_us == period_us]
    rows = [(w.identity, f"{w.requests:,}", _plain(w.start_us), _plain(w.end_us)) for w in shown]
    title = f"Busiest windows for {shown[0].rate}, one for each identity, all requests counted"
    return _table(title, ("identity", "requests", "after", "to"), rows)


def _shown(rule: Rule, judgement: Judgement, top: int) -> list[Window]:
    """Give the first windows of each rate."""
    by_rate = ([window for window in judgement.busiest if window.rate == rate] for rate in rule.rates)
    return [window for windows in by_rate for window in windows[:top]]


def _of(shown: int, total: int) -> str:
    return f"the first {shown:,} of {total:,}" if shown < total else f"{total:,}"


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Align columns: numbers to the right, all else to the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [title]
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if name in {"requests", "denied"} else cell.ljust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def _offender(offender: Offender) -> dict[str, Any]:
    return {
        "identity": offender.identity,
        "requests": offender.requests,
        "denied": offender.denied,
        "first_denied": _iso(offender.first_denied_us),
        "last_denied": _iso(offender.last_denied_us),
    }


def _window(window: Window) -> dict[str, Any]:
    return {
        "identity": window.identity,
        "rate": str(window.rate),
        "window_start": _iso(window.start_us),
        "window_end": _iso(window.end_us),
        "requests": window.requests,
    }


def printable(text: str) -> str:
    """Escape what a terminal would obey: control characters and those that no font draws."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _moment(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=min(max(at_us, _EARLIEST_US), _LATEST_US))


def _iso(at_us: int | None) -> str | None:
    return None if at_us is None else _moment(at_us).isoformat().replace("+00:00", "Z")


def _plain(at_us: int | None) -> str:
    return "" if at_us is None else _moment(at_us).replace(tzinfo=None).isoformat(" ")
