"""The benchmark itself: its ratios, its eye for wrong answers, and what it does without the peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings

from benchmarks import addresses, drill, growth, matching, page, peers, picture, results, rounds, tables
from benchmarks.contenders import ONE, baseline
from benchmarks.project import LIMIT
from benchmarks.rounds import ADMITTED, AGAIN, DENIED, Contender, Rounds, Sample, Track
from benchmarks.servers import Meter
from ratelimit_app.core.calls import NO_RULE
from ratelimit_app.core.snapshot import EMPTY
from ratelimit_app.snapshot_cache import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent


def contender(decide: Callable[[str], bool], *, name: str = "other", ours: bool = False) -> Contender:
    """Make a contender that decides names of identities."""
    return Contender(
        name=name,
        group=ONE,
        work="a test",
        make=lambda prefix, n: f"{prefix}-{n}",
        decide=lambda things: [decide(thing) for thing in things],
        ours=ours,
    )


def counting(limit: int = LIMIT) -> Callable[[str], bool]:
    """Give a limiter that counts in this process, exactly."""
    counts: dict[str, int] = {}

    def decide(name: str) -> bool:
        counts[name] = counts.get(name, 0) + 1
        return counts[name] <= limit

    return decide


@pytest.fixture(autouse=True)
def _no_rules() -> Iterator[None]:
    """Decide without waiting for a snapshot that nobody publishes here."""
    override(EMPTY)
    yield
    override(None)


@pytest.fixture
def url() -> str:
    """The address of the tests' server."""
    return str(settings.CACHES["default"]["LOCATION"])


def sample(wall: float, admitted: int = 5) -> Sample:
    """Make a sample of five calls."""
    return Sample(wall, wall, wall, wall, admitted=admitted, calls=5)


def test_a_ratio_when_rounds_differ_is_the_median_of_the_rounds_own() -> None:
    """A slow moment falls on both sides: the ratio is formed in each round, not of the medians."""
    track = Track(contender(counting()), ADMITTED, [sample(10), sample(40), sample(60)])
    track.bases = [sample(10), sample(20), sample(50)]
    assert 1.2 == track.ratio("wall")
    assert 40 == track.cost("wall")


def test_wrong_answers_when_counted_are_those_over_and_under_the_limit() -> None:
    """Denied under the limit, or admitted over it: both are wrong."""
    made = contender(counting())
    assert 2 == Track(made, ADMITTED, [sample(1, admitted=5), sample(1, admitted=3)]).wrong
    assert 1 == Track(made, AGAIN, [sample(1, admitted=0), sample(1, admitted=1)]).wrong


def test_rounds_when_contenders_are_exact_measure_every_outcome_beside_the_baseline(url: str) -> None:
    """Each sample of each outcome has one of the baseline, from the same round."""
    made = Rounds(Meter(url), baseline(url), [contender(counting(), ours=True)], calls=22)
    tracks = made.run(2)
    assert [ADMITTED, DENIED, AGAIN] == [track.outcome for track in tracks]
    assert {(2, 2, 0)} == {(len(track.samples), len(track.bases), track.wrong) for track in tracks}
    assert [20, 4, 20] == [track.samples[0].calls for track in tracks]


def test_rounds_when_one_of_ours_is_wrong_end_the_run(url: str) -> None:
    """A fast limiter that admits too much is not measured."""
    made = Rounds(Meter(url), baseline(url), [contender(counting(LIMIT + 1), ours=True)], calls=20)
    with pytest.raises(SystemExit, match="4 of 4 tries were admitted, expected 0"):
        made.run(1)


def test_rounds_when_a_peer_is_wrong_or_breaks_mark_it_and_go_on(url: str) -> None:
    """What a peer admits over its limit is shown, and one that raises is named; the others are measured."""

    def breaks(_: str) -> bool:
        msg = "no such thing"
        raise LookupError(msg)

    others = [contender(breaks, name="broken"), contender(counting(LIMIT + 1), name="loose")]
    made = Rounds(Meter(url), baseline(url), others, calls=20)
    tracks = made.run(1)
    assert {"broken": "LookupError: no such thing"} == made.failures
    assert {"loose"} == {track.contender.name for track in tracks}
    row = results.rows_of(tracks, {"loose": 7})[1]
    assert (DENIED, 4, 7) == (row["outcome"], row["wrong"], row["over_limit_by_threads"])
    assert any("4 WRONG answers; 7 OVER THE LIMIT" in line for line in tables.decisions([row]))


def test_the_drill_when_a_limiter_reads_then_writes_counts_what_it_lets_slip() -> None:
    """Threads that meet between reading and writing are what the drill is for; a script lets nothing slip."""
    counts: dict[str, int] = {}
    all_have_read = threading.Barrier(drill.THREADS)

    def racy(name: str) -> bool:
        seen = counts.get(name, 0)
        all_have_read.wait()
        counts[name] = seen + 1
        return seen < LIMIT

    assert drill.over_limit(contender(racy), 1, identities=3) > 0


def test_the_drill_when_a_limiter_is_exact_finds_nothing(url: str) -> None:
    """Eight threads on one identity are admitted as often as one would be."""
    assert 0 == drill.over_limit(baseline(url), 2, identities=5)


def test_the_drill_when_one_of_ours_lets_something_slip_ends_the_run() -> None:
    """Ours is held to its limit, not described."""
    with pytest.raises(SystemExit, match="8 threads were admitted"):
        drill.over_limit(contender(lambda _: True, ours=True), 3, identities=2)


def test_the_drill_when_a_thread_fails_says_so_instead_of_waiting() -> None:
    """A peer that raises under threads must not hang the run."""

    def breaks(_: str) -> bool:
        raise LookupError

    with pytest.raises(RuntimeError, match="a thread failed"):
        drill.over_limit(contender(breaks), 4, identities=2)


def test_growth_when_keys_and_entries_grow_decides_rightly_at_each_size(url: str) -> None:
    """Every size of a series has its figures; a wrong decision would end the run."""
    grown = growth.Growth(Meter(url), baseline(url), quick=True)
    chosen = [series for series in grown.series() if series.name in ("keys", "entries", "offenders")]
    for series in chosen:
        track = grown.track(series, series.sizes[0], rounds=1, calls=20)
        assert 0 == track.wrong
        assert track.cost("wall") > 0


def test_peers_when_not_installed_are_skipped_by_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is required, and one that cannot be set up is told apart from one that is not there."""

    def cannot(_: str) -> list[Contender]:
        msg = "not on this server"
        raise ValueError(msg)

    monkeypatch.setattr(peers, "BUILDERS", {"no-such-limiter": cannot, "redis": cannot})
    found, skipped = peers.peers(url)
    assert [] == found
    assert {"no-such-limiter": "not installed", "redis": "ValueError: not on this server"} == skipped


def test_results_when_merged_keep_what_was_measured_on_the_same_machine_only(tmp_path: Path) -> None:
    """A section measured anew stands beside older ones, unless machine or versions have changed."""
    file = tmp_path / "results.json"
    results.merge({"decisions": 1, "drf": 1}, {"cpu": "a"}, file)
    assert {"machine": {"cpu": "a"}, "decisions": 2, "drf": 1} == results.merge(
        {"decisions": 2}, {"cpu": "a"}, file
    )
    results.merge({"drf": 3}, {"cpu": "b"}, file)
    assert {"machine": {"cpu": "b"}, "drf": 3} == json.loads(file.read_text())


def test_the_machine_when_described_has_no_names_or_places(url: str) -> None:
    """Processor, cores and versions are enough to compare by; hosts and folders are nobody's business."""
    described: dict[str, Any] = results.machine(Meter(url).version(), {})
    assert {"cpu", "cores", "system", "python", "server", "libraries", "peers"} == set(described)
    assert "/" not in json.dumps(described).replace("(R)", "")


def test_the_picture_when_a_section_is_missing_is_not_drawn(tmp_path: Path) -> None:
    """A run of one section draws nothing rather than half a picture."""
    assert not picture.draw({"decisions": {"rows": []}}, tmp_path / "results.svg")
    assert [] == list(tmp_path.iterdir())


def test_the_page_when_compared_with_the_results_shows_those_figures() -> None:
    """No figure of `docs/performance.md` is typed by hand: they are what the last complete run has written."""
    written = page.FILE.read_text().partition(page.BEGIN)[2].partition(page.END)[0]
    assert page.figures(json.loads(results.FILE.read_text())) == written


def test_the_page_when_written_keeps_what_stands_around_the_figures(tmp_path: Path) -> None:
    """A run replaces its figures alone, and an incomplete one replaces nothing."""
    file = tmp_path / "performance.md"
    file.write_text(f"before\n{page.BEGIN}old\n{page.END}after\n")
    page.write({"machine": {}, "decisions": {}}, file)
    assert "old" in file.read_text()
    measured = json.loads(results.FILE.read_text())
    page.write(measured, file)
    page.write(measured, file)
    assert f"before\n{page.BEGIN}{page.figures(measured)}{page.END}after\n" == file.read_text()


def test_measures_when_listed_are_those_of_a_sample() -> None:
    """Every measure that is printed is one that a sample has."""
    assert set(rounds.MEASURES) <= set(Sample.__dataclass_fields__)


class Measured:
    """The URLs that matching is measured with."""

    urlpatterns = matching.views()


def test_matching_when_measured_decides_every_case_by_the_same_rules(valkey: Any, settings: Any) -> None:
    """C23: five rules or five hundred: each request meets its own, and each case has both times and their ratio."""
    settings.ROOT_URLCONF = Measured
    found = matching.run(2, 5, valkey.flushdb)
    assert [case.name for case in matching.CASES] == [row["case"] for row in found]
    assert all(row["cpu ratio"] > 0 and set(row["wall us"]) == {5, 500} for row in found)
    assert all(case["case"] in matching.as_table(found) for case in found)


def test_matching_when_a_decision_is_wrong_ends_with_an_error() -> None:
    """A figure of wrong decisions is worth nothing."""
    with pytest.raises(SystemExit, match="expected"):
        matching.require_right(matching.CASES[0], 5, [NO_RULE])


def test_the_lists_when_measured_are_all_in_redis_and_decide_rightly() -> None:
    """Every figure has a name and a unit; a list that did not arrive, or a wrong decision, ends the run."""
    command = [sys.executable, "-m", "benchmarks.lists", "--quick", "--json"]
    without = {name: value for name, value in os.environ.items() if name != "TEST_DATABASE_URL"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=without, check=False)
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert ["lookup", "SQLite"] == list(found)
    assert len(found["SQLite"]) > 10
    assert all(name and value >= 0 and unit for rows in found.values() for name, value, unit, _ in rows)


def test_addresses_when_resolved_are_the_same_by_both_ways() -> None:
    """Every kind of header has both times and their ratio; the run itself ends where the ways disagree."""
    rows = addresses.run(1, 100)
    assert [case.name for case in addresses.CASES] == [row["case"] for row in rows]
    assert all(row["us"]["ours"] > 0 and row["ratio"] > 0 for row in rows)
    assert all(row["case"] in addresses.as_table(rows) for row in rows)


def test_addresses_when_the_ways_disagree_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of wrong answers is worth nothing."""
    monkeypatch.setattr(addresses, "plain", lambda _: lambda *_: "ip:somebody")
    with pytest.raises(SystemExit, match="different clients"):
        addresses.measure(addresses.CASES[0], 1, 10)
