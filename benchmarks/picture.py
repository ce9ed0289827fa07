"""The figures as one picture, on a ground of its own so that it looks the same on light pages and dark ones."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.contenders import ONE, REQUEST, THREE
from benchmarks.rounds import ADMITTED

FILE = Path(__file__).resolve().parent / "results.svg"
GROUND, INK, FAINT, OURS, PEER, LINE = "#f6f8fa", "#1f2328", "#d0d7de", "#1a7f64", "#8c959f", "#bc4c00"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ratelimit_app",
    "font.family": "sans-serif",
    "font.size": 9,
    "figure.facecolor": GROUND,
    "axes.facecolor": GROUND,
    "savefig.facecolor": GROUND,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
}


def draw(results: dict[str, Any], file: Path = FILE) -> bool:
    """Draw what the results have; False: nothing to draw, or no matplotlib."""
    try:
        matplotlib = import_module("matplotlib")
    except ImportError:
        return False
    if "decisions" not in results or "growth" not in results:
        return False
    matplotlib.use("svg")
    with matplotlib.rc_context(STYLE):
        pyplot = import_module("matplotlib.pyplot")
        figure = pyplot.figure(figsize=(10, 11), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=[1.1, 1])
        _bars(upper.subplots(), results["decisions"]["rows"])
        places = lower.subplots(2, 2).flat
        for axes, name in zip(places, ("keys", "offenders", "entries", "rules"), strict=True):
            _curve(axes, name, results["growth"]["series"][name])
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return True


def _bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    """One bar for each contender that admits one by one: wall time as a ratio to the baseline."""
    found = [row for group in (ONE, REQUEST, THREE) for row in rows if _is_admitted(row, group)]
    labels = [f"{row['contender']} ({row['work']})" for row in found]
    values = [row["ratio"]["wall"] for row in found]
    bars = axes.barh(labels, values, color=[OURS if row["ours"] else PEER for row in found])
    axes.bar_label(bars, labels=[f"{value:.2f}" for value in values], padding=3)
    axes.axvline(1.0, color=LINE, linewidth=1)
    axes.invert_yaxis()
    axes.set_title("An admitted decision, one by one")
    axes.set_xlabel("wall time, as a ratio to a bare EVALSHA of the textbook script (the line)")
    axes.set_ylabel("limiter and what it decides")


def _is_admitted(row: dict[str, Any], group: str) -> bool:
    return (row["group"], row["outcome"]) == (group, ADMITTED)


def _curve(axes: Any, name: str, series: dict[str, Any]) -> None:
    """Draw the client's and the server's CPU time as one thing grows, which ratios free of the machine's moods."""
    sizes = series["sizes"]
    for what, color, label in (("cpu", OURS, "client"), ("server", LINE, "whole server")):
        axes.plot(sizes, series["ratio"][what], marker="o", color=color, label=label)
    if name != "rules":
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.set_xlabel(series["label"])
    axes.set_ylabel("CPU, ratio to baseline")
    axes.set_title(f"Growth with {name}")
    axes.legend(frameon=False, loc="best")
