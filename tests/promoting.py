"""A process that promotes or syncs once, when told to on its standard input; it can be made to die at a chosen step."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.beside import set_up

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = {
    "locked": ("promotion.banning", "Judgement._lock", "after"),
    "written": ("promotion.banning", "Judgement._write", "after"),
    "committed": ("publishing", "publish", "before"),
    "published": ("publishing", "publish", "after"),
    "announcing": ("promotion.announcing", "_send", "before"),
    "sent": ("promotion.announcing", "_send", "after"),
    "announced": ("promotion.announcing", "_announce", "after"),
    "finishing": ("store.turns", "Turn.finish", "before"),
}


SYNC_STEPS = {
    "begun": ("publishing.ledger", "drop_strangers", "before"),
    "snapshot": ("publishing.ledger", "put_snapshot", "before"),
    "snapshot put": ("publishing.ledger", "put_snapshot", "after"),
    "marks": ("publishing.ledger", "put_marks", "before"),
    "marks put": ("publishing.ledger", "put_marks", "after"),
    "networks": ("publishing.ledger", "put_networks", "before"),
    "networks put": ("publishing.ledger", "put_networks", "after"),
    "renewed": ("publishing.ledger", "renew", "after"),
    "noted": ("publishing.ledger", "note_synced", "after"),
}


def die(*_: Any, **__: Any) -> None:
    """End at once, as when the machine's memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(step: str) -> None:
    """Replace one function by itself and a sudden death, before or after it."""
    from importlib import import_module

    module, path, when = (STEPS | SYNC_STEPS)[step]
    owner: Any = import_module(f"ratelimit_app.{module}")
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original = getattr(owner, name)

    def lethal(*args: Any, **kwargs: Any) -> None:
        if when == "after":
            original(*args, **kwargs)
        die()

    setattr(owner, name, lethal)


def main() -> None:
    """Wait for the word, work, print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--die-at", choices=[*STEPS, *SYNC_STEPS, ""], default="")
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--without-turn", action="store_true")
    options = parser.parse_args()
    set_up()

    from ratelimit_app import publishing
    from ratelimit_app.promotion import promote_repeat_offenders, run
    from ratelimit_app.store import turns
    from tests.offending import note_signals

    turns.TURN_TTL = 0.3
    note_signals()
    if options.without_turn:
        vars(run).update(turn=unguarded)
    if options.die_at:
        die_at(options.die_at)
    say("ready")
    sys.stdin.readline()
    say(json.dumps(publishing.sync().to_dict() if options.sync else promote_repeat_offenders().as_dict()))


def say(line: str) -> None:
    """Tell the test that started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def unguarded(_: str) -> Iterator[Any]:
    """Stand for a turn that was lost at once: nothing but the database keeps the runs apart."""

    class Lost:
        def renew(self) -> None:
            """Have nothing to renew."""

    yield Lost()


if __name__ == "__main__":
    main()
