"""Who reaches the threshold of a policy, before anything else is looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.db import router

from ratelimit_app import offences
from ratelimit_app.core.escalation import START, Ladder, Weights
from ratelimit_app.core.identity import kind_of
from ratelimit_app.models import BlacklistEntry, Mode, PromotionPolicy, Publication, Rule
from ratelimit_app.publishing import content

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimit_app.core.escalation import Line

RENEW_EVERY = 200


@dataclass(frozen=True, slots=True)
class Candidates:
    """A policy of one database, its numbers, and the offences of those who might be banned by it."""

    policy: PromotionPolicy
    alias: str
    ladder: Ladder
    weights: Weights
    kinds: frozenset[str]
    lines: dict[str, list[Line]] = field(default_factory=dict)

    def consider(self, identity: str, lines: list[Line], now_s: float) -> None:
        """Take up an identity whose offences would be enough if none of them were used up."""
        if self.ladder.judge(lines, self.weights, START, now_s=now_s):
            self.lines[identity] = lines


def aliases() -> list[str]:
    """Name the databases that hold rows of ours: the router's first."""
    home = router.db_for_write(BlacklistEntry)
    row = Publication.objects.using(home).filter(pk=1).first()
    return content.aliases(row) if row else [home]


def collect(databases: list[str], now_s: float, renew: Callable[[], None]) -> list[Candidates]:
    """Give the enabled policies of these databases, each with its candidates. Raises StoreUnavailable."""
    policies = [candidates for alias in databases for candidates in _policies(alias)]
    if not policies:
        return []
    since_s = now_s - max(candidates.ladder.find_period for candidates in policies)
    for number, identity in enumerate(offences.offenders(since_s)):
        if number % RENEW_EVERY == 0:
            renew()
        interested = [candidates for candidates in policies if kind_of(identity) in candidates.kinds]
        lines = offences.counts(identity) if interested else []
        for candidates in interested:
            candidates.consider(identity, lines, now_s)
    return policies


def _policies(alias: str) -> list[Candidates]:
    policies = PromotionPolicy.objects.using(alias).filter(enabled=True).order_by("pk")
    found = list(policies.prefetch_related("rules"))
    everything = list(Rule.objects.using(alias).order_by()) if found else []
    return [_candidates(policy, alias, everything) for policy in found]


def _candidates(policy: PromotionPolicy, alias: str, everything: list[Rule]) -> Candidates:
    chosen = list(policy.rules.all())
    # A rule that was switched off or to shadow bans nobody any more, not even for what it denied a minute ago.
    weights = {rule.name: rule.offence_weight for rule in chosen or everything if rule.mode == Mode.ENFORCE}
    return Candidates(
        policy, alias, _ladder(policy), Weights(weights, groups=not chosen), frozenset(policy.kind_list())
    )


def _ladder(policy: PromotionPolicy) -> Ladder:
    return Ladder(
        threshold=policy.threshold,
        find_period=policy.find_period,
        block_period=policy.block_period,
        factor=policy.factor,
        max_block_period=policy.max_block_period,
        decay_period=policy.decay_period,
    )
