"""A process that imports a list, and can be made to die at a chosen step; `ready` on its output: it has begun."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests.beside import set_up

STEPS = {
    "staged": ("Staging", "count"),
    "removed": ("Staging", "remove_missing"),
    "merged": ("Staging", "merge"),
    "committed": ("publishing", "publish_many"),
}


def die(*_: Any, **__: Any) -> None:
    """End at once, as when the machine's memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(step: str) -> None:
    """Replace a function by itself and a sudden death."""
    from ratelimit_app.importing import run

    owner, name = STEPS[step]
    original = getattr(getattr(run, owner), name)

    def lethal(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        die()

    setattr(getattr(run, owner), name, die if step == "committed" else lethal)


def main() -> None:
    """Import what the arguments say, the first of which is the step to die at, or `-`."""
    step, *arguments = sys.argv[1:]
    set_up()
    from django.core.management import ManagementUtility

    from ratelimit_app.importing import run, staging

    run.BATCH = staging.BATCH = 10  # type: ignore[attr-defined]
    if step != "-":
        die_at(step)
    original = staging.Staging.add

    def tell(self: Any, rows: Any) -> None:
        original(self, rows)
        sys.stdout.write("staged\n")
        sys.stdout.flush()

    staging.Staging.add = tell  # type: ignore[method-assign]
    ManagementUtility(["manage.py", "ratelimit_import", *arguments]).execute()


if __name__ == "__main__":
    main()
