"""Rules, as people edit them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import models, router
from django.db.models import F, Q

from ratelimit_app.core import rules as core
from ratelimit_app.core.algorithms import ALGORITHMS
from ratelimit_app.core.groups import join
from ratelimit_app.core.identity import SOURCES_HELP, IdentityError
from ratelimit_app.core.rates import GRAMMAR, RateError
from ratelimit_app.models.fields import ExactSlugField
from ratelimit_app.models.validation import refuse, to_us
from ratelimit_app.querysets import PublishedManager

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME = re.compile(r"[A-Za-z0-9_\-]{1,100}")
_ROUTE = re.compile(r"/[^\s?#]*|[^\s/:]+(:[^\s/:]+)*")
_PROMISED = [
    "sliding_window",
    "fixed_window",
    "sliding_counter",
    "token_bucket",
    "leaky_bucket",
    "gcra",
]
_ZERO_PERIOD = re.compile(r"/\s*0")


def algorithm_choices() -> list[tuple[str, str]]:
    """Give the algorithms that this release has."""
    return [(name, name.replace("_", " ")) for name in sorted(ALGORITHMS)]


def failure_choices() -> list[tuple[str, str]]:
    """Give the failure policies that this release has."""
    return [(name, name) for name in core.FAILURE_POLICIES]


class Mode(models.TextChoices):
    """What a rule does."""

    ENFORCE = "enforce", "enforce: deny what is over the limit"
    SHADOW = "shadow", "shadow: count and report, deny nothing"
    OFF = "off", "off"


class Rule(models.Model):
    """What is limited, by whom it is counted, and how much is allowed."""

    name = ExactSlugField(max_length=100, unique=True, help_text="Shown to clients in the RateLimit headers.")
    description = models.TextField(blank=True)
    scope = models.CharField(
        max_length=100,
        blank=True,
        help_text="A label set in code: a view's throttle_scope, a decorator's scope. Blank: any.",
    )
    route = models.CharField(
        max_length=200,
        blank=True,
        help_text="A view name such as coupons:grab, or a path prefix that begins with '/'. Blank: any.",
    )
    methods = models.CharField(
        max_length=100, blank=True, help_text="A comma list. Blank: all but OPTIONS. GET includes HEAD."
    )
    key = models.CharField(
        max_length=200, default="ip", help_text=f"Whose requests count together: {SOURCES_HELP}."
    )
    rate = models.CharField(max_length=200, help_text=f"{GRAMMAR}.")
    algorithm = models.CharField(max_length=32, choices=algorithm_choices, default="sliding_window")
    burst = models.PositiveIntegerField(null=True, blank=True, help_text="Blank: the rate's own limit.")
    cost = models.PositiveIntegerField(default=1, help_text="What one request takes; at most the limit.")
    mode = models.CharField(max_length=8, choices=Mode.choices, default=Mode.ENFORCE)
    on_failure = models.CharField(
        max_length=8,
        blank=True,
        choices=failure_choices,
        help_text="When Redis cannot answer. Blank: the setting.",
    )
    starts_at = models.DateTimeField(null=True, blank=True, help_text="Blank: always.")
    ends_at = models.DateTimeField(null=True, blank=True, help_text="Blank: always.")
    offence_weight = models.PositiveIntegerField(
        default=1, help_text="What one denial counts towards a promotion."
    )
    group = models.CharField(max_length=100, blank=True)
    reserve = models.PositiveIntegerField(null=True, blank=True)
    lease = models.PositiveIntegerField(null=True, blank=True)

    objects = PublishedManager()

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(condition=~Q(name="") & ~Q(key=""), name="ratelimit_rule_named"),
            # The grammar stands in the core; this keeps out what no grammar of rates could mean.
            models.CheckConstraint(
                condition=~(
                    Q(rate="") | Q(rate__contains="-") | Q(rate__contains=".") | Q(rate__contains="/0")
                ),
                name="ratelimit_rule_rate",
            ),
            models.CheckConstraint(condition=Q(cost__gte=1), name="ratelimit_rule_cost"),
            models.CheckConstraint(condition=Q(burst=None) | Q(burst__gte=1), name="ratelimit_rule_burst"),
            models.CheckConstraint(condition=Q(offence_weight__gte=0), name="ratelimit_rule_weight"),
            # All that are promised, so that a release which brings one needs no migration.
            models.CheckConstraint(condition=Q(algorithm__in=_PROMISED), name="ratelimit_rule_algorithm"),
            models.CheckConstraint(condition=Q(mode__in=Mode.values), name="ratelimit_rule_mode"),
            models.CheckConstraint(
                condition=Q(on_failure__in=["", "open", "closed", "local"]), name="ratelimit_rule_on_failure"
            ),
            models.CheckConstraint(
                condition=Q(starts_at=None) | Q(ends_at=None) | Q(ends_at__gt=F("starts_at")),
                name="ratelimit_rule_period",
                violation_error_message="The end must come after the start.",
            ),
        )

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save as Django does. Raises ValidationError for a rule that cannot be made, or cannot share its limit."""
        self.prepare()
        self.prepare_together([self], kwargs.get("using") or router.db_for_write(Rule, instance=self))
        super().save(*args, **kwargs)

    def clean(self) -> None:
        """Validate as `save` does, so that a form says it beside the field."""
        super().clean()
        self.prepare()
        self.prepare_together([self], router.db_for_write(Rule, instance=self))

    def prepare(self) -> None:
        """Raise ValidationError when this rule cannot be made."""
        self.to_core()

    def to_core(self) -> core.Rule:
        """Give what a process makes of this row. Raises ValidationError when it cannot be made."""
        self._check_form()
        try:
            return core.rule_from_dict(self.to_dict())
        except RateError as error:
            refuse("rate", str(error))
        except IdentityError as error:
            refuse("key", str(error))
        except core.RuleError as error:
            refuse(None if error.field == "rule" else error.field, str(error))
        except (ValueError, TypeError) as error:
            refuse(None, f"This is not a rule: {error}")

    @classmethod
    def prepare_together(cls, rows: Sequence[Rule], using: str) -> None:
        """Raise ValidationError when enforced rules, as they are to be, cannot share the limits of their groups."""
        newcomers = [rule for row in rows if row.group and (rule := row.to_core()).shared]
        if not newcomers:
            return
        groups = {rule.group for rule in newcomers}
        enforced = cls.objects.using(using).filter(group__in=groups, mode=Mode.ENFORCE).order_by("name")
        replaced = {row.pk for row in rows} | {row.name for row in rows}
        others = (row for row in enforced if not {row.pk, row.name} & replaced)
        members = [member for row in others if (member := _unspoilt(row))]
        try:
            join(members, newcomers)
        except core.RuleError as error:
            refuse(error.field, str(error))

    def _check_form(self) -> None:
        """Refuse what the core does not look at."""
        if not _NAME.fullmatch(str(self.name)):
            refuse("name", f"{self.name!r} is not a name: expected 1 to 100 letters, digits, '-' or '_'.")
        if self.route and not _ROUTE.fullmatch(self.route):
            refuse(
                "route",
                f"{self.route!r} is not a route: expected a view name such as 'coupons:grab', or a path prefix "
                "that begins with '/', without a query. Leave it blank for any.",
            )
        if _ZERO_PERIOD.search(str(self.rate)):
            refuse("rate", str(RateError(self.rate, "a period does not begin with 0")))
        if self.burst is not None and int(self.burst) < 1:
            refuse("burst", f"{self.burst!r} is not a burst: expected a whole number from 1, or nothing.")

    def to_dict(self) -> dict[str, Any]:
        """Give what a snapshot holds of this rule."""
        names = (
            "name",
            "scope",
            "route",
            "methods",
            "key",
            "rate",
            "algorithm",
            "burst",
            "cost",
            "mode",
            "on_failure",
            "group",
            "reserve",
            "lease",
        )
        row = {name: getattr(self, name) for name in names}
        return row | {"starts_us": to_us(self.starts_at), "ends_us": to_us(self.ends_at)}

    @classmethod
    def clean_update(cls, rows: models.QuerySet[Rule], values: Mapping[str, Any]) -> dict[str, Any]:
        """Give the values of an `update`. Raises ValidationError when a row could not be made with the literal ones."""
        literals = {name: value for name, value in values.items() if not hasattr(value, "resolve_expression")}
        changed = list(rows.order_by()) if literals else []
        for row in changed:
            for name, value in literals.items():
                setattr(row, name, value)
            row.prepare()
        cls.prepare_together(changed, rows.db)
        return dict(values)


def _unspoilt(row: Rule) -> core.Rule | None:
    """Give what a process makes of a row; None where raw SQL has spoilt it."""
    try:
        return row.to_core()
    except ValidationError:
        return None
