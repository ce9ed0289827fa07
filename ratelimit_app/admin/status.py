"""Whether what is edited has arrived in Redis: a warning above the page, and a column for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages

from ratelimit_app.publishing import backlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest

    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class PublishedAdmin(ModelAdmin):
    """An admin of what is published: as long as Redis does not have all of it, every page says so."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Show the list."""
        self._tell_backlog(request)
        return super().changelist_view(request, extra_context)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show or save a form."""
        self._tell_backlog(request)
        return super().changeform_view(request, *args, **kwargs)

    @staticmethod
    def _tell_backlog(request: HttpRequest) -> None:
        # The page that follows a save tells of it: only then is the save committed.
        if request.method == "GET" and (text := backlog()):
            messages.warning(request, text)


class StatusAdmin(PublishedAdmin):
    """An admin whose rows know whether Redis has them; it asks Redis once for a page."""

    def published(self, rows: Sequence[Any]) -> list[bool | None]:
        """Say of each row whether Redis has it, None: unknown."""
        raise NotImplementedError

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Ask Redis about the rows of the page."""
        changelist = super().get_changelist_instance(request)
        self._mark(list(changelist.result_list))
        return changelist

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Ask Redis about the one row."""
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            self._mark([row])
        return row

    def _mark(self, rows: list[Any]) -> None:
        for row, published in zip(rows, self.published(rows), strict=True):
            row.is_published = published

    @admin.display(boolean=True, description="in Redis")
    def in_redis(self, row: Any) -> bool | None:
        """Whether Redis has the row as it is; unknown when Redis does not answer."""
        published: bool | None = getattr(row, "is_published", None)
        return published
