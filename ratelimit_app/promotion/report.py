"""What a run of the promotion did, as values that people and programs read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ratelimit_app.promotion.clock import moment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ratelimit_app.core.escalation import Ban


@dataclass(frozen=True, slots=True)
class Promotion:
    """
    One ban, begun or (`dry_run`) only found to be due.

    `score`: the weighted offences; `rules`: offences by rule, or by `@group` for rules in code.
    """

    identity: str
    policy: str
    level: int
    expires_at: datetime
    offences: int
    score: int
    rules: Mapping[str, int]
    first_at: datetime
    last_at: datetime
    dry_run: bool = False

    @property
    def reason(self) -> str:
        """Say in one line who banned whom for what, for the admin."""
        rules = ", ".join(f"{slot} {count}" for slot, count in sorted(self.rules.items()))
        span = f"{self.first_at:%Y-%m-%d %H:%M:%S} to {self.last_at:%H:%M:%S} UTC"
        return f"Policy {self.policy}: {self.offences} offences ({rules}), {span}"

    @property
    def evidence(self) -> dict[str, Any]:
        """Give what it was earned with as plain data, for the entry's `evidence`."""
        return {
            "policy": self.policy,
            "rules": dict(self.rules),
            "offences": self.offences,
            "score": self.score,
            "first": self.first_at.isoformat(),
            "last": self.last_at.isoformat(),
        }

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as plain data."""
        ban = {"identity": self.identity, "level": self.level, "expires_at": self.expires_at.isoformat()}
        return ban | self.evidence | {"dry_run": self.dry_run}


@dataclass(frozen=True, slots=True)
class Skipped:
    """
    One who reached the threshold and was not banned, and why.

    `allowlist`, `trusted_proxy`, `loopback`, `staff`, `shared_address` for an address behind which too many signed-in
    users were seen, or `not_listable` for text that no entry can hold.
    """

    identity: str
    policy: str
    reason: str


@dataclass(frozen=True, slots=True)
class Capped:
    """
    A policy that stopped at `max_blocks_per_run`, and how many it left unbanned.

    `max_share`: what stopped it, where that is the part of those who were seen within an hour; else None.
    """

    policy: str
    max_blocks_per_run: int
    left: int
    max_share: float | None = None

    @property
    def message(self) -> str:
        """Say what happened and what to do."""
        if self.max_share is not None:
            return (
                f"Policy {self.policy} has banned {self.max_share:.1%} of those seen within an hour and left {self.left} "
                "more: look at its rules, raise max_share, or set dry_run."
            )
        return (
            f"Policy {self.policy} stopped at {self.max_blocks_per_run} bans in one run and left {self.left} more: "
            "look at its rules, raise max_blocks_per_run, or set dry_run."
        )


@dataclass(frozen=True, slots=True)
class PromotionReport:
    """
    What one run did.

    `announced`: identities whose ban was announced by this run, those that a killed run had left included.
    `dry_run`: nothing was written, because the caller asked so. `busy`: another run did the work meanwhile.
    """

    promoted: tuple[Promotion, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    capped: tuple[Capped, ...] = ()
    announced: tuple[str, ...] = ()
    dry_run: bool = False
    busy: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Give the report as plain data, times in ISO 8601."""
        return {
            "promoted": [item.as_dict() for item in self.promoted],
            "skipped": [asdict(item) for item in self.skipped],
            "capped": [asdict(item) for item in self.capped],
            "announced": list(self.announced),
            "dry_run": self.dry_run,
            "busy": self.busy,
        }


def describe(identity: str, policy: str, ban: Ban, *, dry_run: bool) -> Promotion:
    """Make the report's line of a ban."""
    return Promotion(
        identity=identity,
        policy=policy,
        level=ban.level,
        expires_at=moment(ban.ends_s),
        offences=ban.tally.offences,
        score=ban.tally.score,
        rules=ban.tally.by_slot,
        first_at=moment(ban.tally.first_s),
        last_at=moment(ban.tally.last_s),
        dry_run=dry_run,
    )
