"""Greenlets: a gateway under a cooperative scheduler."""

from __future__ import annotations

import subprocess
import sys

from tests.beside import child_environment


def test_greenlets_when_many_decide_get_their_own_replies_and_wait_for_no_other() -> None:
    """Forty at once mix nothing up, and while a server hangs the others go on."""
    program = [sys.executable, "-m", "gevent.monkey", "--module", "tests.store.gevented"]
    subprocess.run(program, env=child_environment(), timeout=120, check=True)
