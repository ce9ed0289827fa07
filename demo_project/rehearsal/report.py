"""What a rehearsed sale showed, as plain data and as a page of text."""

from __future__ import annotations

from collections import defaultdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from demo_project.rehearsal.crowds import BROWSING, PAYING
from demo_project.rehearsal.visitors import NO_ANSWER, Counted, Group
from demo_project.rehearsal.windows import most_by_fixed_windows, most_in_window

if TYPE_CHECKING:
    from collections.abc import Iterable

    from demo_project.rehearsal.sale import Banned, Outcome

SHARING = ("browse", "pay")  # the rules of one group, whose charges count together
REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.FORBIDDEN, HTTPStatus.SERVICE_UNAVAILABLE)

Report = dict[str, Any]


def make_report(outcome: Outcome, *, redis: dict[str, Any], duration: float) -> Report:
    """
    Judge a sale.

    `limit` and `max_in_window` are those of the rule that came nearest to being broken (or was); `rules` has all.
    `duration`: seconds from the first process to the last answer.
    """
    rules = _rules(outcome.groups)
    worst = max(rules.values(), key=lambda rule: rule["max_in_window"] / rule["limit"], default=None)
    asked = sum(group.asked for group in outcome.groups)
    report = {
        "groups": {group.name: _group(group) for group in outcome.groups},
        "limit": worst and worst["limit"],
        "max_in_window": worst and worst["max_in_window"],
        "rules": rules,
        "shared": _shared(outcome.groups),
        "fixed_windows_would_admit": _by_fixed_windows(outcome.groups),
        "promoted": [_banned(entry) for entry in outcome.banned],
        "genuine_denied": sum(_denied(group) for group in outcome.groups if group.genuine),
        "server_errors": sum(_count(group, range(500, 600)) for group in outcome.groups),
        "undecided": sum(group.undecided for group in outcome.groups),
        "unanswered": sum(group.statuses[NO_ANSWER] for group in outcome.groups),
        "requests_per_second": round(asked / outcome.seconds) if outcome.seconds else 0,
        "duration_s": round(duration, 1),
        "redis": redis,
    }
    return {**report, "findings": find_faults(report)}


def find_faults(report: Report) -> list[str]:
    """Say what went wrong, a sentence each; an empty list is a good sale."""
    faults = [
        f"{name}: {rule['max_in_window']} admitted in a window of {rule['period_s']} s, over the limit {rule['limit']}."
        for name, rule in report["rules"].items()
        if rule["max_in_window"] > rule["limit"]
    ]
    faults += _shared_faults(report["shared"])
    faults += [
        f"{banned['identity']} was banned and still served."
        for banned in report["promoted"]
        if banned["served"]
    ]
    sentences = {
        "genuine_denied": "requests of genuine users were refused.",
        "server_errors": "answers were server errors (5xx).",
        "unanswered": "requests were never answered.",
        "undecided": "orders were let through without a decision of Redis.",
    }
    faults += [f"{report[key]} {sentence}" for key, sentence in sentences.items() if report[key]]
    if not report["rules"]:
        faults.append("No rule charged anybody: the limiter did not work at all.")
    if not report["promoted"]:
        faults.append("Nobody was promoted to the blacklist: is the Celery worker running?")
    return faults


def _rules(groups: Iterable[Group]) -> dict[str, dict[str, Any]]:
    """Give for each rule the fullest window of any identity, by the server's own times of what it charged."""
    charged: defaultdict[Counted, list[int]] = defaultdict(list)
    for group in groups:
        for counted, times in group.charged_at.items():
            charged[counted] += times
    rules: dict[str, dict[str, Any]] = {}
    for counted, times in sorted(charged.items(), key=lambda item: (item[0].rule, item[0].identity)):
        most = most_in_window(times, counted.period)
        if most > rules.get(counted.rule, {"max_in_window": 0})["max_in_window"]:
            rules[counted.rule] = {
                "limit": counted.limit,
                "period_s": counted.period / 1_000_000,
                "max_in_window": most,
                "identity": counted.identity,
            }
    return rules


def _shared(groups: Iterable[Group]) -> dict[str, Any] | None:
    """Give what browsing and paying had of the limit that they share; None when neither was there."""
    crowds = {group.name: group for group in groups if group.name in (BROWSING, PAYING)}
    charged = [
        (counted, times)
        for group in crowds.values()
        for counted, times in group.charged_at.items()
        if counted.rule in SHARING
    ]
    if not charged:
        return None
    limit, period = charged[0][0].limit, charged[0][0].period
    return {
        "limit": limit,
        "period_s": period / 1_000_000,
        "max_in_window": most_in_window((time for _, times in charged for time in times), period),
        **{name: {"asked": group.asked, "refused": _denied(group)} for name, group in crowds.items()},
    }


def _shared_faults(shared: dict[str, Any] | None) -> list[str]:
    """Say what went wrong with a shared limit; that nobody who pays was refused is said of genuine users."""
    if shared is None:
        return []
    faults = []
    if shared["max_in_window"] > shared["limit"]:
        faults.append(
            f"{' and '.join(SHARING)} together: {shared['max_in_window']} admitted in a window of "
            f"{shared['period_s']} s, over the limit {shared['limit']}."
        )
    if not shared[BROWSING]["refused"]:
        faults.append("Nobody who browsed was refused: the shared limit was never reached.")
    return faults


def _by_fixed_windows(groups: Iterable[Group]) -> int:
    """Give the most that fixed windows would have let one account have, by the times of all its tries."""
    limits = {
        counted.limit: counted.period
        for group in groups
        for counted in group.charged_at
        if counted.rule == "per-user"
    }
    return max(
        (
            most_by_fixed_windows(times, limit, period)
            for limit, period in limits.items()
            for group in groups
            for times in group.sent_at.values()
        ),
        default=0,
    )


def _group(group: Group) -> dict[str, Any]:
    return {
        "about": group.about,
        "asked": group.asked,
        "got": group.statuses[HTTPStatus.CREATED],
        "limited": group.statuses[HTTPStatus.TOO_MANY_REQUESTS],
        "blocked": group.statuses[HTTPStatus.FORBIDDEN],
        "statuses": {str(status): count for status, count in sorted(group.statuses.items())},
    }


def _banned(entry: Banned) -> dict[str, Any]:
    return {
        "identity": entry.identity,
        "reason": entry.reason,
        "asked_after": len(entry.statuses),
        "got_403": entry.statuses.count(HTTPStatus.FORBIDDEN),
        "served": bool(entry.statuses) and not entry.turned_away,
    }


def _denied(group: Group) -> int:
    return sum(group.statuses[status] for status in REFUSALS)


def _count(group: Group, statuses: range) -> int:
    return sum(count for status, count in group.statuses.items() if status in statuses)


def as_text(report: Report) -> str:
    """Write a report for a person."""
    return "\n\n".join(
        (
            _groups_text(report["groups"]),
            _rules_text(report),
            *([_shared_text(report["shared"])] if report["shared"] else []),
            _promoted_text(report["promoted"]),
            _summary_text(report),
        )
    )


def _groups_text(groups: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'Who':<16}{'asked':>8}{'got one':>9}{'limited':>9}{'blocked':>9}{'other':>8}   what they did"]
    for name, group in groups.items():
        counts = [group[key] for key in ("got", "limited", "blocked")]
        numbers = "".join(f"{count:>9,}" for count in counts)
        lines.append(
            f"{name:<16}{group['asked']:>8,}{numbers}{group['asked'] - sum(counts):>8,}   {group['about']}"
        )
    return "\n".join([*lines, "(other: pages read, sold out or already grabbed, made-up tokens)"])


def _rules_text(report: Report) -> str:
    lines = ["The most that any rule admitted for one identity in one window, by the server's own times:"]
    lines += [
        f"  {name:<12}{rule['max_in_window']:>4} of {rule['limit']} in {rule['period_s']:g} s   {rule['identity']}"
        for name, rule in report["rules"].items()
    ]
    fixed = report["fixed_windows_would_admit"]
    return "\n".join([*lines, f"  (windows fixed to the clock would have admitted {fixed} for one user)"])


def _shared_text(shared: dict[str, Any]) -> str:
    lines = [
        f"When the shop is full, paying goes first: at most {shared['max_in_window']} of the {shared['limit']} "
        f"in {shared['period_s']:g} s that they share, a part of it kept for paying:"
    ]
    lines += [
        f"  {name:<12}{shared[name]['asked']:>6,} asked, {shared[name]['refused'] or 'none'} refused"
        for name in (BROWSING, PAYING)
    ]
    return "\n".join(lines)


def _promoted_text(promoted: list[dict[str, Any]]) -> str:
    lines = ["Put on the blacklist by the Celery job, and what their next requests got:"]
    lines += [
        f"  {banned['identity']:<28}403 for {banned['got_403']} of {banned['asked_after']}   {banned['reason']}"
        for banned in promoted
    ]
    return "\n".join(lines if promoted else ["Nobody was put on the blacklist."])


def _summary_text(report: Report) -> str:
    genuine = report["genuine_denied"]
    lines = [
        f"{report['requests_per_second']:,} requests a second, {report['duration_s']} s in all, "
        f"on {report['redis']['server']} {report['redis']['version']} ({report['redis']['where']}).",
        f"Genuine users refused: {genuine or 'none'}. Server errors: {report['server_errors'] or 'none'}.",
    ]
    verdict = [f"FAULT: {fault}" for fault in report["findings"]] or ["Nothing went over a limit."]
    return "\n".join([*lines, *verdict])
