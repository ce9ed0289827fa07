"""Entries of the blacklist and the allowlist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.utils import timezone

from ratelimit_app.conf import conf
from ratelimit_app.core.entries import ALLOWABLE_KINDS, KINDS_HELP, canonical, canonical_kind
from ratelimit_app.core.identity import LISTABLE_KINDS, IdentityError
from ratelimit_app.models.fields import ExactCharField
from ratelimit_app.models.policies import PromotionPolicy
from ratelimit_app.models.validation import refuse
from ratelimit_app.normalizing import normalized
from ratelimit_app.querysets import BlacklistManager, PublishedManager

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class Origin(models.TextChoices):
    """Who made an entry."""

    MANUAL = "manual", "manual"
    PROMOTED = "promoted", "promoted"
    IMPORTED = "imported", "imported"


class Entry(models.Model):
    """What both lists have in common: an identity, why and how long it is listed, and who listed it."""

    listable: ClassVar[frozenset[str]] = LISTABLE_KINDS
    loaded_identity: str | None = None
    loaded_expires_at: datetime | None = None

    kind = ExactCharField(max_length=80, help_text=f"{KINDS_HELP}.")
    value = ExactCharField(
        max_length=200,
        help_text="An address or a network, a user's primary key, a device's id; what is secret is stored as a digest.",
    )
    reason = models.CharField(max_length=500, blank=True)
    source = models.CharField(max_length=8, choices=Origin.choices, default=Origin.MANUAL)
    expires_at = models.DateTimeField(null=True, blank=True, db_index=True, help_text="Blank: never.")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.identity

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save as Django does, with kind and value in their one form. Raises ValidationError when they have none."""
        self.prepare()
        super().save(*args, **kwargs)

    @classmethod
    def from_db(cls, *args: Any, **kwargs: Any) -> Any:
        """Know what the database had, so that a save can tell what it changes."""
        entry = super().from_db(*args, **kwargs)
        entry.remember()
        return entry

    def remember(self) -> None:
        """Take what this entry says now as what the database has."""
        known = self.__dict__
        self.loaded_identity = (
            f"{known['kind']}:{known['value']}" if {"kind", "value"} <= known.keys() else None
        )
        self.loaded_expires_at = known.get("expires_at")

    @property
    def identity(self) -> str:
        """The identity as it is written everywhere, such as `ip:203.0.113.9`."""
        return f"{self.kind}:{self.value}"

    def is_active(self, now: datetime | None = None) -> bool:
        """Whether it counts at this time (default: now)."""
        return self.expires_at is None or self.expires_at > (now or timezone.now())

    def is_extended(self) -> bool:
        """Whether it ends later than it did, or bans another identity than it did, in the database."""
        if self.loaded_identity != self.identity:
            return True
        before = self.loaded_expires_at
        return before is not None and (self.expires_at is None or self.expires_at > before)

    def prepare(self) -> None:
        """Bring kind and value into their one form. Raises ValidationError when they have none."""
        self.kind, self.value = _canonical(self.kind, self.value, self.listable)

    def clean(self) -> None:
        """Normalise as `save` does, so that a form says it beside the field, and finds a row of the same identity."""
        super().clean()
        self.prepare()

    @classmethod
    def clean_update(cls, rows: models.QuerySet[Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Give the values of an `update`, a literal kind and value in their one form. Raises ValidationError."""
        literals = {name: v for name, v in values.items() if not hasattr(v, "resolve_expression")}
        if "value" not in literals:
            if "kind" in literals:
                refuse("kind", "A kind is updated together with its value: give both.")
            return dict(values)
        kinds = (
            [literals["kind"]]
            if "kind" in literals
            else list(rows.order_by().values_list("kind", flat=True).distinct())
        )
        if len(kinds) > 1:
            refuse(
                "value",
                f"{literals['value']!r:.80} would go to rows of several kinds: update each kind on its own.",
            )
        if not kinds:
            return dict(values)
        kind, value = _canonical(kinds[0], literals["value"], cls.listable)
        return {**values, "value": value} | ({"kind": kind} if "kind" in literals else {})


class BlacklistEntry(Entry):
    """An identity that is turned away. Several may name one identity: the longest ban counts."""

    level = models.PositiveIntegerField(default=0, help_text="How often this identity has been promoted.")
    policy = models.ForeignKey(
        PromotionPolicy, null=True, blank=True, on_delete=models.SET_NULL, related_name="entries"
    )
    evidence = models.TextField(
        blank=True, help_text="Of a promotion: which rules, how many offences, and when."
    )
    announced_at = models.DateTimeField(null=True, blank=True, editable=False)
    # What a row is unique by, beside its source: a policy promotes an identity once; nobody bans or imports it twice.
    # An index of some rows only would say it more plainly, but MySQL and MariaDB have none.
    holder = models.GeneratedField(
        expression=Case(
            When(source="promoted", then=F("policy")),
            default=Value(0),
            output_field=models.BigIntegerField(null=True),
        ),
        output_field=models.BigIntegerField(null=True),
        db_persist=True,
    )

    objects = BlacklistManager()

    class Meta:
        ordering = ("-created_at", "-pk")
        verbose_name_plural = "blacklist entries"
        constraints = (
            models.UniqueConstraint(
                fields=("kind", "value", "source", "holder"),
                name="ratelimit_blacklisted_once",
                violation_error_message="This identity has such an entry already: extend that one.",
            ),
            models.CheckConstraint(condition=~Q(kind="") & ~Q(value=""), name="ratelimit_blacklisted_named"),
            models.CheckConstraint(
                condition=Q(source__in=Origin.values), name="ratelimit_blacklisted_source"
            ),
            models.CheckConstraint(condition=Q(level__gte=0), name="ratelimit_blacklisted_level"),
        )


class AllowlistEntry(Entry):
    """An identity that always passes, even when it is blacklisted too."""

    listable = ALLOWABLE_KINDS

    objects = PublishedManager()

    class Meta:
        ordering = ("-created_at", "-pk")
        verbose_name_plural = "allowlist entries"
        constraints = (
            models.UniqueConstraint(
                fields=("kind", "value", "source"),
                name="ratelimit_allowlisted_once",
                violation_error_message="This identity has such an entry already: extend that one.",
            ),
            models.CheckConstraint(condition=Q(kind__in=["ip", "user"]), name="ratelimit_allowlisted_kind"),
            models.CheckConstraint(condition=~Q(value=""), name="ratelimit_allowlisted_named"),
            models.CheckConstraint(
                condition=Q(source__in=Origin.values), name="ratelimit_allowlisted_source"
            ),
        )


def _canonical(kind: str, value: str, kinds: frozenset[str]) -> tuple[str, str]:
    try:
        kind = canonical_kind(kind, kinds)
    except IdentityError as error:
        refuse("kind", str(error))
    try:
        return canonical(kind, str(value), conf.key_secret, kinds=kinds, normalize=normalized)
    except IdentityError as error:
        refuse("value", str(error))
