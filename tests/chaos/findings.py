"""What a drill has found, and the judges of what shoppers noted."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from tests.chaos.shop import LIMIT, PERIOD_US
from tests.chaos.shoppers import BANNED
from tests.integration.judging import Try, faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.chaos.shoppers import Note

SECOND = 1_000_000
ANSWERED = 1.0  # seconds in which whatever was asked has its answer


@dataclass(frozen=True, slots=True)
class Finding:
    """What must hold, what was seen, and whether it held; `timed`: a busy machine alone can make it fail."""

    asked: str
    seen: str
    held: bool
    timed: bool = False


def at_most(asked: str, seconds: float, most: float) -> Finding:
    """Judge a time."""
    return Finding(f"{asked} ≤ {most:.2f} s", f"{seconds:.3f} s", seconds <= most, timed=True)


def equal(asked: str, seen: object, expected: object) -> Finding:
    """Judge what is known beforehand."""
    return Finding(asked, str(seen), seen == expected)


def statuses(notes: Iterable[Note]) -> Iterator[Finding]:
    """Judge the answers: no error from `open` and `local`, none but 503 from `closed`, none without an answer."""
    seen = {
        policy: Counter(note.status for note in notes if note.policy == policy) for policy in _policies(notes)
    }
    for policy, counts in seen.items():
        may = {200, 429, 403, 503} if policy == "closed" else {200, 429, 403}
        yield Finding(
            f"`{policy}` answers {', '.join(map(str, sorted(may)))} alone",
            ", ".join(f"{status}: {count:,}" for status, count in sorted(counts.items())),
            set(counts) <= may and sum(counts.values()) > 0,
        )


def _policies(notes: Iterable[Note]) -> list[str]:
    return sorted({note.policy for note in notes})


def exact_again(
    notes: Iterable[Note], returned: float, within: float = 2.0, until: float = inf
) -> Iterator[Finding]:
    """
    Judge what was decided after Redis came back at `returned` (seconds since the epoch).

    What passes while Redis is away is in no log, so windows count what was admitted since it came back; they are
    full ones, and the first of them ends after `within` seconds. `until`: when the next fault came; what was asked
    shortly before it may have been answered after it.
    """
    until -= ANSWERED
    after = [note for note in notes if returned + within <= note.began < until]
    yield Finding(
        f"no decision without Redis from {within:g} s after its return",
        f"{sum(note.degraded for note in after):,} of {len(after):,}",
        bool(after) and not any(note.degraded for note in after),
        timed=True,
    )
    yield from exactness(notes, returned, returned + within, until)


def exactness(notes: Iterable[Note], since: float, judged: float, until: float = inf) -> Iterator[Finding]:
    """Judge every window that ends from `judged` to `until` by what Redis has decided from `since` on."""
    wrong, denied, admitted = list[str](), 0, 0
    by_client: dict[str, list[Try]] = defaultdict(list)
    for note in notes:
        if note.client != BANNED and note.at >= since * SECOND and not note.degraded:
            by_client[note.client].append(Try(note.status == 200, note.at))
    edge = int(judged * SECOND)
    for client, tries in by_client.items():
        early = [one for one in tries if one.at < edge and one.allowed]
        late = [one for one in tries if one.at >= edge]
        denied += sum(not one.allowed for one in late)
        admitted += sum(one.allowed for one in late)
        found = faults(early + late, LIMIT, PERIOD_US)
        wrong += [f"{client}: {fault}" for fault in found if edge <= _ends(fault) < until * SECOND]
    over = [fault for fault in wrong if "admitted" in fault]
    yield Finding(
        "no window over its limit",
        over[0] if over else f"{admitted:,} admitted, none over",
        not over and admitted > 0,
    )
    below = [fault for fault in wrong if "denied" in fault]
    # What was charged and whose answer came too late is in no note: others look as if they were denied below.
    yield Finding(
        "nobody denied below it",
        below[0] if below else f"{denied:,} denied, none below",
        not below and denied > 0,
        timed=any(note.degraded and note.began >= since + 1 for note in notes),
    )


def _ends(fault: str) -> int:
    """Read the instant that a fault speaks of."""
    return int(fault.partition(" at ")[2].split(",")[0])


def banned_within(notes: Iterable[Note], returned: float, most: float) -> Finding:
    """Judge when a ban holds for good after Redis came back at `returned`."""
    visits = [note for note in notes if note.client == BANNED and note.began >= returned]
    passed = [note.began + note.took for note in visits if note.status == 200]
    seen = bool(visits) and visits[-1].status == 403
    took = max(passed, default=returned) - returned
    return Finding(
        f"the ban holds again ≤ {most:.1f} s after",
        f"{took:.2f} s" if seen else "never",
        seen and took <= most,
        timed=seen,
    )
