"""The figures in `docs/performance.md`, between two marks, so that no number there is typed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import ASYNC, ONE, REQUEST, THREE
from benchmarks.results import reading
from benchmarks.rounds import ADMITTED, AGAIN, DENIED

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Path(__file__).resolve().parent.parent / "docs/performance.md"
BEGIN, END = "<!-- figures: written by make bench -->\n", "<!-- end of figures -->\n"
TIMES = "\N{MULTIPLICATION SIGN}"
NAMES = {"wall": "wall", "cpu": "client CPU", "server": "whole server CPU"}


def write(results: dict[str, Any], file: Path = FILE) -> None:
    """Put the figures of a complete run between the marks of the page."""
    if {"decisions", "growth", "drf"} <= set(results):
        before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        file.write_text(before + BEGIN + figures(results) + END + after, encoding="utf-8")


def figures(results: dict[str, Any]) -> str:
    """Write every table of the page."""
    rows = results["decisions"]["rows"]
    lines = [
        *_machine(results["machine"]),
        *_asked(rows, results["drf"]["servers"]),
        *_peers(rows),
        *_served(results["drf"]["servers"]),
        *_grown(results["growth"]["series"]),
        "",
    ]
    return "\n".join(lines)


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    versions = machine["libraries"] | machine["peers"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    place = f"{machine['cores']} cores of {machine['cpu']}, {machine['system']}"
    yield from ("", f"Measured on {place}, Python {machine['python']}, {machine['server']}; {listed}.")


def _asked(rows: list[dict[str, Any]], servers: dict[str, Any]) -> Iterator[str]:
    yield from ("", "### What we hold ourselves to", "")
    yield from ("| ours | measure | asked | measured |", "| --- | --- | --- | --- |")
    for row in rows:
        for what, most in row["asked"].items():
            title = f"`{row['contender']}`, {row['outcome']}"
            unit = "us" if what.endswith("_us") else f"{TIMES} baseline"
            measure = NAMES[what.removesuffix("_us")]
            yield f"| {title} | {measure} | at most {most} {unit} | {reading(row, what):.3f} |"
    for server, found in servers.items():
        for row in found.values():
            for to, least in row["asked"].items():
                title = f"{row['label']}, on {server}"
                yield f"| {title} | requests/s | at least {least} {TIMES} {found[to]['label']} | {row['ratio'][to]:.3f} |"


def _peers(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield from (
        "",
        "### Beside other limiters",
        "",
        "Wall time, client CPU and whole server CPU as ratios to the baseline.",
    )
    by_name = {(row["contender"], row["outcome"]): row for row in rows}
    for group in (ONE, REQUEST, THREE, ASYNC):
        yield from (
            "",
            f"| {group} | what it decides | admitted | denied | denied again | wrong answers |",
        )
        yield "| --- | --- | --- | --- | --- | --- |"
        for name in dict.fromkeys(row["contender"] for row in rows if row["group"] == group):
            found = [by_name[name, outcome] for outcome in (ADMITTED, DENIED, AGAIN)]
            title = f"**{name}**" if found[0]["ours"] else name
            cells = " | ".join(_ratios(row) for row in found)
            yield f"| {title} | {found[0]['work']} | {cells} | {_wrong(found)} |"


def _ratios(row: dict[str, Any]) -> str:
    return " / ".join(f"{row['ratio'][what]:.2f}" for what in NAMES)


def _wrong(found: list[dict[str, Any]]) -> str:
    """Tell what was wrong, one by one and when threads met."""
    wrong = sum(row["wrong"] for row in found)
    threads = found[0]["over_limit_by_threads"]
    told = [f"{wrong} tries one by one"] if wrong else []
    told += [f"{threads} tries by threads"] if threads else []
    return ", ".join(told) or ("none, one by one" if threads is None else "none")


def _served(servers: dict[str, Any]) -> Iterator[str]:
    yield from ("", "### A DRF view", "")
    yield from (
        f"| server | throttle | requests/s | {TIMES} no throttle | {TIMES} raw EVALSHA | {TIMES} DRF's own |",
        "| --- " * 6 + "|",
    )
    for server, found in servers.items():
        for row in found.values():
            ratios = " | ".join(f"{row['ratio'][to]:.2f}" for to in ("none", "floor", "drf"))
            yield f"| {server} | {row['label']} | {row['requests_per_s']:,} | {ratios} |"


def _grown(series: dict[str, Any]) -> Iterator[str]:
    yield from ("", "### Growth", "")
    yield from (
        f"| as these grow | to | client CPU, {TIMES} baseline | whole server CPU, {TIMES} baseline |",
        "| --- " * 4 + "|",
    )
    for found in series.values():
        sizes = " → ".join(f"{size:,}" for size in found["sizes"])
        cpu, server = (
            " → ".join(f"{ratio:.2f}" for ratio in found["ratio"][what]) for what in ("cpu", "server")
        )
        yield f"| {found['label']} | {sizes} | {cpu} | {server} |"
