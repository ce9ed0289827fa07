"""The figures as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.contenders import ASYNC, ONE, REQUEST, THREE
from benchmarks.results import reading
from benchmarks.rounds import MEASURES, OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLES = {"wall": "wall us", "cpu": "CPU us", "script": "script us", "server": "server us"}


def decisions(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Write what a decision costs, in microseconds and as ratios to the baseline (x)."""
    for group in (ONE, REQUEST, THREE, ASYNC):
        for outcome in OUTCOMES:
            found = [row for row in rows if (row["group"], row["outcome"]) == (group, outcome)]
            if found:
                heads = "".join(f"{TITLES[what]:>10}{'x':>7}" for what in MEASURES)
                yield f"\n{group}, {outcome}"
                yield f"{'':44}{heads}{'calls/s':>10}  work"
                yield from map(_row, found)


def _row(row: dict[str, Any]) -> str:
    figures = "".join(f"{row['us'][what]:10.1f}{row['ratio'][what]:7.3f}" for what in MEASURES)
    notes = [row["work"]]
    if row["wrong"]:
        notes.append(f"{row['wrong']} WRONG answers")
    if row["over_limit_by_threads"]:
        notes.append(f"{row['over_limit_by_threads']} OVER THE LIMIT by threads")
    return f"{row['contender']:44}{figures}{row['calls_per_s']:10,}  {'; '.join(notes)}"


def asked(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Write what we hold ourselves to, beside what was measured."""
    yield "\nasked of ours, at most: ratios to the baseline, or microseconds (us)"
    for row in rows:
        for what, most in row["asked"].items():
            found = reading(row, what)
            verdict = "reached" if found <= most else "NOT reached"
            title = f"{row['contender']}, {row['outcome']}, {what}"
            yield f"{title:60}{most:7.3f}{found:8.3f}  {verdict}"


def growth(series: dict[str, Any]) -> Iterator[str]:
    """Write how the cost grows."""
    for found in series.values():
        yield f"\n{found['label']:28}" + "".join(f"{TITLES[what]:>10}{'x':>7}" for what in MEASURES)
        for place, size in enumerate(found["sizes"]):
            figures = "".join(
                f"{found['us'][what][place]:10.1f}{found['ratio'][what][place]:7.3f}" for what in MEASURES
            )
            yield f"{size:<28,}{figures}"


def drf(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Write what a DRF view serves behind each throttle."""
    for server, found in rows.items():
        yield f"\nDRF view on {server}, 2 processes"
        yield f"{'':44}{'requests/s':>12}{'x none':>9}{'x floor':>9}{'x DRF':>9}"
        for row in found.values():
            ratios = "".join(f"{row['ratio'][to]:9.3f}" for to in ("none", "floor", "drf"))
            denied = f"  {row['refused']} requests refused or lost" if row["refused"] else ""
            yield f"{row['label']:44}{row['requests_per_s']:12,}{ratios}{denied}"
            for to, least in row["asked"].items():
                verdict = "reached" if row["ratio"][to] >= least else "NOT reached"
                yield f"{f'  asked: at least {least} x {to}':44}{verdict:>12}"
