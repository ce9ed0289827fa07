"""Groups: rules that share one limit, what each of them keeps for itself, and which of them decides a request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ratelimit_app.core.rules import METERS, Rule, RuleError, room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# An instant that no clock reaches, in microseconds.
_NEVER_US = 1 << 62


def check_group(rules: Sequence[Rule]) -> None:
    """
    Refuse enforced rules of one group that cannot share a limit: the last is held to those before it.

    Raises RuleError.
    """
    first, last = rules[0], rules[-1]
    terms, others = _terms(first), _terms(last)
    different = [
        f"{part} ({terms[part]} and {others[part]})" for part in terms if terms[part] != others[part]
    ]
    if different:
        msg = "group"
        raise RuleError(
            msg,
            f"{last.name!r} cannot share the limit of the group {last.group!r} with {first.name!r}: they differ in "
            f"{', '.join(different)}. Make these the same, or name another group.",
        )
    reserved = sum(rule.reserve for rule in rules)
    for rule in rules:
        _check_room(rule, reserved)


def _terms(rule: Rule) -> dict[str, str]:
    """Give what rules that share a count must agree on."""
    terms = {
        "key": "+".join(str(source) for source in rule.sources),
        "periods": ", ".join(f"{rate.period:g} s" for rate in rule.rates),
        "algorithm": rule.algorithm,
        "burst": str(rule.burst or "the limit"),
    }
    # What drains has one speed, and that is its limit.
    return terms | {"rate": "; ".join(map(str, rule.rates))} if rule.algorithm in METERS else terms


def _check_room(rule: Rule, reserved: int) -> None:
    """Refuse a group in which a rule has no room beside what the others keep; a limit of 0 needs none."""
    held = reserved - rule.reserve
    for rate in rule.rates:
        most = room(rule, rate)
        if rate.limit and (reserved > most or held + rule.cost > most):
            msg = "reserve"
            raise RuleError(
                msg,
                f"The group {rule.group!r} reserves {reserved} units, {held} of them from {rule.name!r}: of the "
                f"{most} that its rate {rate} holds, that is too much. Write lower reserves, or a higher limit.",
            )


def join(members: Iterable[Rule], newcomers: Iterable[Rule]) -> None:
    """Refuse rules that cannot share the limits of their groups with these or each other. Raises RuleError."""
    groups: dict[str, list[Rule]] = {}
    for rule in share(members, lambda *_: None):
        if rule.shared:
            groups.setdefault(rule.group, []).append(rule)
    for rule in newcomers:
        if rule.shared:
            together = groups.setdefault(rule.group, [])
            together.append(rule)
            check_group(together)


def share(rules: Iterable[Rule], refuse: Callable[[Rule, RuleError], None]) -> tuple[Rule, ...]:
    """
    Give the rules, each with what the others of its group keep from it (`held`).

    Those that cannot share their group's limit with the ones before them, by name, are handed to `refuse` and left
    out. Rules that only watch are never left out: nothing is kept for them.
    """
    rules = tuple(rules)
    groups: dict[str, list[Rule]] = {}
    refused: set[str] = set()
    for rule in sorted((rule for rule in rules if rule.shared), key=lambda rule: rule.name):
        members = groups.setdefault(rule.group, [])
        try:
            check_group([*members, rule])
        except RuleError as error:
            refused.add(rule.name)
            refuse(rule, error)
        else:
            members.append(rule)
    reserved = {group: sum(rule.reserve for rule in members) for group, members in groups.items()}
    return tuple(_held(rule, reserved.get(rule.group, 0)) for rule in rules if rule.name not in refused)


def _held(rule: Rule, reserved: int) -> Rule:
    held = reserved - rule.reserve if rule.shared else reserved
    held = min([held, *(room(rule, rate) for rate in rule.rates)])
    return replace(rule, held=held) if held != rule.held else rule


def deciding(rules: Sequence[Rule]) -> list[Rule]:
    """
    Leave of the rules of each group that meet one request the one that decides it, at any time.

    That is the one with the greatest reserve, else with the lowest limit, else the first by name. Where it sleeps,
    by its start and end, the next one decides: as copies whose start and end are the other's end and start, so
    that the clock of Redis chooses.
    """
    groups: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.shared:
            groups.setdefault(rule.group, []).append(rule)
    if all(len(members) == 1 for members in groups.values()):
        return list(rules)
    chosen = {group: list(_in_turn(sorted(members, key=_rank))) for group, members in groups.items()}
    return [
        turn
        for rule in rules
        for turn in ([rule] if not rule.shared else (t for t in chosen[rule.group] if t.name == rule.name))
    ]


def _rank(rule: Rule) -> tuple[int, tuple[int, ...], str]:
    return (-rule.reserve, tuple(rate.limit for rate in rule.rates), rule.name)


def _in_turn(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Give each rule for the times at which none before it is awake."""
    free = [(0, _NEVER_US)]
    for rule in rules:
        left = []
        for start, end in free:
            begin, stop = max(start, rule.starts_us), min(end, rule.ends_us or _NEVER_US)
            if begin < stop:
                yield replace(rule, starts_us=begin, ends_us=stop if stop < _NEVER_US else 0)
                left += [(a, b) for a, b in ((start, begin), (stop, end)) if a < b]
            else:
                left.append((start, end))
        free = left
