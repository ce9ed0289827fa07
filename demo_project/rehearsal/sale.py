"""A rehearsed sale: the crowds come, the worst of them are banned, and are sent once more to see the ban work."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from demo_project.rehearsal.crowds import CROWDS, Crowd, Scene
from demo_project.rehearsal.visitors import Group, Visitor

if TYPE_CHECKING:
    from collections.abc import Callable

PROMOTION_TIMEOUT = 20.0  # seconds that the Celery job has to ban somebody after the sale
RETRIES = 3  # requests that each banned identity sends to see its ban work


@dataclass(frozen=True, slots=True)
class Banned:
    """Somebody whom the Celery job put on the blacklist, and how their next requests were answered."""

    identity: str
    reason: str
    statuses: list[int]

    @property
    def turned_away(self) -> bool:
        """Whether every request after the ban got 403."""
        return bool(self.statuses) and set(self.statuses) == {HTTPStatus.FORBIDDEN}


@dataclass(slots=True)
class Outcome:
    """All that was seen of a sale; `seconds` is how long the crowds were at it."""

    groups: list[Group] = field(default_factory=list)
    banned: list[Banned] = field(default_factory=list)
    seconds: float = 0.0


async def rehearse(
    site: tuple[str, int], coupon: str, *, seconds: float, say: Callable[[str], None]
) -> Outcome:
    """Send the crowds for so many seconds, wait for the bans, then send the banned again."""
    outcome = Outcome()
    opened = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for crowd in CROWDS:
            scene = _scene(crowd, site, coupon, closes=opened + seconds)
            outcome.groups.append(scene.group)
            tasks.create_task(crowd.visit(scene))
        progress = tasks.create_task(_tell_progress(outcome.groups, opened=opened, seconds=seconds, say=say))
    await progress
    outcome.seconds = time.monotonic() - opened
    await _try_the_bans(site, outcome, coupon)
    return outcome


def _scene(crowd: Crowd, site: tuple[str, int], coupon: str, *, closes: float) -> Scene:
    return Scene(site, coupon, closes, Group(crowd.name, crowd.about, crowd.genuine), crowd.accounts)


async def _tell_progress(
    groups: list[Group], *, opened: float, seconds: float, say: Callable[[str], None]
) -> None:
    while (passed := time.monotonic() - opened) < seconds:
        counts = ", ".join(f"{group.name} {group.asked:,}" for group in groups)
        say(f"{passed:4.0f} s of {seconds:.0f}: asked so far: {counts}")
        await asyncio.sleep(min(2.0, seconds - passed))


async def _try_the_bans(site: tuple[str, int], outcome: Outcome, coupon: str) -> None:
    owners = {identity: group for group in outcome.groups for identity in group.visitors}
    for entry in await _bans(site):
        identity = entry["identity"]
        group = owners.get(identity)
        statuses = await _knock(group.visitors[identity], coupon) if group else []
        outcome.banned.append(Banned(identity, entry["reason"], statuses))


async def _bans(site: tuple[str, int]) -> list[dict[str, str]]:
    """Read from the shop's page who is banned; waits until somebody is, and until nobody is added for a while."""
    watcher = Visitor(site, Group("watcher", "reads the page"), "192.0.2.250")
    deadline = time.monotonic() + PROMOTION_TIMEOUT
    banned: list[dict[str, str]] = []
    while time.monotonic() < deadline:
        answer = await watcher.look("/sale.json")
        found = answer.json()["banned"] if answer.status == HTTPStatus.OK else []
        if found and len(found) == len(banned):
            break
        banned = found
        await asyncio.sleep(3.0)
    await watcher.leave()
    return banned


async def _knock(visitor: Visitor, coupon: str) -> list[int]:
    statuses = [(await visitor.grab(coupon)).status for _ in range(RETRIES)]
    await visitor.leave()
    return statuses
