"""Promotion policies in the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages

from ratelimit_app.admin.forms import OneErrorForm
from ratelimit_app.core.identity import CLIENT_CHOSEN_KINDS, DIGESTED_KINDS
from ratelimit_app.models import PromotionPolicy

if TYPE_CHECKING:
    from django.http import HttpRequest

    ModelAdmin = admin.ModelAdmin[PromotionPolicy]
else:
    ModelAdmin = admin.ModelAdmin

RISK = (
    "device, session, header:…, cookie:…, param:… and field:… are values that a client sends: who knows another's "
    "value can have it banned by misusing it, and who changes their own escapes the ban"
)


class PromotionPolicyForm(OneErrorForm):
    """A policy, with what its choices risk."""

    class Meta:
        model = PromotionPolicy
        fields = "__all__"
        help_texts = {
            "kinds": f"A comma list of the kinds of identity that may be banned. ip and user are safe; {RISK}."
        }


@admin.register(PromotionPolicy)
class PromotionPolicyAdmin(ModelAdmin):
    """Policies: when repeat offenders are banned, and for how long."""

    form = PromotionPolicyForm
    list_display = (
        "name",
        "enabled",
        "dry_run",
        "kinds",
        "threshold",
        "find_period",
        "block_period",
        "factor",
    )
    list_filter = ("enabled", "dry_run")
    search_fields = ("name", "kinds", "rules__name")
    filter_horizontal = ("rules",)
    fieldsets = (
        (None, {"fields": ("name", "enabled", "dry_run")}),
        ("Who", {"fields": ("rules", "kinds")}),
        ("When", {"fields": ("threshold", "find_period")}),
        ("How long", {"fields": ("block_period", "factor", "max_block_period", "decay_period")}),
        ("Emergency brake", {"fields": ("max_blocks_per_run", "max_share", "max_users")}),
    )

    def save_model(self, request: HttpRequest, obj: PromotionPolicy, form: Any, change: bool) -> None:
        """Save, and say what the chosen kinds risk."""
        super().save_model(request, obj, form, change)
        chosen = [
            kind for kind in obj.kind_list() if kind.partition(":")[0] in CLIENT_CHOSEN_KINDS | DIGESTED_KINDS
        ]
        if chosen:
            self.message_user(request, f"This policy may ban {', '.join(chosen)}: {RISK}.", messages.WARNING)
