"""The findings in `docs/reliability.md`, between two marks, so that no figure there is typed by hand."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.chaos.findings import Finding

FILE = Path(__file__).resolve().parents[2] / "docs/reliability.md"
BEGIN, END = "<!-- findings: written by make chaos -->\n", "<!-- end of findings -->\n"


def write(found: Mapping[str, tuple[str, list[Finding]]], file: Path = FILE, *, short: bool = False) -> None:
    """Put what a run has found between the marks of the page: each drill's title, and its findings."""
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    file.write_text(
        before + BEGIN + "\n".join([*_lines(found, short=short), ""]) + END + after, encoding="utf-8"
    )


def _lines(found: Mapping[str, tuple[str, list[Finding]]], *, short: bool) -> Iterator[str]:
    cores, system = os.cpu_count(), f"{platform.system()} {platform.release()}"
    form = "The short form, its waits cut." if short else "The whole form."
    yield from ("", f"{form} Found on {cores} cores, {system}, Python {platform.python_version()}.", "")
    yield from ("| drill | must hold | found | |", "| --- | --- | --- | --- |")
    for name, (_, findings) in found.items():
        for one in findings:
            verdict = "held" if one.held else "**did not hold**"
            yield f"| `{name}` | {_cell(one.asked)} | {_cell(one.seen)} | {verdict} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
