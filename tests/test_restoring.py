"""What an outage may have kept from Redis: noted while it lasts, published once it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimit_app.restoring import Restorer

if TYPE_CHECKING:
    from collections.abc import Callable


class Site:
    """A restorer, what it asks for, and what is answered; `told`: what went wrong."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.told: list[str] = []
        self.asked: list[float] = []
        self.answers: list[Any] = []
        self.restorer = Restorer(lambda what, error: self.told.append(f"{what}: {error}"), clock)
        self.restorer.on_return = self._answer

    def _answer(self, missed_at: float) -> bool:
        self.asked.append(missed_at)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer = answer()
        return bool(answer)

    def settle(self) -> None:
        """Refresh, and wait for what that has begun."""
        self.restorer.settle(100.0)
        if self.restorer.thread is not None:
            self.restorer.thread.join(5)


def test_a_process_when_nothing_was_missed_publishes_nothing() -> None:
    """The usual refresh costs no thread."""
    site = Site(lambda: 0.0)
    site.settle()
    assert (None, False) == (site.restorer.thread, site.restorer.is_owing)


def test_what_was_missed_when_somebody_is_at_it_is_asked_for_until_it_is_there() -> None:
    """Another process has the claim: this one looks again at its next refresh."""
    now = iter(range(7, 99))
    site = Site(lambda: float(next(now)))
    site.answers = [False, False, True]
    assert [True, False] == [site.restorer.note_unpublished() for _ in range(2)]
    for _ in range(4):
        site.settle()
    assert [108.0] * 3 == site.asked
    assert (False, False) == (site.restorer.is_owing, site.restorer.has_unpublished)
    assert site.restorer.note_unpublished()


def test_what_was_missed_while_it_was_published_is_not_forgotten() -> None:
    """A second outage in the midst: what was compared before it says nothing of what came after."""
    now = [7.0]
    site = Site(lambda: now[0])

    def meanwhile() -> bool:
        now[0] = 9.0
        return site.restorer.note_unpublished()

    site.answers = [meanwhile, True]
    site.restorer.note()
    site.settle()
    assert site.restorer.is_owing
    site.settle()
    assert ([107.0, 109.0], False) == (site.asked, site.restorer.is_owing)


def test_a_database_when_it_fails_is_asked_ever_more_seldom() -> None:
    """Each process tells of it once for each kind, and does not add to its troubles."""
    now = [0.0]
    site = Site(lambda: now[0])
    site.answers = [RuntimeError("no database")] * 3 + [True]
    site.restorer.note()
    tries = []
    for tick in range(40):
        now[0] = tick / 4
        site.settle()
        tries.append(len(site.asked))
    assert [1, 2, 3, 4] == [tries[at] for at in (0, 4, 12, 28)]
    assert [1, 2, 3] == [tries[at] for at in (3, 11, 27)]
    assert (["publishing from the database: no database"] * 3, False) == (site.told, site.restorer.is_owing)
