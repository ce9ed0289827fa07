"""The admin's forms; those of list entries refuse what would break the site, unless it is confirmed."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from django import forms

from ratelimit_app import lists
from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import parse_network
from ratelimit_app.core.entries import canonical, width_danger
from ratelimit_app.core.identity import IdentityError
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Origin, Rule
from ratelimit_app.normalizing import normalized

if TYPE_CHECKING:
    from ratelimit_app.core.addresses import Address

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

    own_address: Address | None = None
    confirm = forms.BooleanField(
        required=False,
        label="I know what this breaks",
        help_text="Tick this when a network is refused because it is too wide, or somebody's who must not be locked out.",
    )

    def clean(self) -> dict[str, Any]:
        """Refuse an identity that is listed already, and a dangerous one that is not confirmed."""
        cleaned = super().clean() or self.cleaned_data
        if not {"kind", "value"} <= cleaned.keys():
            return cleaned
        model = self._meta.model
        try:
            kind, value = canonical(
                cleaned["kind"], cleaned["value"], conf.key_secret, kinds=model.listable, normalize=normalized
            )
        except IdentityError:
            return cleaned  # The model says it, beside the field.
        if (
            model.objects.filter(kind=kind, value=value, source=Origin.MANUAL)
            .exclude(pk=self.instance.pk)
            .exists()
        ):
            self.add_error("value", f"{kind}:{value} has a manual entry already: edit or extend that one.")
        danger = self.danger(kind, value)
        if danger and not cleaned.get("confirm"):
            self.add_error(
                "value", f"{kind}:{value} is refused: {danger}. Tick the box below if you mean it."
            )
        return cleaned

    def danger(self, kind: str, value: str) -> str | None:
        """Say what listing this identity would break. None: nothing."""
        raise NotImplementedError


class BlacklistEntryForm(EntryForm):
    """A ban by hand."""

    class Meta:
        model = BlacklistEntry
        fields = ("kind", "value", "reason", "expires_at")

    def danger(self, kind: str, value: str) -> str | None:
        """Say whom this would lock out. None: nobody who matters."""
        return lists.danger(kind, value, self.own_address)


class AllowlistEntryForm(EntryForm):
    """Somebody who always passes."""

    class Meta:
        model = AllowlistEntry
        fields = ("kind", "value", "reason", "expires_at")

    def danger(self, kind: str, value: str) -> str | None:
        """Say that this lets nearly everybody pass. None: it does not."""
        return width_danger(parse_network(value)) if kind == "ip" else None
