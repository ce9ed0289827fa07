"""
End a demo's processes when the demo itself was killed and could not.

Reads the process groups, one a line, until the pipe closes: it does so only when its writer is dead, since a demo
that ends in order ends this keeper first. The argument, if any, is a directory to remove.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress

PATIENCE = 2.0  # seconds between SIGTERM and SIGKILL


def end(groups: list[int], number: signal.Signals) -> None:
    """Send a signal to each process group that is still there."""
    for group in reversed(groups):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


if __name__ == "__main__":
    groups = [int(line) for line in sys.stdin]
    end(groups, signal.SIGTERM)
    time.sleep(PATIENCE)
    end(groups, signal.SIGKILL)
    for directory in sys.argv[1:]:
        shutil.rmtree(directory, ignore_errors=True)
