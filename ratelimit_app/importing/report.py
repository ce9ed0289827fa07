"""What an import has done, and what it has not taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratelimit_app.core.feeds import PassedOver

MAX_SAMPLES = 20
_MAX_REASONS = 100
OTHER = "for another reason"


@dataclass(slots=True)
class Report:
    """
    The rows of a list, counted.

    `name`: of the list. `accepted`: rows that list somebody, of whom `repeated` are named more than once. `created`, `updated`,
    `unchanged`, `removed`: entries of the database. `refused`: rows by why they are a fault; `left_out`: rows that
    list nobody rightly, as those that have ended. `samples`: the first refused rows. `published`: whether Redis has
    followed; None: it has nothing to follow yet.
    """

    name: str
    dry_run: bool = False
    accepted: int = 0
    repeated: int = 0
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    samples: list[PassedOver] = field(default_factory=list)
    published: bool | None = None

    def pass_over(self, row: PassedOver) -> None:
        """Count a row that is not taken."""
        counter = self.refused if row.is_fault else self.left_out
        # A reason may quote what it is about: the summary stays one.
        counter[row.why if row.why in counter or len(counter) < _MAX_REASONS else OTHER] += 1
        if row.is_fault and len(self.samples) < MAX_SAMPLES:
            self.samples.append(row)

    @property
    def is_finding(self) -> bool:
        """Whether somebody should have a look: something was refused, or Redis has not followed."""
        return bool(self.refused) or self.published is False

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain data."""
        counts = ("accepted", "repeated", "created", "updated", "unchanged", "removed")
        return {
            "list": self.name,
            "dry_run": self.dry_run,
            **{name: getattr(self, name) for name in counts},
            "refused": dict(self.refused),
            "left_out": dict(self.left_out),
            "samples": [{"line": row.line, "text": row.text, "why": row.why} for row in self.samples],
            "published": self.published,
        }
