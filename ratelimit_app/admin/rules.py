"""Rules in the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.utils import timezone

from ratelimit_app.admin.forms import RuleForm
from ratelimit_app.admin.status import StatusAdmin
from ratelimit_app.models import Mode, Rule
from ratelimit_app.publishing import rules_published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import QuerySet
    from django.http import HttpRequest


@admin.register(Rule)
class RuleAdmin(StatusAdmin):
    """Rules: who may ask how often."""

    form = RuleForm
    list_display = ("name", "mode", "rate", "key", "scope", "route", "methods", "active_now", "in_redis")
    list_filter = ("mode", "algorithm", "on_failure", "scope", "group")
    search_fields = ("name", "description", "scope", "route", "key", "group")
    actions = ("enable", "shadow", "disable")
    readonly_fields = ("active_now", "in_redis")
    fieldsets = (
        (None, {"fields": ("name", "description", "mode", ("active_now", "in_redis"))}),
        ("What it covers", {"fields": ("scope", "route", "methods", "starts_at", "ends_at")}),
        ("How much, for whom", {"fields": ("key", "rate", "algorithm", "burst", "cost")}),
        ("Shared limit", {"fields": ("group", "reserve", "lease")}),
        ("When things go wrong", {"fields": ("on_failure", "offence_weight")}),
    )

    def published(self, rows: Sequence[Any]) -> list[bool | None]:
        """Say of each rule whether Redis has it."""
        return rules_published(rows)

    @admin.display(boolean=True, description="active now")
    def active_now(self, rule: Rule) -> bool:
        """Whether the rule judges requests at this moment."""
        now = timezone.now()
        has_begun = rule.starts_at is None or rule.starts_at <= now
        return rule.mode != Mode.OFF and has_begun and (rule.ends_at is None or rule.ends_at > now)

    @admin.action(description="Enforce the selected rules", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Let the rules deny."""
        self._set_mode(request, queryset, Mode.ENFORCE)

    @admin.action(description="Only watch: put the selected rules into shadow mode", permissions=["change"])
    def shadow(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Let the rules count and report, and deny nothing."""
        self._set_mode(request, queryset, Mode.SHADOW)

    @admin.action(description="Switch the selected rules off", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Let the rules rest."""
        self._set_mode(request, queryset, Mode.OFF)

    def _set_mode(self, request: HttpRequest, queryset: QuerySet[Rule], mode: Mode) -> None:
        rules = list(queryset.exclude(mode=mode))
        try:
            queryset.filter(pk__in=[rule.pk for rule in rules]).update(mode=mode)
        except ValidationError as error:
            self.message_user(request, f"Nothing was changed: {' '.join(error.messages)}", messages.ERROR)
            return
        for rule in rules:
            self.log_change(request, rule, f"Mode changed from {rule.mode} to {mode.value} by an action.")
        self.message_user(request, f"{len(rules)} rules set to {mode.value}.", messages.SUCCESS)
