"""The findings in `docs/reliability.md`, between two marks, so that no figure there is typed by hand."""

from __future__ import annotations

import os
import platform
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.chaos.findings import Finding

FILE = Path(__file__).resolve().parents[2] / "docs/reliability.md"
BEGIN, END = "<!-- findings: written by make chaos -->\n", "<!-- end of findings -->\n"


def write(found: Mapping[str, tuple[str, list[Finding]]], file: Path = FILE, *, short: bool = False) -> None:
    """
    Put what a run has found between the marks of the page.

    Of drills that were not run, what an earlier run of the same form has found stays.
    """
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    held, _, after = rest.partition(END)
    head = list(_head(short=short))
    if head[1] in held:
        earlier = {name: list(rows) for name, rows in groupby(filter(_is_row, held.splitlines()), key=_name)}
    else:
        earlier = {}
    rows = earlier | {name: list(_rows(name, findings)) for name, (_, findings) in found.items()}
    lines = [*head, *(row for name in rows for row in rows[name]), ""]
    file.write_text(before + BEGIN + "\n".join(lines) + END + after, encoding="utf-8")


def _is_row(line: str) -> bool:
    return line.startswith("| `")


def _name(row: str) -> str:
    return row.split("`")[1]


def _head(*, short: bool) -> Iterator[str]:
    cores, system = os.cpu_count(), f"{platform.system()} {platform.release()}"
    form = "The short form, its waits cut." if short else "The whole form."
    yield from ("", f"{form} Found on {cores} cores, {system}, Python {platform.python_version()}.", "")
    yield from ("| drill | must hold | found | |", "| --- | --- | --- | --- |")


def _rows(name: str, findings: Iterable[Finding]) -> Iterator[str]:
    for one in findings:
        verdict = "held" if one.held else "**did not hold**"
        yield f"| `{name}` | {_cell(one.asked)} | {_cell(one.seen)} | {verdict} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
