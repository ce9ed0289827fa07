"""Background work: one thread, started at need, which no failure ends and no fork inherits."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import pytest

from ratelimit_app.background import MAX_COMPLAINTS, Periodic
from ratelimit_app.core.calls import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT = 5.0


class Job:
    """Work that counts its rounds and lets a test wait for them."""

    def __init__(self) -> None:
        self.rounds = 0
        self.threads: set[int | None] = set()
        self.raises: Callable[[int], Exception | None] = lambda _: None
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.rounds += 1
            self.threads.add(threading.get_ident())
            self._changed.notify_all()
        if error := self.raises(self.rounds):
            raise error

    def wait_for(self, rounds: int) -> None:
        """Wait until so many rounds have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.rounds >= rounds, WAIT)


@pytest.fixture
def job() -> Job:
    """Give a job that has not begun."""
    return Job()


@pytest.fixture
def periodic(job: Job) -> Periodic:
    """Give its periodic runner, which sleeps between rounds until it is woken, or the tests end."""
    return Periodic("testing", job, lambda: 3_600.0)


def test_a_job_when_not_needed_has_no_thread(job: Job, periodic: Periodic) -> None:
    """Importing the app starts nothing."""
    assert 0 == job.rounds
    assert periodic._thread is None


def test_a_job_when_started_by_many_has_one_thread(job: Job, periodic: Periodic) -> None:
    """Requests of many threads start it once; it is a daemon with a name that says what it is."""
    starters = [threading.Thread(target=periodic.start) for _ in range(16)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    job.wait_for(1)
    periodic.wake()
    job.wait_for(2)
    assert 1 == len(job.threads)
    assert periodic._thread is not None
    assert ("ratelimit_app.testing", True) == (periodic._thread.name, periodic._thread.daemon)


def test_a_job_when_woken_runs_before_its_time(job: Job, periodic: Periodic) -> None:
    """A full buffer does not wait for the next tick."""
    periodic.start()
    job.wait_for(1)
    periodic.wake()
    job.wait_for(2)


@pytest.mark.parametrize(
    ("error", "with_trace"), [(ValueError("broken"), True), (StoreUnavailable("away"), False)]
)
def test_a_job_when_it_fails_goes_on_and_complains_once(
    job: Job, periodic: Periodic, error: Exception, with_trace: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each kind of failure, with a trace only where it is unexpected (C120)."""
    job.raises = lambda number: error if number <= 3 else None
    with caplog.at_level(logging.WARNING, "ratelimit_app"):
        periodic.start()
        for number in range(1, 5):
            job.wait_for(number)
            periodic.wake()
        job.wait_for(5)
    (record,) = [record for record in caplog.records if "testing_failed" in record.getMessage()]
    assert f"ratelimit.testing_failed {type(error).__name__}: {error}" == record.getMessage()
    assert with_trace == bool(record.exc_info)


def test_a_job_when_it_fails_differently_each_time_stops_complaining(
    periodic: Periodic, caplog: pytest.LogCaptureFixture
) -> None:
    """Texts that differ each time fill neither the log nor the memory."""
    with caplog.at_level(logging.WARNING, "ratelimit_app"):
        for number in range(MAX_COMPLAINTS * 2):
            periodic._complain(ValueError(number))
    assert MAX_COMPLAINTS == caplog.text.count("testing_failed") == len(periodic._complained)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_job_when_the_process_forks_starts_anew_in_the_child(job: Job, periodic: Periodic) -> None:
    """A fork has no threads: the child's first need starts one of its own, even if a lock was held."""
    periodic.start()
    job.wait_for(1)
    with periodic._lock:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child is measured by its exit status
            status = 1
            try:
                before, had = job.rounds, periodic._thread
                periodic.start()
                job.wait_for(before + 1)
                status = 0 if had is None else 2
            finally:
                os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_job_when_nobody_has_it_any_more_is_not_kept_by_the_fork_hook(job: Job) -> None:
    """The hook holds no reference: a test's or a reload's runner can be collected."""
    import gc
    import weakref

    alive = weakref.ref(Periodic("gone", job, lambda: 60.0))
    gc.collect()
    assert alive() is None
