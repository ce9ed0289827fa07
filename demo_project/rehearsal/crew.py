"""The processes of a running site: started together, and gone when the block ends, however it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from types import FrameType, TracebackType

END_TIMEOUT = 8.0  # seconds that a process has between SIGTERM and SIGKILL
T = TypeVar("T")
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CrewError(RuntimeError):
    """A process failed; the message says which, and how its log ends."""


class Crew:
    """
    Run processes in a directory, each in a session of its own, and end them all with the block.

    An interrupt (Ctrl-C, SIGTERM, a closed terminal) leaves the block as SystemExit. Should this very process be
    killed, a keeper that waits at the other end of a pipe does the rest.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], *, temporary: bool) -> None:
        self.directory = directory
        self.environment = {**os.environ, **environment}
        self._temporary = temporary
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._interrupt = 0
        self._starting = False

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._handlers = {number: signal.signal(number, self._on_interrupt) for number in INTERRUPTS}
        keeper = [sys.executable, "-I", str(Path(__file__).with_name("keeper.py"))]
        remove = [str(self.directory)] if self._temporary else []
        self._keeper = subprocess.Popen([*keeper, *remove], stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in INTERRUPTS:  # Cleaning up is what an interrupt asks for: a second one must not stop it.
            signal.signal(number, signal.SIG_IGN)
        for _, process in reversed(self._processes):
            _end(process)
        self._keeper.kill()
        self._keeper.communicate()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(self, name: str, command: Sequence[str], *, fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        """Start a process that stays until the block ends; what it says goes to its log in the directory."""
        self._starting = True
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
            )
        self._processes.append((name, process))
        self._tell_keeper(process)
        self._starting = False
        if self._interrupt:
            self._on_interrupt(self._interrupt, None)
        return process

    def run(self, name: str, command: Sequence[str]) -> None:
        """Run a process to its end. Raises CrewError unless it ends well."""
        if self.start(name, command).wait():
            raise CrewError(self.account_of(name))
        self._processes.pop()

    def check(self) -> None:
        """Raise CrewError when a process has ended that should be running."""
        for name, process in self._processes:
            if process.poll() is not None:
                raise CrewError(self.account_of(name))

    def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Run a coroutine to its end. An interrupt cancels it where it waits, and then leaves as SystemExit.

        Raised by the signal itself in the middle of the event loop, that could lose what the loop waits for.
        """
        with suppress(asyncio.CancelledError):
            result = asyncio.run(self._interruptible(work))
        if self._interrupt:
            raise SystemExit(128 + self._interrupt)
        return result

    async def _interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
        for number in INTERRUPTS:
            loop.add_signal_handler(number, self._cancel, task, number)
        try:
            return await task
        finally:
            for number, handler in handlers.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _cancel(self, task: asyncio.Future[Any], number: int) -> None:
        self._interrupt = number
        task.cancel()

    def account_of(self, name: str) -> str:
        """Say what a process said before it failed."""
        return f"{name} failed. Its last words: {self.log_of(name) or '(none)'}"

    def log_of(self, name: str) -> str:
        """Give the end of what a process has said."""
        return self._log(name).read_text(errors="replace")[-1500:].strip()

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _tell_keeper(self, process: subprocess.Popen[bytes]) -> None:
        assert self._keeper.stdin  # noqa: S101 - it was opened with a pipe
        self._keeper.stdin.write(f"{process.pid}\n".encode())
        self._keeper.stdin.flush()

    def _on_interrupt(self, number: int, _: FrameType | None) -> None:
        self._interrupt = number
        if not self._starting:  # Between a start and the note of it, a process would be forgotten.
            raise SystemExit(128 + number)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT)
    # Whatever it has started itself is in its session's group still.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
