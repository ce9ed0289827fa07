"""The lists in the admin."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from ratelimit_app import lists
from ratelimit_app.admin.acting import block_danger
from ratelimit_app.admin.forms import AllowlistEntryForm, BlacklistEntryForm
from ratelimit_app.admin.status import PublishedAdmin, StatusAdmin
from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import parse_network
from ratelimit_app.core.entries import network_value, parse_identity, width_danger
from ratelimit_app.core.identity import IdentityError, kind_of, value_of
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Entry, Origin
from ratelimit_app.normalizing import normalized
from ratelimit_app.publishing import entries_published

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.db.models import QuerySet
    from django.http import HttpRequest

DAY = 86_400
# Messages about so many identities at once; nobody reads more.
MAX_TOLD = 20


class ActiveFilter(admin.SimpleListFilter):
    """Entries that count now, and those that have ended."""

    title = "active now"
    parameter_name = "active"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer both."""
        return [("yes", "Yes"), ("no", "No, ended")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Give the chosen ones."""
        is_active = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        if self.value() == "yes":
            return queryset.filter(is_active)
        return queryset.exclude(is_active) if self.value() == "no" else queryset


class EntryAdmin(PublishedAdmin):
    """What the admins of both lists have in common."""

    list_filter: ClassVar[Any] = (ActiveFilter, "source", "kind")
    search_fields = ("kind", "value", "reason")
    show_full_result_count = False
    made_here = ("source", "created_by", "created_at")

    @admin.display(description="identity", ordering="value")
    def identity(self, entry: Entry) -> str:
        """The identity as it is written everywhere."""
        return entry.identity

    @admin.display(boolean=True, description="active now")
    def active_now(self, entry: Entry) -> bool:
        """Whether the entry counts at this moment."""
        return entry.is_active()

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Let the form know who asks, so that nobody locks themselves out."""
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"danger": staticmethod(partial(self.danger, request))})

    def danger(self, request: HttpRequest, kind: str, value: str) -> str | None:
        """Say what listing this identity would break. None: nothing."""
        raise NotImplementedError

    def typed(self, request: HttpRequest, obj: Any) -> tuple[str, ...]:
        """Name the fields that people fill in; the box is for what is new, and for what is listed despite a danger."""
        fields = ("kind", "value", "reason", "expires_at")
        is_harmless = obj is not None and self.danger(request, obj.kind, obj.value) is None
        return fields if is_harmless else (*fields, "confirm")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """An identity is not edited: its entry is ended, and another one made."""
        return (*self.readonly_fields, "kind", "value") if obj else tuple(self.readonly_fields)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save, with whoever made it, and say so when it does not do what it seems to."""
        if not change:
            obj.created_by = request.user
        super().save_model(request, obj, form, change)
        if not obj.is_active():
            self.message_user(
                request, f"The entry of {obj.identity} has ended, and counts no more.", messages.WARNING
            )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by text, and by identity in whatever form it is typed: secrets by digest, addresses in networks."""
        found, may_repeat = super().get_search_results(request, queryset, search_term)
        if identity := _typed(search_term):
            kind, value = identity
            values = [value, *(network.partition(":")[2] for network in lists.covering(kind, value))]
            found |= queryset.filter(kind=kind, value__in=values)
        return found, may_repeat


@admin.register(BlacklistEntry)
class BlacklistEntryAdmin(EntryAdmin, StatusAdmin):
    """Who is turned away."""

    form = BlacklistEntryForm
    list_display = (
        "identity", "source", "reason", "active_now", "in_redis", "expires_at", "level", "policy", "created_by",
        "created_at",
    )  # fmt: skip
    list_filter: ClassVar[Any] = (*EntryAdmin.list_filter, "policy")
    list_select_related = ("policy", "created_by")
    actions = ("block", "extend", "unblock")
    readonly_fields = (*EntryAdmin.made_here, "level", "policy", "evidence", "active_now", "in_redis")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show what is known of a ban; a new one knows nothing yet."""
        ban = self.typed(request, obj)
        if obj is None:
            return [(None, {"fields": ban})]
        return [
            (None, {"fields": (*ban, ("active_now", "in_redis"))}),
            ("Where it comes from", {"fields": (*self.made_here, "policy", "level", "evidence")}),
        ]

    def published(self, rows: Sequence[Any]) -> list[bool | None]:
        """Say of each entry whether Redis has it."""
        return entries_published(rows)

    def danger(self, request: HttpRequest, kind: str, value: str) -> str | None:
        """Say whom this would lock out. None: nobody who matters."""
        return block_danger(request, kind, value)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save, and name what makes the ban void, or goes on when it has ended."""
        super().save_model(request, obj, form, change)
        if obj.is_active():
            for name in lists.allowing(obj.kind, obj.value):
                self._warn(request, f"The ban of {obj.identity} is void: {name} is on the allowlist.")
        else:
            self._tell_rest(request, [obj.identity])

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete, and name what goes on banning."""
        super().delete_model(request, obj)
        self._tell_rest(request, [obj.identity])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Delete, and name what goes on banning."""
        identities = [entry.identity for entry in queryset]
        super().delete_queryset(request, queryset)
        self._tell_rest(request, identities)

    @admin.action(description="Block the selected identities for 24 hours from now", permissions=["change"])
    def block(self, request: HttpRequest, queryset: QuerySet[BlacklistEntry]) -> None:
        """Make or extend a manual entry of each identity; promoted ones stay as they are."""
        entries = self._harmless(request, queryset)
        for entry in entries:
            made = lists.block(entry.identity, reason=entry.reason, period=DAY, created_by=request.user)
            self.log_change(request, made, "Blocked for 24 hours from now by an action.")
        self._say(request, "blocked", len(entries))

    @admin.action(description="Extend the selected bans by 24 hours", permissions=["change"])
    def extend(self, request: HttpRequest, queryset: QuerySet[BlacklistEntry]) -> None:
        """Let bans that are active last a day longer; endless ones stay so."""
        entries = self._harmless(request, queryset.filter(expires_at__gt=timezone.now()))
        lists.extend(BlacklistEntry.objects.filter(pk__in=[entry.pk for entry in entries]), DAY)
        for entry in entries:
            self.log_change(request, entry, "Extended by 24 hours by an action.")
        self._say(request, "extended", len(entries))

    @admin.action(description="Unblock the selected identities", permissions=["change", "delete"])
    def unblock(self, request: HttpRequest, queryset: QuerySet[BlacklistEntry]) -> None:
        """
        Lift all bans of the identities and forget their offences.

        Manual and imported entries are deleted, promoted ones end and keep their level.
        """
        same = BlacklistEntry.objects.filter(
            pk__in=queryset.values("pk"), kind=OuterRef("kind"), value=OuterRef("value")
        )
        every = BlacklistEntry.objects.filter(Exists(same))
        entries = list(every)
        identities = list(dict.fromkeys(entry.identity for entry in entries))
        self.log_deletions(request, every.exclude(source=Origin.PROMOTED))
        lists.lift(every, identities)
        for entry in entries:
            if entry.source == Origin.PROMOTED:
                self.log_change(request, entry, "Unblocked by an action.")
        self._say(request, "unblocked", len(entries))
        self._tell_rest(request, identities)

    def _harmless(self, request: HttpRequest, queryset: QuerySet[BlacklistEntry]) -> list[BlacklistEntry]:
        """Give the entries that may be blocked by an action, which has no box to tick; the others are named."""
        harmless = []
        for entry in queryset:
            danger = self.danger(request, entry.kind, entry.value)
            if danger is None:
                harmless.append(entry)
            else:
                self._warn(
                    request,
                    f"The ban of {entry.identity} is left as it is: {danger}. Open the entry to change it if you mean it.",
                )
        return harmless

    def _tell_rest(self, request: HttpRequest, identities: Iterable[str]) -> None:
        """Name the bans that still hold identities that have been let in."""
        for identity in list(dict.fromkeys(identities))[:MAX_TOLD]:
            kind, value = kind_of(identity), value_of(identity)
            if BlacklistEntry.objects.active().filter(kind=kind, value=value).exists():
                self._warn(
                    request, f"Still blocked: {identity}, by another entry of its own. Unblock the identity."
                )
            for network in lists.covering(kind, value):
                self._warn(request, f"Still blocked: {identity}, by {network}. Unblock that network too.")

    def _warn(self, request: HttpRequest, text: str) -> None:
        self.message_user(request, text, messages.WARNING)

    def _say(self, request: HttpRequest, what: str, count: int) -> None:
        self.message_user(
            request, f"{count} entries {what}.", messages.SUCCESS if count else messages.WARNING
        )


@admin.register(AllowlistEntry)
class AllowlistEntryAdmin(EntryAdmin):
    """Who always passes."""

    form = AllowlistEntryForm
    list_display = ("identity", "source", "reason", "active_now", "expires_at", "created_by", "created_at")
    list_select_related = ("created_by",)
    readonly_fields = EntryAdmin.made_here

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show what is known of an entry; a new one knows nothing yet."""
        entry = self.typed(request, obj)
        return [(None, {"fields": (*entry, *self.made_here) if obj else entry})]

    def danger(self, request: HttpRequest, kind: str, value: str) -> str | None:
        """Say that this lets nearly everybody pass. None: it does not."""
        try:
            return width_danger(parse_network(value)) if kind == "ip" else None
        except ValueError:
            return None  # Raw SQL can write what is no network; it allows nobody.


def _typed(term: str) -> tuple[str, str] | None:
    """Read what was typed into the search as an identity, None when it is none."""
    try:
        return "ip", network_value(term)
    except IdentityError:
        pass
    try:
        return parse_identity(term, conf.key_secret, normalize=normalized)
    except IdentityError:
        return None
