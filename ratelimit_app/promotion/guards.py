"""What keeps a promotion from turning away too many: a share of those who were seen, and addresses that many share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ratelimit_app import sightings
from ratelimit_app.models import BlacklistEntry, Origin

if TYPE_CHECKING:
    from collections.abc import Collection

    from ratelimit_app.models import PromotionPolicy

SHARED_ADDRESS = "shared_address"


def shared_addresses(identities: Collection[str], max_users: int | None) -> dict[str, str]:
    """
    Give those of the identities that are addresses behind which at least `max_users` signed-in users were seen.

    None: nobody is spared for that. Raises StoreUnavailable.
    """
    if max_users is None:
        return {}
    addresses = [identity for identity in identities if identity.startswith("ip:")]
    return {
        address: SHARED_ADDRESS
        for address, users in sightings.users_at(addresses).items()
        if users >= max_users
    }


def room_of(policy: PromotionPolicy, alias: str, now_s: float) -> int | None:
    """
    Give how many more may be banned within this hour by `max_share`; None: the policy has none, or nobody was seen.

    All policies' bans count. Raises StoreUnavailable.
    """
    if policy.max_share is None or not (seen := sightings.active()):
        return None
    since = datetime.fromtimestamp(now_s, UTC) - timedelta(hours=1)
    banned = (
        BlacklistEntry.objects.using(alias).filter(source=Origin.PROMOTED, announced_at__gte=since).count()
    )
    return max(int(seen * policy.max_share) - banned, 0)
