"""Promotion policies: from repeated denials to a ban."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, Q

from ratelimit_app.core.entries import KINDS_HELP, canonical_kind
from ratelimit_app.core.identity import IdentityError
from ratelimit_app.models.fields import ExactSlugField
from ratelimit_app.models.rules import Rule
from ratelimit_app.models.validation import refuse
from ratelimit_app.querysets import PublishedManager


class PromotionPolicy(models.Model):
    """When repeat offenders are banned, and for how long. Periods are seconds."""

    name = ExactSlugField(max_length=100, unique=True)
    enabled = models.BooleanField(default=True)
    rules = models.ManyToManyField(Rule, blank=True, related_name="policies", help_text="None chosen: all.")
    kinds = models.CharField(max_length=300, default="ip,user", help_text=f"A comma list of {KINDS_HELP}.")
    threshold = models.PositiveIntegerField(default=20, help_text="So many offences …")
    find_period = models.PositiveIntegerField(default=60, help_text="… within so many seconds are a ban …")
    block_period = models.PositiveIntegerField(default=300, help_text="… of so many seconds, the first time.")
    factor = models.FloatField(default=2, help_text="Each further ban is so many times longer …")
    max_block_period = models.PositiveIntegerField(default=86_400, help_text="… up to so many seconds.")
    decay_period = models.PositiveIntegerField(
        default=86_400, help_text="For each so many seconds since the last ban's end, one ban is forgotten."
    )
    max_blocks_per_run = models.PositiveIntegerField(
        default=100, help_text="A run that would ban more than so many stops there and raises an alert."
    )
    max_share = models.FloatField(
        null=True,
        blank=True,
        help_text="Of the addresses seen within an hour or two, the part that may be banned within an hour, "
        "such as 0.05. Blank: no cap.",
    )
    max_users = models.PositiveIntegerField(
        default=100,
        null=True,
        blank=True,
        help_text="An address behind which so many signed-in users were seen within an hour or two is not banned. "
        "Blank: it is.",
    )
    dry_run = models.BooleanField(default=False, help_text="Report who would be banned; ban nobody.")

    objects = PublishedManager()

    class Meta:
        ordering = ("name",)
        verbose_name_plural = "promotion policies"
        constraints = (
            models.CheckConstraint(condition=Q(threshold__gte=1), name="ratelimit_policy_threshold"),
            models.CheckConstraint(
                condition=Q(find_period__gte=1) & Q(block_period__gte=1) & Q(decay_period__gte=1),
                name="ratelimit_policy_periods",
            ),
            models.CheckConstraint(
                condition=Q(max_block_period__gte=F("block_period")),
                name="ratelimit_policy_longest",
                violation_error_message="The longest ban must be at least as long as the first.",
            ),
            models.CheckConstraint(condition=Q(factor__gte=1), name="ratelimit_policy_factor"),
            models.CheckConstraint(condition=Q(max_blocks_per_run__gte=1), name="ratelimit_policy_blocks"),
            models.CheckConstraint(condition=~Q(kinds=""), name="ratelimit_policy_kinds"),
            models.CheckConstraint(
                condition=Q(max_share=None) | Q(max_share__gt=0, max_share__lte=1),
                name="ratelimit_policy_share",
                violation_error_message="max_share is a part: more than 0 and at most 1, or blank for no cap.",
            ),
            models.CheckConstraint(
                condition=Q(max_users=None) | Q(max_users__gte=2),
                name="ratelimit_policy_users",
                violation_error_message="max_users is at least 2, or blank to ban shared addresses too.",
            ),
        )

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save as Django does. Raises ValidationError for kinds that cannot be listed."""
        self.prepare()
        super().save(*args, **kwargs)

    def kind_list(self) -> list[str]:
        """Give the kinds of identity that it may ban."""
        return [kind.strip() for kind in self.kinds.split(",") if kind.strip()]

    def prepare(self) -> None:
        """Bring the kinds into their one form. Raises ValidationError for one that cannot be listed."""
        try:
            self.kinds = ",".join(dict.fromkeys(canonical_kind(kind) for kind in self.kind_list()))
        except IdentityError as error:
            refuse("kinds", str(error))
        if not self.kinds:
            refuse("kinds", f"No kind is named: expected a comma list of {KINDS_HELP}.")

    def clean(self) -> None:
        """Validate as `save` does, so that a form says it beside the field."""
        super().clean()
        self.prepare()
