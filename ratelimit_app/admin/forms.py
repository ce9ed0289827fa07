"""The admin's forms; those of list entries refuse what would break the site, unless it is confirmed."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils import timezone

from ratelimit_app.conf import conf
from ratelimit_app.core.entries import canonical
from ratelimit_app.core.identity import IdentityError
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Origin, Rule
from ratelimit_app.normalizing import normalized

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm


class OneErrorForm(ModelForm):
    """A form whose model does not judge again what the form has refused: it would judge a blank."""

    def _post_clean(self) -> None:
        refused = {field: copy(errors) for field, errors in self.errors.items()}
        super()._post_clean()  # type: ignore[misc]  # the stubs leave it out
        self.errors.update(refused)


class RuleForm(OneErrorForm):
    """A rule; what a shared limit means is said beside its fields."""

    class Meta:
        model = Rule
        fields = "__all__"
        help_texts = {
            "group": "Rules of one group share one count. They have the same key, periods, algorithm and burst; "
            "their limits may differ. Blank: a count of its own.",
            "reserve": "Units of the group's limit that its other rules must leave to this one, while it is "
            "enforced, whatever its start and end. Blank: none.",
            "lease": "Units that each process takes at a time, for one hot key: 2 to a tenth of the limit, at most "
            "1,000. Never over the limit; near it, some may be left over. Blank: as requests come.",
        }


class EntryForm(OneErrorForm):
    """What both lists' forms have in common."""

    # Set by the admin, which knows who asks: what listing an identity would break, None: nothing.
    danger: Callable[[str, str], str | None]
    confirm = forms.BooleanField(
        required=False,
        label="I know what this breaks",
        help_text="Tick this when an entry is refused because its network is too wide, or because it holds somebody "
        "who must not be locked out.",
    )

    def clean(self) -> dict[str, Any]:
        """Refuse an identity that is listed already, an end that has passed, and a danger that is not confirmed."""
        cleaned = super().clean() or self.cleaned_data
        try:
            identity = self._identity(cleaned)
        except IdentityError:
            return cleaned  # The model says it, beside the field.
        if identity is None or "expires_at" not in cleaned:
            return cleaned
        is_new = self.instance.pk is None
        if is_new:
            self._refuse_repeated(*identity)
            self._refuse_past(cleaned["expires_at"])
        if is_new or self._is_lengthened(cleaned["expires_at"]):
            self._refuse_danger(*identity, is_new=is_new)
        return cleaned

    def _identity(self, cleaned: dict[str, Any]) -> tuple[str, str] | None:
        """Give whom the entry names: an identity is typed once, and never edited. Raises IdentityError."""
        if self.instance.pk is not None:
            return self.instance.kind, self.instance.value
        if not {"kind", "value"} <= cleaned.keys():
            return None
        return canonical(
            cleaned["kind"],
            cleaned["value"],
            conf.key_secret,
            kinds=self._meta.model.listable,
            normalize=normalized,
        )

    def _refuse_repeated(self, kind: str, value: str) -> None:
        rows = self._meta.model.objects.filter(kind=kind, value=value, source=Origin.MANUAL)
        if rows.exists():
            self.add_error("value", f"{kind}:{value} has a manual entry already: edit or extend that one.")

    def _refuse_past(self, end: datetime | None) -> None:
        if end is not None and end <= timezone.now():
            self.add_error(
                "expires_at",
                f"{_local(end):%Y-%m-%d %H:%M:%S} has passed: such an entry would never count. "
                "Give a time to come, or leave it blank for ever.",
            )

    def _is_lengthened(self, end: datetime | None) -> bool:
        """Whether an entry ends later than it did, and later than now; the form has not touched it yet."""
        before = self.instance.expires_at
        return before is not None and (end is None or end > max(before, timezone.now()))

    def _refuse_danger(self, kind: str, value: str, *, is_new: bool) -> None:
        danger = self.danger(kind, value)
        if danger and not self.cleaned_data.get("confirm"):
            self.add_error(
                "value" if is_new else "expires_at",
                f"{kind}:{value} is refused: {danger}. Tick the box below if you mean it.",
            )


class BlacklistEntryForm(EntryForm):
    """A ban by hand."""

    class Meta:
        model = BlacklistEntry
        fields = ("kind", "value", "reason", "expires_at")


class AllowlistEntryForm(EntryForm):
    """Somebody who always passes."""

    class Meta:
        model = AllowlistEntry
        fields = ("kind", "value", "reason", "expires_at")


def _local(moment: datetime) -> datetime:
    """Give a time as whoever fills in the form writes it."""
    return moment if timezone.is_naive(moment) else timezone.localtime(moment)
