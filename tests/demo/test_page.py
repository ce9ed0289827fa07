"""The sale's page in a real browser: its script fills in what the server only outlines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = os.environ.get("RATELIMIT_BROWSER") or shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--virtual-time-budget=4000",
]  # fmt: skip


def _seen_in_browser(url: str, profile: Path) -> str:
    """Give the page as the browser has it after its scripts have run for a few seconds."""
    assert CHROMIUM, "no browser: install Debian's chromium, or name one in RATELIMIT_BROWSER"
    command = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="no Chromium on this machine")
def test_page_when_open_in_a_browser_then_shows_the_sale_live(demo, tmp_path):
    """Stock, the three lanes of the last minute and the ban list are filled in by the page itself."""
    with demo.start("manage.py", "demo", "--serve", "--port", "0") as process:
        assert process.stdout
        line = next(line for line in process.stdout if "The sale is open at" in line)
        (url,) = re.findall(r"http://[\d.:]+/", line)[:1]
        urllib.request.urlopen(url, timeout=10).close()  # noqa: S310 - the demo under test
        page = _seen_in_browser(url, tmp_path / "profile")
        process.terminate()
        process.communicate(timeout=40)

    assert re.search(r'<strong id="stock">\d+</strong>', page)
    assert re.search(r'<span id="grabbed">\d+</span>', page)
    assert page.count("<rect") == 3 * 60
    assert "Nobody" in page
    assert 'id="trouble" role="status" hidden' in page
