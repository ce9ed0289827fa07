"""What the models share: refusing, and times as Redis has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NoReturn

from django.core.exceptions import ValidationError
from django.utils import timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(moment: datetime | None) -> int:
    """Give a time as microseconds since the epoch, exactly; 0 for none."""
    if moment is None:
        return 0
    aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return (aware - _EPOCH) // timedelta(microseconds=1)


def refuse(field: str | None, message: str) -> NoReturn:
    """Raise ValidationError, beside a field where there is one."""
    raise ValidationError({field: message} if field else message)
