"""
The crowds of a sale: genuine users, four kinds of script that try to take more than their share, and two crowds
that share a limit of which a part is kept for one of them.

Every crowd has accounts and addresses of its own (from the networks reserved for documentation), so that what
becomes of one is never another's doing.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo_project.rehearsal.visitors import Group, Visitor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

BROWSING, PAYING = "browsing", "paying"  # the crowds that share a limit
WINDOW = 5.0  # seconds: the period of the demo's rules, whose turn the boundary burst aims at


@dataclass(frozen=True, slots=True)
class Scene:
    """Where one crowd is at work, and until when (`closes`: seconds of the monotonic clock)."""

    site: tuple[str, int]
    coupon: str
    closes: float
    group: Group
    accounts: range

    @property
    def left(self) -> float:
        """Seconds until the sale closes."""
        return self.closes - time.monotonic()

    def visitor(self, address: str, account: int | None, device: str = "") -> Visitor:
        """Make a visitor; one without an account has a token that nobody gave out."""
        token = f"made-up-{random.getrandbits(64):x}" if account is None else f"demo-token-{account}"
        return Visitor(self.site, self.group, address, token, device)


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who comes to the sale, with which accounts, and what they do there."""

    name: str
    about: str
    accounts: range
    visit: Callable[[Scene], Coroutine[None, None, None]]
    genuine: bool = False


async def genuine_users(scene: Scene) -> None:
    """Arrive over the whole sale, most of them early; look at the page, grab, some again out of impatience."""
    await asyncio.gather(*(_genuine_user(scene, account) for account in scene.accounts))


async def _genuine_user(scene: Scene, account: int) -> None:
    visitor = scene.visitor(f"198.51.100.{account}", account, device=f"phone-{account}")
    await asyncio.sleep(min(random.expovariate(4.0), random.uniform(0.7, 0.9)) * scene.left)
    await visitor.look("/")
    await visitor.look("/sale.json")
    await asyncio.sleep(random.uniform(0.2, 1.0))
    await visitor.grab(scene.coupon, quantity=random.choice((1, 1, 1, 2)))
    if account % 5 == 0:
        await asyncio.sleep(random.uniform(0.2, 1.0))
        await visitor.grab(scene.coupon)
    await visitor.leave()


async def boundary_burst(scene: Scene) -> None:
    """Fire right before the clock's window turns and right after: fixed windows would admit their limit twice."""
    for account in scene.accounts:
        boundary = (time.time() // WINDOW + 1) * WINDOW
        if boundary - time.time() < 0.5:
            boundary += WINDOW
        if boundary - time.time() > scene.left:
            return
        team = [scene.visitor(f"203.0.113.{account}", account) for _ in range(5)]
        await asyncio.sleep(boundary - time.time() - 0.4)
        await _fire(scene, team, shots=4)
        await asyncio.sleep(max(boundary - time.time(), 0) + 0.02)
        await _fire(scene, team, shots=4)
        await _leave(team)


async def _fire(scene: Scene, team: list[Visitor], shots: int) -> None:
    async def salvo(visitor: Visitor) -> None:
        for _ in range(shots):
            await visitor.grab(scene.coupon)

    await asyncio.gather(*map(salvo, team))


async def flood(scene: Scene) -> None:
    """Ask as fast as the server answers, all from one address, every other time with a token that is made up."""

    async def pump(visitor: Visitor) -> None:
        while scene.left > 0:
            await visitor.grab(scene.coupon)

    team = [scene.visitor("203.0.113.66", account) for account in (None, scene.accounts[0]) * 2]
    await asyncio.gather(*map(pump, team))
    await _leave(team)


async def one_device(scene: Scene) -> None:
    """Take turns with many accounts, each from an address of its own, all on one telephone."""
    team = [scene.visitor(f"192.0.2.{account % 256}", account, device="farm-1") for account in scene.accounts]
    while scene.left > 0:
        await _take_turns(scene, team, pause=0.04)
    await _leave(team)


async def one_network(scene: Scene) -> None:
    """Ask from a fresh address each time, all of them in the /64 that one customer gets, with many accounts."""
    team = [scene.visitor("", account) for account in scene.accounts]
    while scene.left > 0:
        for visitor in team:
            visitor.address = "2001:db8:66:1:" + ":".join(f"{random.getrandbits(16):x}" for _ in range(4))
        await _take_turns(scene, team, pause=0.02)
    await _leave(team)


async def browsing(scene: Scene) -> None:
    """Leaf through the catalogue, again and again: together far more than browsing may have of the shop."""

    async def leaf(visitor: Visitor) -> None:
        while scene.left > 0:
            await visitor.look("/catalogue.json")
            await asyncio.sleep(0.1)

    team = [scene.visitor(f"203.0.113.{account % 256}", account) for account in scene.accounts]
    await asyncio.gather(*map(leaf, team))
    await _leave(team)


async def paying(scene: Scene) -> None:
    """Pay at most five times in each window, which is this visitor's part of what the rule `pay` reserves."""

    async def pay(visitor: Visitor) -> None:
        while scene.left > 0:
            await visitor.pay(scene.coupon)
            await asyncio.sleep(WINDOW / 5 + 0.1)

    team = [scene.visitor(f"192.0.2.{account % 256}", account) for account in scene.accounts]
    await asyncio.gather(*map(pay, team))
    await _leave(team)


async def _take_turns(scene: Scene, team: Iterable[Visitor], pause: float) -> None:
    for visitor in team:
        if scene.left > 0:
            await visitor.grab(scene.coupon)
            await asyncio.sleep(pause)


async def _leave(team: Iterable[Visitor]) -> None:
    for visitor in team:
        await visitor.leave()


CROWDS = (
    Crowd(
        "genuine users",
        "150 people who look, then grab once or twice",
        range(1, 151),
        genuine_users,
        genuine=True,
    ),
    Crowd(
        "boundary burst",
        "an account that fires around the turn of the window",
        range(151, 156),
        boundary_burst,
    ),
    Crowd("flood", "one address, as fast as it goes, half the tokens made up", range(156, 157), flood),
    Crowd("one device", "40 accounts and 40 addresses on one telephone", range(157, 197), one_device),
    Crowd(
        "one network", "100 accounts, a fresh address of one IPv6 /64 each time", range(197, 297), one_network
    ),
    Crowd(BROWSING, "4 people who leaf through the catalogue all the time", range(297, 301), browsing),
    Crowd(PAYING, "2 people who pay about once a second", range(301, 303), paying, genuine=True),
)
USERS = max(crowd.accounts.stop for crowd in CROWDS) - 1  # how many accounts the demo needs
