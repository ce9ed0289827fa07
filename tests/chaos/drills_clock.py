"""The clock of Redis is set back, and forward: counted by the clock on the wall, which nobody sets."""

from __future__ import annotations

import time
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.findings import Finding, statuses
from tests.chaos.shop import LIMIT, Shop
from tests.chaos.shoppers import BANNED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.ground import Ground
    from tests.chaos.shoppers import Note

LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1")
WINDOW = 1.0
SLACK = 1.0  # seconds between a decision and its note, and until the next visit


def clock(ground: Ground) -> Iterator[Finding]:
    """The clock goes back by 30 s, and then forward by an hour."""
    library = next((str(path) for text in LIBRARIES for path in Path("/").glob(text.lstrip("/"))), None)
    if library is None:
        yield Finding("the clock of Redis is moved", "left out: libfaketime is not installed", held=True)
        return
    back, setting = ground.seconds(30, 3), ground.crew.directory / "clock"
    setting.write_text("+0")
    ground.redis.kill()
    ground.redis.start(
        {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(setting),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    )
    shop = Shop(ground)
    with shop.crowd() as crowd:
        time.sleep(3)
        went_back = time.time()
        setting.write_text(f"-{back:g}")
        time.sleep(back + 4)
        went_forward = time.time()
        setting.write_text("+3600")
        time.sleep(ground.seconds(8, 4))
    yield from statuses(crowd.notes)
    clients = sorted({note.client for note in crowd.notes} - {BANNED})
    admitted = {client: _admitted(crowd.notes, client) for client in clients}
    yield from _locked_out(admitted, went_back, f"after {back:g} s back", back + WINDOW)
    yield from _locked_out(admitted, went_forward, "after an hour forward", WINDOW)
    yield from _passed_freely(admitted, went_back, f"after {back:g} s back")
    yield from _passed_freely(admitted, went_forward, "after an hour forward")


def _admitted(notes: list[Note], client: str) -> list[float]:
    return sorted(note.began + note.took for note in notes if note.client == client and note.status == 200)


def _locked_out(admitted: dict[str, list[float]], since: float, when: str, most: float) -> Iterator[Finding]:
    """Judge the longest time after a step in which somebody got nothing."""
    gaps = []
    for times in admitted.values():
        later = [one for one in times if one >= since - WINDOW]
        gaps += [after - before for before, after in pairwise(later)]
    longest = max(gaps, default=0.0)
    held = bool(gaps) and longest <= most + SLACK
    yield Finding(f"nobody is locked out for more than {most:g} s {when}", f"{longest:.2f} s", held)


def _passed_freely(admitted: dict[str, list[float]], step: float, when: str) -> Iterator[Finding]:
    """Judge what passed beyond the limit: a window's worth at the step, nothing later."""
    at_step = later = 0
    for times in admitted.values():
        for number, end in enumerate(times):
            held = number + 1 - bisect_right(times, end - WINDOW)
            if step - SLACK <= end <= step + WINDOW + SLACK:
                at_step = max(at_step, held)
            elif step + WINDOW + SLACK < end < step + WINDOW + SLACK + 2:
                later = max(later, held)
    # Noted by the clients, whose answers are late by turns: a few of the window before may be seen in the next.
    yield Finding(
        f"no free pass beyond one window {when}",
        f"{at_step} in the worst second at the step, {later} in the worst later, limit {LIMIT}",
        at_step <= 2 * LIMIT + LIMIT // 4 and later <= LIMIT + LIMIT // 2,
    )
