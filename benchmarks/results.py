"""The figures as one file: what was measured, on what, and what the issue of performance asks for."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import AT_ONCE
from benchmarks.rounds import ADMITTED, AGAIN, DENIED, MEASURES

if TYPE_CHECKING:
    from benchmarks.rounds import Track

FILE = Path(__file__).resolve().parent / "results.json"
LIBRARIES = ("ratelimit-app", "django", "redis", "hiredis", "django-redis", "granian", "gunicorn")
# What we hold ourselves to, at most: ratios to the baseline of the same run, and where it says so microseconds.
ASKED: dict[tuple[str, str], dict[str, float]] = {
    ("acquire", ADMITTED): {"wall": 0.85, "cpu": 0.70, "server": 1.05},
    ("acquire", DENIED): {"server": 1.15},
    ("acquire", AGAIN): {"wall": 0.03, "wall_us": 4.0},
    ("check(request)", ADMITTED): {"wall": 1.0},
    ("check(request), three rules and marks", ADMITTED): {"wall": 1.0, "cpu": 0.85, "server": 1.3},
    # Eight times the rate of redis-py's sync client.
    (f"aacquire, {AT_ONCE} at once", ADMITTED): {"wall": 0.125},
}


def reading(row: dict[str, Any], what: str) -> float:
    """Give what a row has measured of something asked, as it was asked: a ratio, or microseconds."""
    unit, measure = ("us", what.removesuffix("_us")) if what.endswith("_us") else ("ratio", what)
    return float(row[unit][measure])


def machine(server_version: str, peers: dict[str, str]) -> dict[str, Any]:
    """Describe what was measured on, without names or places."""
    libraries = {name: found for name in LIBRARIES if (found := _version(name))}
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "server": server_version,
        "libraries": libraries,
        "peers": peers,
    }


def _version(name: str) -> str:
    if name == "ratelimit-app":
        from ratelimit_app import __version__  # noqa: PLC0415 - a checkout need not be installed

        return __version__
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def rows_of(tracks: list[Track], drilled: dict[str, int]) -> list[dict[str, Any]]:
    """Give one row for each contender and outcome."""
    return [
        {
            "contender": track.contender.name,
            "ours": track.contender.ours,
            "group": track.contender.group,
            "work": track.contender.work,
            "outcome": track.outcome,
            "us": {what: round(track.cost(what), 2) for what in MEASURES},
            "ratio": {what: round(track.ratio(what), 3) for what in MEASURES},
            "calls_per_s": round(1e6 / track.cost("wall")),
            "wrong": track.wrong,
            "over_limit_by_threads": drilled.get(track.contender.name),
            "asked": ASKED.get((track.contender.name, track.outcome), {}),
        }
        for track in tracks
    ]


def merge(section: dict[str, Any], described: dict[str, Any], file: Path = FILE) -> dict[str, Any]:
    """Write sections beside those of earlier runs on the same machine and versions, and give all."""
    try:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if known.get("machine") != described:
        known = {}
    merged = {"machine": described} | known | section
    file.write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")
    return merged
